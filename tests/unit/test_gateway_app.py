"""The gateway over real sockets: every route, every row of the error table, and what crosses the hop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolecall.api import (
    Endpoint,
    PayloadError,
    UpstreamCall,
)
from rolecall.discovery.snapshot import parse_snapshot
from rolecall.discovery.source import SnapshotSource
from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import PluginContractError
from rolecall.gateway.app import build_gateway
from rolecall.gateway.settings import GatewaySettings
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import Plane, plane
from rolecall.testing.scripted_answers import tokens_of
from rolecall.testing.snapshots import model_entry

CHATS = ["/v1/chat/completions", "/chat/completions"]
MESSAGES = [{"role": "user", "content": "2 + 2?"}]


class Plugin:
    """A role with a question of its own (``messages``), and endpoints of its own."""

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        if "messages" in payload:
            if "text" in payload:
                raise PayloadError("messages: not with text", field="messages")
            return UpstreamCall(
                path="/v1/chat/completions",
                payload=payload,
                reply=lambda answer: {"response": answer["choices"][0]["message"]["content"]},
            )
        if not isinstance(payload.get("text"), str):
            raise PayloadError("text: must be text", field="text")
        return UpstreamCall(path="/generate", payload=payload)

    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint(method="GET", path="/health", handler=_old_health, query={"schema": "1"}),
            Endpoint(method="POST", path="/grow/{amount}", handler=_grow),
        )


async def _old_health(request: Request, gateway: Any) -> Response:
    return JSONResponse({"old": (await gateway.snapshot()).role})


async def _grow(request: Request, gateway: Any) -> Response:
    if request.path_params["amount"] == "0":
        raise PayloadError("amount: must be more", field="amount")
    return JSONResponse({"role": gateway.role, "grown": request.path_params["amount"]}, 202)


CRITIC = PlainRole(plugin=Plugin())
SETTINGS = GatewaySettings(max_body_bytes=8000, request_timeout_s=0.5, max_wait_s=0.3)


@pytest.fixture
async def world() -> AsyncIterator[Plane]:
    async with plane(CRITIC, settings=SETTINGS) as running:
        yield running


@pytest.fixture
async def http(world: Plane) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=world.url, timeout=10, verify=False) as client:
        yield client


def error_of(response: httpx.Response) -> dict[str, Any]:
    return response.json()["error"]


async def metric(http: httpx.AsyncClient, line: str) -> float:
    lines = (await http.get("/metrics")).text.splitlines()
    return next((float(found.rsplit(" ", 1)[1]) for found in lines if found.startswith(line)), 0.0)


# --- generation -------------------------------------------------------------------------


async def test_generate_takes_the_selectors_out_and_gives_the_request_an_id(
    world: Plane, http: httpx.AsyncClient
) -> None:
    world.publish(route_keys={"data": "m"})
    payload = {"text": "hello", "sampling_params": {"temperature": 0}, "model": "m", "route_key": "data"}
    response = await http.post("/generate", json=payload, headers={"X-Request-Id": "r-1"})
    assert response.status_code == 200
    assert response.json()["output_ids"] == tokens_of("hello", 4)
    received = world.engines[0].received[0]
    assert received.path == "/generate"
    sent = received.payload
    rid = sent.pop("rid")
    assert sent == {"text": "hello", "sampling_params": {"temperature": 0}}
    assert rid.startswith("r-1.")
    assert received.headers["x-request-id"] == response.headers["x-request-id"] == "r-1"
    assert response.headers["x-rolecall-engine"] == "m/replica-0"


async def test_a_request_id_that_is_used_twice_gives_two_engine_ids(
    world: Plane, http: httpx.AsyncClient
) -> None:
    for _ in range(2):
        await http.post("/generate", json={"text": "x"}, headers={"X-Request-Id": "same"})
    first, second = (received.payload["rid"] for received in world.engines[0].received)
    assert first != second


async def test_the_callers_own_engine_id_is_kept(world: Plane, http: httpx.AsyncClient) -> None:
    response = await http.post("/generate", json={"text": "x", "rid": "mine"})
    assert response.json()["meta_info"]["id"] == "mine"


@pytest.mark.parametrize("path", CHATS)
async def test_chat_goes_on_under_the_served_name(world: Plane, http: httpx.AsyncClient, path: str) -> None:
    response = await http.post(path, json={"model": "m", "messages": MESSAGES, "temperature": 0})
    assert response.status_code == 200
    content = response.json()["choices"][0]["message"]["content"]
    assert content == "".join(f" {token}" for token in tokens_of(MESSAGES, 4))
    received = world.engines[0].received[0]
    assert received.path == "/v1/chat/completions"
    assert received.payload["model"] == "served/m"
    assert received.payload["messages"] == MESSAGES


async def test_a_roles_own_question_gets_the_roles_own_answer(world: Plane, http: httpx.AsyncClient) -> None:
    response = await http.post("/generate", json={"messages": MESSAGES})
    assert response.json() == {"response": "".join(f" {token}" for token in tokens_of(MESSAGES, 4))}
    assert world.engines[0].received[0].payload["model"] == "served/m"


async def test_an_affinity_key_decides_the_engine() -> None:
    async with (
        plane(CRITIC, engines=3) as world,
        httpx.AsyncClient(base_url=world.url, timeout=10, verify=False) as http,
    ):
        chosen: set[str] = set()
        for key in [f"group-{n}" for n in range(12)]:
            homes = set()
            for _ in range(2):
                response = await http.post(
                    "/generate", json={"text": "x"}, headers={"X-SMG-Routing-Key": key}
                )
                homes.add(response.headers["x-rolecall-engine"])
            assert len(homes) == 1
            chosen |= homes
    assert len(chosen) == 3
    keys = {received.headers["x-smg-routing-key"] for engine in world.engines for received in engine.received}
    assert keys == {f"group-{n}" for n in range(12)}


async def test_one_hop_headers_and_secrets_stay_behind(world: Plane, http: httpx.AsyncClient) -> None:
    headers = {
        "Connection": "keep-alive, X-Once",
        "X-Once": "1",
        "TE": "trailers",
        "Authorization": "Bearer secret",
        "Cookie": "a=b",
        "Accept-Encoding": "gzip",
        "Traceparent": "00-1-2-3",
    }
    response = await http.post("/generate", json={"text": "x"}, headers=headers)
    got = world.engines[0].received[0].headers
    assert not {"x-once", "te", "authorization", "cookie", "connection"} & set(got)
    assert got["traceparent"] == "00-1-2-3"
    assert got["accept-encoding"] == "identity"
    assert got["host"] == world.urls[0].removeprefix("http://")
    assert len(response.headers.get_list("date")) <= 1
    assert len(response.headers.get_list("content-length")) == 1


async def test_large_fields_cross_unchanged(world: Plane, http: httpx.AsyncClient) -> None:
    await http.post("/generate", content=b'{"text": "\\u00e4", "input_ids": [1,  2,   3]}' + b" " * 5000)
    body = world.engines[0].received[0].body
    assert b"[1,  2,   3]" in body
    assert b'"\\u00e4"' in body


# --- the callers' faults ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "content", "field"),
    [
        ("/generate", b"", "body"),
        ("/generate", b"{oops", "body"),
        ("/generate", b"[]", "body"),
        ("/generate", b'{"text": NaN}', "body"),
        ("/generate", b'{"text": 5}', "text"),
        ("/generate", b'{"text": "x", "messages": []}', "messages"),
        ("/generate", b'{"text": "x", "model": "nobody"}', "model"),
        ("/generate", b'{"text": "x", "model": ""}', "model"),
        ("/generate", b'{"text": "x", "model": 5}', "model"),
        ("/generate", b'{"text": "x", "route_key": "nowhere"}', "route_key"),
        ("/generate", b'{"text": "x", "model": "m", "route_key": "nowhere"}', "route_key"),
        ("/generate", b'{"text": "x", "stream": "yes"}', "stream"),
        ("/generate", b'{"text": "x", "rid": ""}', "rid"),
        ("/generate", b'{"messages": [{}], "stream": true}', "stream"),
        ("/v1/chat/completions", b"{}", "messages"),
        ("/v1/chat/completions", b'{"messages": []}', "messages"),
        ("/v1/chat/completions", b'{"messages": "hi"}', "messages"),
        ("/v1/chat/completions", b'{"messages": [{}], "model": "nobody"}', "model"),
        ("/v1/chat/completions", b"{", "body"),
        ("/chat/completions", b"{", "body"),
    ],
)
async def test_400_names_the_field_and_sends_nothing(
    world: Plane, http: httpx.AsyncClient, path: str, content: bytes, field: str
) -> None:
    response = await http.post(path, content=content)
    assert response.status_code == 400
    error = error_of(response)
    if path == "/generate":
        assert (error["type"], error["field"]) == ("bad_request", field)
    else:
        assert (error["type"], error["param"], error["code"]) == (
            "invalid_request_error",
            field,
            "bad_request",
        )
    assert field in error["message"]
    assert world.engines[0].received == []


@pytest.mark.parametrize("keys", [[""], ["a", "b"]])
async def test_400_for_an_affinity_key_that_is_none(
    world: Plane, http: httpx.AsyncClient, keys: list[str]
) -> None:
    headers = [("X-SMG-Routing-Key", key) for key in keys]
    response = await http.post("/generate", json={"text": "x"}, headers=headers)
    assert response.status_code == 400
    assert error_of(response)["field"] == "X-SMG-Routing-Key"


@pytest.mark.parametrize("path", ["/generate", *CHATS])
@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
async def test_413_for_a_body_over_the_limit(
    world: Plane, http: httpx.AsyncClient, path: str, chunked: bool
) -> None:
    text = json.dumps({"text": "x" * 9000}).encode()

    async def parts() -> AsyncIterator[bytes]:
        yield text[:4500]
        yield text[4500:]

    response = await http.post(path, content=parts() if chunked else text)
    assert response.status_code == 413
    assert "8000 bytes" in error_of(response)["message"]
    assert world.engines[0].received == []


async def test_404_and_405_speak_json(http: httpx.AsyncClient) -> None:
    assert error_of(await http.get("/nowhere"))["type"] == "not_found"
    assert error_of(await http.get("/v1/nowhere"))["code"] == "not_found"
    response = await http.get("/generate")
    assert response.status_code == 405
    assert error_of(response)["type"] == "method_not_allowed"
    for path in ("/activate", "/offload", "/commit", "/abort_request", "/release_memory_occupation"):
        assert (await http.post(path)).status_code == 404


# --- engines' faults --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "content_type"),
    [
        (200, b"<html>", "text/html"),
        (200, b"<html>", "application/json"),
        (200, b"", "application/json"),
        (200, b'{"text": "torn', "application/json"),
        (200, b"{}", "text/plain"),
        (200, b"data: {}\n\n", "text/event-stream"),
        (204, b"", "application/json"),
        (302, b"{}", "application/json"),
    ],
)
async def test_502_for_an_answer_outside_the_protocol(
    world: Plane, http: httpx.AsyncClient, status: int, body: bytes, content_type: str
) -> None:
    behaviour = world.engines[0].behaviour
    behaviour.status, behaviour.body, behaviour.content_type = status, body, content_type
    response = await http.post("/generate", json={"text": "x"})
    assert response.status_code == 502
    assert error_of(response)["type"] == "bad_upstream"
    assert "127.0.0.1" not in response.text, "callers don't learn where engines are"
    assert len(world.engines[0].received) == 1


async def test_502_for_json_that_the_role_can_not_read(world: Plane, http: httpx.AsyncClient) -> None:
    world.engines[0].behaviour.body = b'{"choices": []}'
    assert (await http.post("/generate", json={"messages": MESSAGES})).status_code == 502


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engines_error_is_passed_through(
    world: Plane, http: httpx.AsyncClient, path: str, stream: bool
) -> None:
    behaviour = world.engines[0].behaviour
    behaviour.status, behaviour.body, behaviour.content_type = (
        422,
        b'{"its": "own"}',
        "application/problem+json",
    )
    response = await http.post(
        path,
        json={"text": "x", "stream": stream}
        if path == "/generate"
        else {"messages": MESSAGES, "stream": stream},
    )
    assert (response.status_code, response.content) == (422, b'{"its": "own"}')
    assert response.headers["content-type"] == "application/problem+json"


async def test_504_for_a_body_that_does_not_arrive(world: Plane) -> None:
    host, port = world.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
    assert b" 504 " in await asyncio.wait_for(reader.readline(), 5)
    writer.close()


async def test_a_role_that_breaks_is_a_500_without_its_words() -> None:
    class Broken(Plugin):
        def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
            raise LookupError("a secret")

    role = PlainRole(plugin=Broken())
    async with (
        plane(role) as broken,
        httpx.AsyncClient(base_url=broken.url, timeout=10, verify=False) as caller,
    ):
        response = await caller.post("/generate", json={"text": "x"})
    assert response.status_code == 500
    assert error_of(response)["type"] == "internal_error"
    assert "secret" not in response.text


# --- what it tells about itself ---------------------------------------------------------


async def test_models_lists_the_logical_ones(world: Plane, http: httpx.AsyncClient) -> None:
    world.publish(models={"a": model_entry("a"), "b": model_entry("b")}, default_model="a")
    listing = (await http.get("/v1/models")).json()
    assert listing["object"] == "list"
    assert [model["id"] for model in listing["data"]] == ["a", "b"]


async def test_health_is_ready_only_if_every_model_resolves(world: Plane, http: httpx.AsyncClient) -> None:
    response = await http.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ready", "models": {"m": "READY"}})
    asleep = model_entry("b", ["http://h:1"], state=ReplicaState.SLEEPING)
    world.publish(models={"a": model_entry("a", world.urls), "b": asleep}, default_model="a")
    response = await http.get("/health")
    assert response.status_code == 503
    assert response.json()["models"] == {"a": "READY", "b": "SLEEPING"}
    assert "b" in response.json()["reason"]
    assert (await http.post("/generate", json={"text": "x"})).status_code == 200, "the other model serves on"


async def test_engines_is_schema_2_and_conditional(world: Plane, http: httpx.AsyncClient) -> None:
    response = await http.get("/engines")
    snapshot = parse_snapshot(response.json())
    assert response.headers["etag"] == f'"{snapshot.etag}"'
    for condition in (response.headers["etag"], f'W/"x", W/{response.headers["etag"]}', "*"):
        again = await http.get("/engines", headers={"If-None-Match": condition})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == response.headers["etag"]
    assert (await http.get("/engines", headers={"If-None-Match": '"other:1"'})).status_code == 200
    assert (await http.get("/engines", params={"schema": "2"})).status_code == 200
    assert world.engines[0].received == [], "no worker was asked"


async def test_a_long_poll_answers_with_the_change(world: Plane, http: httpx.AsyncClient) -> None:
    etag = (await http.get("/engines")).headers["etag"]
    waiting = asyncio.create_task(http.get("/engines", params={"wait_s": "60", "since": etag.strip('"')}))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    changed = world.publish(ReplicaState.SLEEPING)
    response = await asyncio.wait_for(waiting, 5)
    assert response.headers["etag"] == f'"{changed.etag}"'
    stale = await http.get("/engines", params={"wait_s": "60", "since": etag})
    assert stale.headers["etag"] == f'"{changed.etag}"', (
        "what is already known to have changed is not waited for"
    )


async def test_a_long_poll_is_bounded(world: Plane, http: httpx.AsyncClient) -> None:
    etag = (await http.get("/engines")).headers["etag"]
    response = await http.get("/engines", params={"wait_s": "3600"}, headers={"If-None-Match": etag})
    assert response.status_code == 304
    assert (await http.get("/engines", params={"wait_s": "3600"})).status_code == 200, (
        "nothing known, no wait"
    )


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"wait_s": "soon"}, "wait_s"),
        ({"wait_s": "-1"}, "wait_s"),
        ({"wait_s": "nan"}, "wait_s"),
        ({"wait_s": "inf"}, "wait_s"),
        ({"schema": "3"}, "schema"),
        ({"schema": "1"}, "schema"),
    ],
)
async def test_400_for_a_wrong_discovery_question(
    http: httpx.AsyncClient, params: dict[str, str], field: str
) -> None:
    response = await http.get("/engines", params=params)
    assert response.status_code == 400
    assert error_of(response)["field"] == field


async def test_metrics_count_by_model_and_status(world: Plane, http: httpx.AsyncClient) -> None:
    await http.post("/generate", json={"text": "x"})
    await http.post("/generate", json={"text": "x", "model": "nobody"})
    label = 'rolecall_gateway_requests_total{model="%s",role="critic",status="%s"}'
    assert await metric(http, label % ("m", 200)) == 1
    assert await metric(http, label % ("", 400)) == 1
    assert await metric(http, 'rolecall_gateway_request_seconds_count{model="m",role="critic"}') == 1
    assert await metric(http, "rolecall_gateway_in_flight") == 0


@pytest.mark.parametrize(
    "asleep", [{"state": ReplicaState.SLEEPING}, {"urls": []}], ids=["sleeps", "no replica"]
)
async def test_metrics_count_what_a_model_could_not_answer_under_its_name(
    world: Plane, http: httpx.AsyncClient, asleep: dict[str, Any]
) -> None:
    world.publish(**asleep)
    assert (await http.post("/generate", json={"text": "x"})).status_code == 503
    count = 'rolecall_gateway_requests_total{model="m",role="critic",status="503"}'
    assert await metric(http, count) == 1


async def test_metrics_count_who_was_not_let_in() -> None:
    settings = GatewaySettings(bearer_tokens=("right",), max_head_bytes=1000, max_requests_per_caller=1)
    async with plane(CRITIC, settings=settings) as world, httpx.AsyncClient(base_url=world.url) as http:
        assert (await http.post("/generate", json={"text": "x"})).status_code == 401
        assert (await http.get("/metrics")).status_code == 401
        http.headers["Authorization"] = "Bearer right"
        assert (await http.get("/health", headers={"x": "y" * 1000})).status_code == 431
        waits = asyncio.create_task(http.get("/engines", params={"wait_s": "1", "since": await etag(http)}))
        statuses: list[int] = []
        while 429 not in statuses:
            statuses.append((await http.get("/health")).status_code)
        world.publish()
        await waits
        label = 'rolecall_gateway_requests_total{model="",role="critic",status="%s"}'
        assert await metric(http, label % 401) == 2
        assert await metric(http, label % 431) == 1
        assert await metric(http, label % 429) == 1
        assert await metric(http, "rolecall_gateway_request_seconds_count") == 0, "they took no time"


async def etag(http: httpx.AsyncClient) -> str:
    return (await http.get("/engines")).headers["etag"].strip('"')


# --- a role's own endpoints -------------------------------------------------------------


async def test_a_role_may_add_endpoints_and_answer_standard_ones_by_query(http: httpx.AsyncClient) -> None:
    response = await http.post("/grow/3")
    assert (response.status_code, response.json()) == (202, {"role": "critic", "grown": "3"})
    assert (await http.get("/health", params={"schema": "1"})).json() == {"old": "critic"}
    assert (await http.get("/health", params={"schema": "2"})).json()["status"] == "ready"
    refused = await http.post("/grow/0")
    assert (refused.status_code, error_of(refused)["field"]) == (400, "amount")


@pytest.mark.parametrize(
    "endpoints",
    [
        [Endpoint(method="GET", path="/health", handler=_old_health)],
        [Endpoint(method="post", path="/generate", handler=_grow)],
        [
            Endpoint(method="GET", path="/own", handler=_grow),
            Endpoint(method="GET", path="/own", handler=_grow),
        ],
    ],
)
def test_a_role_can_not_hide_what_is_served(endpoints: list[Endpoint]) -> None:
    class Greedy(Plugin):
        def endpoints(self) -> Sequence[Endpoint]:
            return endpoints

    role = PlainRole(plugin=Greedy())
    with pytest.raises(PluginContractError, match="already served"):
        build_gateway(role, SnapshotSource(_NoReader()), GatewaySettings())


class _NoReader:
    async def read(self, etag: str | None, wait_s: float) -> None:
        raise AssertionError

    async def aclose(self) -> None: ...


# --- access -----------------------------------------------------------------------------


async def test_a_token_guards_every_route() -> None:
    guarded = plane(CRITIC, settings=GatewaySettings(bearer_tokens=("s3cret",)))
    async with guarded as world, httpx.AsyncClient(base_url=world.url, timeout=10, verify=False) as http:
        chat = {"messages": MESSAGES}
        for path in ("/engines", "/health", "/metrics", "/v1/models", "/nowhere", "/grow/1"):
            assert (await http.get(path)).status_code == 401
        for path in ("/generate", *CHATS, "/grow/1"):
            assert (await http.post(path, json=chat)).status_code == 401
        assert world.engines[0].received == []
        right = {"Authorization": "Bearer s3cret"}
        assert (await http.post("/generate", headers=right, json={"text": "x"})).status_code == 200
