"""Streams and callers that leave, on real sockets: bytes untouched, nothing left running, no false end."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import httpx
import pytest
from attrs import define, field

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


@pytest.fixture(params=["own server", "any server"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own takes bodies past ASGI; any other, and whoever stands between, gets messages."""
    if request.param == "any server":
        monkeypatch.setattr("rolecall.gateway.caller.Call", type(None))


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
) -> AsyncGenerator[list[bytes]]:
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


SIZES = [1, 2, 3, 7, 64, 1000, 4096, 65_535, 65_537, 2**20]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("framing", ["chunks", "writes"])
async def test_bytes_are_the_same_at_every_size_of_piece(
    world: Plane, http: httpx.AsyncClient, framing: str
) -> None:
    """A byte at a time to a mebibyte: as chunks of HTTP, and as writes that end anywhere."""
    for size in SIZES:
        random = Random(size)
        events = b"".join(b"data: %b\n\n" % random.randbytes(40).hex().encode() for _ in range(8))
        # Every byte that is no line end may occur in an event.
        events += b"data: " + bytes(byte for byte in range(256) if byte not in b"\r\n") + b"\n\n"
        stream = events + b"data: " + b"x" * (2 * size if size > 1000 else 0) + b"\n\ndata: [DONE]\n\n"
        cut = [stream[at : at + size] for at in range(0, len(stream), size)]
        if framing == "chunks":
            pieces = [HEAD, *(b"%x\r\n%b\r\n" % (len(part), part) for part in cut), b"0\r\n\r\n"]
        else:
            pieces = [HEAD.replace(b"transfer-encoding: chunked\r\n", b"connection: close\r\n"), *cut]
        async with engine_that_writes(world, *pieces):
            assert (await http.post("/generate", json={"stream": True})).content == stream, size


@pytest.mark.usefixtures("server")
async def test_a_long_answer_is_the_same_and_no_json_is_a_502(world: Plane, http: httpx.AsyncClient) -> None:
    for begin in (b" \r\n", b"{", b"<"):
        rest = b"[" + b"1," * 2**17 + b"1]"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        async with engine_that_writes(world, head % (len(begin) + len(rest)) + begin, rest):
            answer = await http.post("/generate", json={"text": "x"})
            if begin == b"<":
                assert answer.status_code == 502
            else:
                assert (answer.status_code, answer.content == begin + rest) == (200, True)


# --- slow callers -----------------------------------------------------------------------

BLOCK = 2**16
MOST_HELD = 2**21
"""Bytes of Python's that a stream with a stalled caller may take: what the gateway keeps at most for either
side, and what asyncio reads at once. The kernel's buffers come on top, of which nobody has more."""


@define
class EndlessEngine:
    """Streams events as fast as they are taken, until told to end."""

    sent: int = 0
    ending: bool = False
    aborts: int = 0
    gone: asyncio.Event = field(factory=asyncio.Event)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readuntil(b"\r\n\r\n")).split()[1] == b"/abort_request":
            self.aborts += 1
            self.ending = True
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return
        event = b"data: " + b"x" * (BLOCK - 8) + b"\n\n"
        writer.write(HEAD)
        with suppress(ConnectionError):
            while not self.ending:
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
                self.sent += BLOCK
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        writer.close()
        self.gone.set()

    async def stalled(self) -> None:
        """Return when nothing more is taken."""
        sent = -1
        async with asyncio.timeout(10):
            while sent < self.sent or not sent:
                sent = self.sent
                await asyncio.sleep(0.1)


