"""Streams and callers that leave, on real sockets: bytes untouched, nothing left running, no false end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import httpx
import pytest

from rolecall.engines.replica_state import ReplicaState
from rolecall.gateway.settings import GatewaySettings
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import Plane, plane
from rolecall.testing.scripted_answers import tokens_of

MESSAGES = [{"role": "user", "content": "2 + 2?"}]


CRITIC = PlainRole()
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture
async def world() -> AsyncIterator[Plane]:
    async with plane(CRITIC, settings=GatewaySettings(request_timeout_s=1.0)) as running:
        yield running


@pytest.fixture
async def http(world: Plane) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=world.url, timeout=10, verify=False) as client:
        yield client


class Caller:
    """A caller on a bare socket, who can read byte by byte and leave at any moment."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def post(cls, world: Plane, path: str, payload: dict[str, Any]) -> Caller:
        host, port = world.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(payload).encode()
        writer.write(
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )
        await writer.drain()
        return cls(reader, writer)

    async def first_event(self) -> None:
        await asyncio.wait_for(self.reader.readuntil(b"\n\n"), 5)

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), 5)

    def leave(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def engine_that_writes(
    world: Plane, *pieces: bytes, reset: bool = False, hold: bool = False
) -> AsyncIterator[list[bytes]]:
    """Put an engine in the world that answers with raw bytes; yields the paths it was asked for."""
    paths: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        paths.append(head.split()[1])
        if paths[-1] == b"/abort_request":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if hold:
            await reader.read(100_000)
            await reader.read()
        if reset:
            writer.transport.abort()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        world.publish(urls=[url], generation=world.revision + 1)
        yield paths
    finally:
        server.close()


async def metric(http: httpx.AsyncClient, line: str) -> float:
    lines = (await http.get("/metrics")).text.splitlines()
    return next((float(found.rsplit(" ", 1)[1]) for found in lines if found.startswith(line)), 0.0)


async def in_flight_is(http: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(5):
        while await metric(http, "rolecall_gateway_in_flight") != count:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.01)


# --- whole streams ----------------------------------------------------------------------


async def test_an_event_stream_arrives_as_it_was_sent(world: Plane, http: httpx.AsyncClient) -> None:
    response = await http.post("/generate", json={"text": "x", "stream": True})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-rolecall-engine"] == "m/replica-0"
    events = [event.removeprefix("data: ") for event in response.text.strip().split("\n\n")]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["output_ids"] == tokens_of("x", 4)


async def test_a_chat_stream_arrives_too(world: Plane, http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/chat/completions", json={"messages": MESSAGES, "stream": True})
    assert response.text.endswith("data: [DONE]\n\n")
    assert response.text.count("chat.completion.chunk") == 4


async def test_an_event_is_passed_on_before_the_next_one_exists(world: Plane) -> None:
    gate = world.engines[0].behaviour.gate = asyncio.Event()
    caller = await Caller.post(world, "/generate", {"text": "x", "stream": True})
    await caller.first_event()
    assert len(world.engines[0].running) == 1
    gate.set()
    await asyncio.wait_for(caller.reader.readuntil(b"[DONE]"), 5)
    caller.leave()


async def test_bytes_are_the_same_however_they_are_cut(world: Plane, http: httpx.AsyncClient) -> None:
    stream = (
        b'data: {"a":1}\r\n\r\n: comment\n\ndata: two\ndata: lines\n\n'
        b"event: x\ndata: \xc3\xa4\n\ndata: [DONE]\n\n"
    )
    inner = range(1, len(stream))
    random = Random(7)
    for cuts in [[], list(inner), *(sorted(random.sample(inner, random.randint(1, 40))) for _ in range(20))]:
        parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        pieces = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
        async with engine_that_writes(world, HEAD, *pieces, b"0\r\n\r\n"):
            assert (await http.post("/generate", json={"stream": True})).content == stream, cuts


# --- failures ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [HEAD],
        [HEAD, b"0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"],
    ],
    ids=["no head", "head only", "no event", "no stream"],
)
async def test_a_failure_before_the_first_event_is_a_502(
    world: Plane, http: httpx.AsyncClient, pieces: list[bytes]
) -> None:
    async with engine_that_writes(world, *pieces, reset=True) as paths:
        response = await http.post("/generate", json={"text": "x", "stream": True})
        assert response.status_code == 502
        assert paths.count(b"/generate") == 1
    await in_flight_is(http, 0)


