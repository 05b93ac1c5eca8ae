"""Requests that fail, over real sockets: at the gateway and at the client that goes to engines itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from rolecall.api import DeadlineError, ModelUnavailableError, PayloadError, UpstreamCall, UpstreamError
from rolecall.client.inference_client import InferenceClient
from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import RegistryUnavailableError
from rolecall.gateway.settings import GatewaySettings
from rolecall.testing.plain_role import ByKey, PassesOn, PlainRole
from rolecall.testing.plane import Plane, plane

BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
}
PATHS = pytest.mark.parametrize("path", BODIES)


class Picky(PassesOn):
    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        if not isinstance(payload.get("text"), str):
            raise PayloadError("text: must be text", field="text")
        return super().adapt_generate(payload)


@pytest.fixture
async def world() -> AsyncIterator[Plane]:
    """One engine behind its gateway; requests end after half a second."""
    settings = GatewaySettings(request_timeout_s=0.5)
    async with plane(PlainRole(plugin=Picky()), settings=settings) as running:
        yield running


@pytest.fixture
async def http(world: Plane) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=world.url, timeout=10, verify=False) as client:
        yield client


@pytest.fixture
async def direct(world: Plane) -> AsyncIterator[InferenceClient]:
    """A client that trusts what it knows of the engines for an hour."""
    async with InferenceClient(
        world.url, policy=ByKey, timeout_s=0.5, ttl_s=3600, discovery_patience_s=0
    ) as client:
        yield client


async def in_flight(http: httpx.AsyncClient) -> float:
    """How many requests the gateway counts as being at an engine."""
    metrics = (await http.get("/metrics")).text
    return sum(map(float, re.findall(r"^rolecall_gateway_in_flight\S* (\S+)$", metrics, re.MULTILINE)))


async def ask(direct: InferenceClient, path: str) -> Any:
    body = BODIES[path]
    return await (direct.chat(body["messages"]) if "messages" in body else direct.generate(body))


@PATHS
async def test_registry_unavailable(
    world: Plane, http: httpx.AsyncClient, direct: InferenceClient, path: str
) -> None:
    """The gateway stays alive and says that it is not ready; generation is answered 503."""
    world.registry.invalidate("critic")
    refused = [await http.post(path, json=BODIES[path])]
    refused += [await http.get(page) for page in ("/engines", "/v1/models", "/health")]
    assert [response.status_code for response in refused] == [503] * 4
    assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
    assert (await http.get("/metrics")).status_code == 200, "alive"
    with pytest.raises(RegistryUnavailableError):
        await ask(direct, path)
    assert world.engines[0].received == []


@pytest.mark.parametrize("state", [state for state in ReplicaState if state is not ReplicaState.READY])
@PATHS
async def test_model_sleeping_draining_failed(
    world: Plane, http: httpx.AsyncClient, direct: InferenceClient, path: str, state: ReplicaState
) -> None:
    """No request reaches an engine; the answer is 503 with `Retry-After`, and names the state."""
    world.publish(state)
    response = await http.post(path, json=BODIES[path])
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert state in response.json()["error"]["message"]
    with pytest.raises(ModelUnavailableError, match=state):
        await ask(direct, path)
    assert world.engines[0].received == []


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{",
    ],
    ids=["nothing", "in the head", "in the body"],
)
@PATHS
async def test_upstream_transport_failure(
    world: Plane, http: httpx.AsyncClient, direct: InferenceClient, path: str, sent: bytes
) -> None:
    """502, however much of the answer had come; the engine was asked once."""
    asked = 0

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        writer.write(sent)
        await writer.drain()
        writer.transport.abort()

    server = await asyncio.start_server(reset, "127.0.0.1", 0)
    async with server:
        world.publish(urls=[f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"], generation=2)
        assert (await http.post(path, json=BODIES[path])).status_code == 502
        assert asked == 1
        with pytest.raises(UpstreamError):
            await ask(direct, path)
        assert asked == 2
    assert await in_flight(http) == 0
    # The port is free now: nobody answers at all.
    assert (await http.post(path, json=BODIES[path])).status_code == 502
    with pytest.raises(UpstreamError):
        await ask(direct, path)


@PATHS
async def test_request_deadline(
    world: Plane, http: httpx.AsyncClient, direct: InferenceClient, path: str
) -> None:
    """504; nothing of the request is left at the engine."""
    engine = world.engines[0]
    engine.behaviour.stuck = True
    response, failure = await asyncio.gather(
        http.post(path, json=BODIES[path]), ask(direct, path), return_exceptions=True
    )
    assert isinstance(response, httpx.Response)
    assert response.status_code == 504
    assert "deadline" in response.json()["error"].values()
    assert isinstance(failure, DeadlineError)
    await asyncio.wait_for(engine.until_running(0), 5)
    assert set(engine.aborts) == {request.payload["rid"] for request in engine.received}
    assert len(engine.received) == 2


async def timed_out(direct: InferenceClient, world: Plane) -> None:
    with pytest.raises(DeadlineError):
        await direct.generate({"text": "x"}, timeout_s=0.1)


async def cancelled(direct: InferenceClient, world: Plane) -> None:
    call = asyncio.create_task(direct.generate({"text": "x"}))
    await asyncio.wait_for(world.engines[0].until_running(1), 5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.parametrize("end", [timed_out, cancelled])
async def test_post_timeout_or_cancellation(
    world: Plane, http: httpx.AsyncClient, direct: InferenceClient, end: Callable[..., Any]
) -> None:
    """The caller's discovery cache is dropped, the POST is not sent again, the engine is told to abort."""
    await direct.generate({"text": "warm"})
    engine = world.engines[0]
    engine.behaviour.stuck = True
    await end(direct, world)
    await asyncio.wait_for(engine.until_running(0), 5)
    (first, second) = [request.payload["rid"] for request in engine.received]
    assert set(engine.aborts) == {second} != {first}
    # Without the drop it would go on asking the engine that it knows, for an hour.
    world.publish(ReplicaState.SLEEPING)
    with pytest.raises(ModelUnavailableError):
        await direct.generate({"text": "x"})
    assert len(engine.received) == 2


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/generate", b"{torn", "body"),
        ("/generate", b'{"text": 5}', "text"),
        ("/generate", b'{"text": "x", "model": "nobody"}', "model"),
        ("/generate", b'{"text": "x", "route_key": "nowhere"}', "route_key"),
        ("/v1/chat/completions", b"{}", "messages"),
        ("/v1/chat/completions", b'{"messages": [{}], "model": "nobody"}', "model"),
    ],
)
async def test_bad_payload_model_route_key(
    world: Plane, http: httpx.AsyncClient, direct: InferenceClient, path: str, body: bytes, field: str
) -> None:
    """400, and the answer names the field; no request reaches an engine."""
    response = await http.post(path, content=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error.get("field", error.get("param")) == field
    for selector in ("model", "route_key"):
        with pytest.raises(PayloadError) as refused:
            await direct.generate({"text": "x"}, **{selector: "nobody"})
        assert refused.value.field == selector
    assert world.engines[0].received == []