@asynccontextmanager
async def endless_engine(world: Plane) -> AsyncGenerator[EndlessEngine]:
    engine = EndlessEngine()
    server = await asyncio.start_server(engine.handle, "127.0.0.1", 0)
    async with server:
        world.publish(urls=[f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"], generation=2)
        yield engine
        engine.ending = True


@pytest.fixture
async def patient() -> AsyncIterator[Plane]:
    async with plane(CRITIC, settings=GatewaySettings(request_timeout_s=30.0)) as running:
        yield running


@pytest.mark.usefixtures("server")
async def test_a_caller_that_does_not_read_stops_its_engine_and_memory_is_bounded(patient: Plane) -> None:
    async with endless_engine(patient) as engine:
        tracemalloc.start()
        try:
            caller = await Caller.post(patient, "/generate", {"text": "x", "stream": True})
            await engine.stalled()
            held = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert held < MOST_HELD
        before = engine.sent
        taken = 0
        while taken < before + 4 * BLOCK:
            taken += len(await caller.reader.readexactly(BLOCK))
        assert engine.sent > before, "it goes on as the caller does"
        engine.ending = True
        tail = b""
        async with asyncio.timeout(10):
            while not tail.endswith(b"\n\n\r\n0\r\n\r\n"):
                tail = (tail + await caller.reader.read(BLOCK))[-16:]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("how", ["leaves", "half-closes", "is late"])
async def test_a_caller_that_does_not_read_holds_its_engine_no_longer_than_any(
    world: Plane, patient: Plane, how: str
) -> None:
    """The gateway waits for room to write, which never comes: leaving and the deadline end that, too."""
    gateway = world if how == "is late" else patient
    async with endless_engine(gateway) as engine, httpx.AsyncClient(base_url=gateway.url) as http:
        caller = await Caller.post(gateway, "/generate", {"text": "x", "stream": True})
        await engine.stalled()
        assert await metric(http, "rolecall_gateway_in_flight") == 1 or how == "is late"
        if how == "leaves":
            caller.leave()
        elif how == "half-closes":
            caller.writer.write_eof()
        await asyncio.wait_for(engine.gone.wait(), 5)
        await in_flight_is(http, 0)
        assert engine.aborts
        status = 504 if how == "is late" else 499
        ended = f'rolecall_gateway_requests_total{{model="m",role="critic",status="{status}"}}'
        assert await metric(http, ended) == 1
        caller.leave()


# --- failures ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [HEAD],
        [HEAD, b"0\r\n\r\n"],
        [HEAD, b"4\r\ndata\r\n", b"7\r\n: {}\r\n\n\r\n"[:9]],
        [HEAD, b"8\r\ndata: 1\n\r\n0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"],
    ],
    ids=["no head", "head only", "no event", "part of an event", "an event without end", "no stream"],
)
async def test_a_failure_before_the_first_event_is_a_502(
    world: Plane, http: httpx.AsyncClient, pieces: list[bytes]
) -> None:
    async with engine_that_writes(world, *pieces, reset=True) as paths:
        response = await http.post("/generate", json={"text": "x", "stream": True})
        assert response.status_code == 502
        assert paths.count(b"/generate") == 1
    await in_flight_is(http, 0)


@pytest.mark.usefixtures("server")
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


async def test_an_engine_that_ends_its_side_in_mid_stream_is_a_failure(
    world: Plane, http: httpx.AsyncClient
) -> None:
    async with engine_that_writes(world, HEAD, b"9\r\ndata: 1\n\n\r\n"):
        caller = await Caller.post(world, "/generate", {"text": "x", "stream": True})
        answer = await caller.rest()
        assert answer.endswith(b"data: 1\n\n\r\n")
    await in_flight_is(http, 0)


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_a_deadline_before_the_first_event_is_a_504_and_aborts(
    world: Plane, http: httpx.AsyncClient, stream: bool
) -> None:
    engine = world.engines[0]
    engine.behaviour.stuck = True
    response = await http.post("/generate", json={"text": "x", "stream": stream})
    assert response.status_code == 504
    await asyncio.wait_for(engine.until_running(0), 5)
    assert set(engine.aborts) == {engine.received[0].payload["rid"]}
    await in_flight_is(http, 0)


async def test_after_a_deadline_a_request_counts_until_its_engine_confirms(
    world: Plane, http: httpx.AsyncClient
) -> None:
    async with engine_that_writes(world, HEAD, b"9\r\ndata: 1\n\n\r\n", hold=True) as paths:
        caller = await Caller.post(world, "/generate", {"text": "x", "stream": True})
        await caller.rest()
        assert await metric(http, "rolecall_gateway_in_flight") == 1
        assert b"/abort_request" in paths
        await in_flight_is(http, 0)
        assert paths.count(b"/generate") == 1


@pytest.mark.usefixtures("server")
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
@pytest.mark.parametrize("how", ["leaves", "half-closes"])
async def test_a_caller_that_leaves_takes_its_work_at_the_engine_with_it(
    world: Plane, http: httpx.AsyncClient, path: str, stream: bool, how: str
) -> None:
    engine = world.engines[0]
    engine.behaviour.stuck = not stream
    engine.behaviour.gate = asyncio.Event()
    caller = await Caller.post(world, path, {"text": "x", "messages": MESSAGES, "stream": stream})
    await asyncio.wait_for(engine.until_running(1), 5)
    if stream:
        await caller.first_event()
    assert await metric(http, "rolecall_gateway_in_flight") == 1
    if how == "leaves":
        caller.leave()
    else:
        caller.writer.write_eof()
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
