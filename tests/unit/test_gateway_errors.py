"""What callers are told: of every error the right status and shape, of none where anything runs."""

from __future__ import annotations

import json

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolecall import errors as shared
from rolecall.discovery.registry import Published
from rolecall.discovery.source import SnapshotSource
from rolecall.errors import (
    DeadlineError,
    ModelUnavailableError,
    PayloadError,
    RegistryUnavailableError,
    RequestError,
    UpstreamError,
    UpstreamStatusError,
)
from rolecall.gateway import errors as gateway_errors
from rolecall.gateway.app import build_gateway
from rolecall.gateway.errors import error_response
from rolecall.gateway.settings import GatewaySettings
from rolecall.testing.asgi_server import serving
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import Plane, plane
from rolecall.testing.scripted_engine import Behaviour

SECRET = "http://10.1.2.3:8000"
PATHS = ("/generate", "/v1/chat/completions")


def all_errors() -> list[RequestError]:
    """One of every class that a gateway may answer, as it is raised where addresses are known."""
    made = {
        PayloadError: PayloadError("text: must be text", field="text"),
        ModelUnavailableError: ModelUnavailableError("model 'm' is SLEEPING", retry_after_s=2.5),
        UpstreamStatusError: UpstreamStatusError(422, b'{"its": "own"}', f"{SECRET} answered 422"),
    }
    named = {**vars(shared), **vars(gateway_errors)}.values()
    kinds = [kind for kind in named if isinstance(kind, type) and issubclass(kind, RequestError)]
    words = f"refused by {SECRET}: actor ab12 on node 10.1.2.3 died"
    return [made[kind] if kind in made else kind(words) for kind in dict.fromkeys(kinds)]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("error", all_errors(), ids=lambda error: type(error).__name__)
def test_every_error_has_its_status_and_the_paths_shape(error: RequestError, path: str) -> None:
    response = error_response(error, path)
    assert response.status_code == error.status
    body = json.loads(bytes(response.body))
    if isinstance(error, UpstreamStatusError):
        assert body == {"its": "own"}
        return
    assert set(body) == {"error"}
    keys = set(body["error"])
    assert (
        keys == {"message", "type", "param", "code"}
        if path.startswith("/v1")
        else keys >= {"type", "message"}
    )
    assert ("retry-after" in response.headers) == (error.status in (429, 503))


@pytest.mark.parametrize(
    "kind", [UpstreamError, DeadlineError, RegistryUnavailableError], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("path", PATHS)
def test_what_may_name_an_address_is_told_in_other_words(kind: type[RequestError], path: str) -> None:
    response = error_response(kind(f"{SECRET} on node 10.1.2.3"), path)
    assert b"10.1.2.3" not in bytes(response.body)


# --- the whole gateway, whatever goes wrong -------------------------------------------------------

ROLE = PlainRole()


def addresses(world: Plane) -> list[str]:
    return ["127.0.0.1", *(url.rsplit(":", 1)[1] for url in world.urls)]


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(body=b"<html>", content_type="text/html"),
        Behaviour(body=b'{"torn'),
        Behaviour(status=302),
        Behaviour(status=204, body=b""),
        Behaviour(stuck=True),
        Behaviour(rest_of_stream=b""),
    ],
    ids=["html", "torn", "redirect", "empty", "deadline", "stream"],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_no_fault_of_an_engine_tells_where_it_is(behaviour: Behaviour, stream: bool, path: str) -> None:
    settings = GatewaySettings(request_timeout_s=0.2)
    async with (
        plane(ROLE, settings=settings) as world,
        httpx.AsyncClient(base_url=world.url, timeout=10, verify=False) as http,
    ):
        world.engines[0].behaviour = behaviour
        request = {"text": "x", "messages": [{"role": "user", "content": "x"}], "stream": stream}
        answer = await http.post(path, json=request)
        seen = f"{answer.headers} {answer.text}"
        assert [found for found in addresses(world) if found in seen.replace(world.url, "")] == []


async def test_an_engine_that_is_gone_is_not_named() -> None:
    async with (
        plane(ROLE) as world,
        httpx.AsyncClient(base_url=world.url, timeout=10, verify=False) as http,
    ):
        world.publish(urls=["http://127.0.0.1:9", "http://no-such-host.invalid:80"])
        for path in PATHS:
            for key in "abcdefgh":
                request = {"text": "x", "messages": [{}]}
                answer = await http.post(path, json=request, headers={"X-SMG-Routing-Key": key})
                assert answer.status_code == 502
                assert not [found for found in ("127.0.0.1", ":9", "no-such-host") if found in answer.text]


async def test_headers_of_an_engine_that_lead_to_it_stay_behind() -> None:
    async def answer(request: Request) -> Response:
        leading = {
            "location": SECRET,
            "content-location": SECRET,
            "alt-svc": 'h2="10.1.2.3:8000"',
            "server": "10.1.2.3",
            "set-cookie": "home=10.1.2.3",
        }
        return JSONResponse({}, 503, {**leading, "x-took-ms": "5"})

    engine = Starlette(routes=[Route("/generate", answer, methods=["POST"])])
    async with (
        serving(engine) as url,
        plane(ROLE) as world,
        httpx.AsyncClient(base_url=world.url, timeout=10, verify=False) as http,
    ):
        world.publish(urls=[url])
        answer = await http.post("/generate", json={"text": "x"})
    assert (answer.status_code, answer.headers["x-took-ms"]) == (503, "5")
    assert "10.1.2.3" not in str(answer.headers)


class Broken:
    """A registry whose every answer names an address."""

    def __init__(self, answer: Published | RegistryUnavailableError) -> None:
        self._answer = answer

    async def read(self, etag: str | None, wait_s: float) -> Published | None:
        if isinstance(self._answer, RegistryUnavailableError):
            raise self._answer
        return self._answer

    async def aclose(self) -> None: ...


@pytest.mark.parametrize(
    "answer",
    [
        RegistryUnavailableError(f"the registry actor can't be reached: node 10.1.2.3 died ({SECRET})"),
        Published(etag="x", body=json.dumps({"role": SECRET})),
    ],
    ids=["dead", "not valid"],
)
async def test_a_registry_that_is_away_is_not_named(
    answer: Published | RegistryUnavailableError, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = build_gateway(ROLE, SnapshotSource(Broken(answer)), GatewaySettings())
    async with (
        serving(gateway) as url,
        httpx.AsyncClient(base_url=url, timeout=10, verify=False) as http,
    ):
        answers = [await http.get(path) for path in ("/engines", "/health", "/v1/models")]
        answers += [await http.post(path, json={"text": "x", "messages": [{}]}) for path in PATHS]
    for told in answers:
        assert told.status_code == 503
        assert told.headers["retry-after"] == "1"
        assert "10.1.2.3" not in told.text
    assert "10.1.2.3" in caplog.text or "role" in caplog.text, "the log has it"