async def test_a_failure_after_the_first_event_never_looks_like_the_end(
    world: Plane, http: httpx.AsyncClient
) -> None:
    async with engine_that_writes(world, HEAD, b"9\r\ndata: 1\n\n\r\n", reset=True) as paths:
        caller = await Caller.post(world, "/generate", {"text": "x", "stream": True})
        answer = await caller.rest()
        assert b"data: 1\n\n" in answer
        assert not answer.endswith(b"0\r\n\r\n")
        assert paths == [b"/generate"]
    await in_flight_is(http, 0)
    assert await metric(http, 'rolecall_gateway_requests_total{model="m",role="critic",status="502"}') == 1


async def test_a_deadline_in_mid_stream_cuts_and_aborts(world: Plane, http: httpx.AsyncClient) -> None:
    engine = world.engines[0]
    engine.behaviour.gate = asyncio.Event()
    caller = await Caller.post(world, "/generate", {"text": "x", "stream": True})
    answer = await caller.rest()
    assert not answer.endswith(b"0\r\n\r\n")
    await asyncio.wait_for(engine.until_running(0), 5)
    assert set(engine.aborts) == {engine.received[0].payload["rid"]}
    await in_flight_is(http, 0)


# --- callers that leave -----------------------------------------------------------------


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_a_caller_that_leaves_takes_its_work_at_the_engine_with_it(
    world: Plane, http: httpx.AsyncClient, path: str, stream: bool
) -> None:
    engine = world.engines[0]
    engine.behaviour.stuck = not stream
    engine.behaviour.gate = asyncio.Event()
    caller = await Caller.post(world, path, {"text": "x", "messages": MESSAGES, "stream": stream})
    await asyncio.wait_for(engine.until_running(1), 5)
    if stream:
        await caller.first_event()
    assert await metric(http, "rolecall_gateway_in_flight") == 1
    caller.leave()
    await asyncio.wait_for(engine.until_running(0), 5)
    assert set(engine.aborts) == {engine.received[0].payload["rid"]}
    await in_flight_is(http, 0)
    assert len(engine.received) == 1
    assert await metric(http, 'rolecall_gateway_requests_total{model="m",role="critic",status="499"}') == 1


async def test_a_request_counts_until_its_engine_confirms(world: Plane, http: httpx.AsyncClient) -> None:
    async with engine_that_writes(world, HEAD, b"9\r\ndata: 1\n\n\r\n", hold=True) as paths:
        caller = await Caller.post(world, "/generate", {"text": "x", "stream": True})
        await caller.first_event()
        caller.leave()
        async with asyncio.timeout(5):
            while b"/abort_request" not in paths:  # noqa: ASYNC110 - a foreign engine
                await asyncio.sleep(0.01)
        assert await metric(http, "rolecall_gateway_in_flight") == 1, "answered is not yet done"
        await in_flight_is(http, 0)
        assert paths.count(b"/generate") == 1


async def test_leaving_while_the_model_wakes_sends_nothing(world: Plane) -> None:
    world.publish(ReplicaState.SLEEPING)
    caller = await Caller.post(world, "/generate", {"text": "x"})
    caller.leave()
    await asyncio.sleep(0.05)
    assert world.engines[0].received == []


async def test_a_finished_request_is_never_aborted(world: Plane, http: httpx.AsyncClient) -> None:
    for stream in (False, True):
        for _ in range(5):
            caller = await Caller.post(world, "/generate", {"text": "x", "stream": stream})
            await asyncio.wait_for(caller.reader.readuntil(b"[DONE]" if stream else b"meta_info"), 5)
            caller.leave()
    for _ in range(5):
        await http.post("/generate", json={"text": "x"})
    await asyncio.wait_for(world.engines[0].until_running(0), 5)
    await in_flight_is(http, 0)
    unary = [received for received in world.engines[0].received if not received.payload.get("stream")]
    assert not {received.payload["rid"] for received in unary} & set(world.engines[0].aborts)
