"""The door over real sockets, before engines that are slow, stuck, rude or dead."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from attrs import define

from rolecall.errors import EngineError
from rolecall.guard.door import Door
from rolecall.guard.permits import DoorClosedError
from rolecall.testing.asgi_server import serving
from rolecall.testing.scripted_engine import ScriptedEngine

PROMPT = {"text": "2 + 2 =", "rid": "r1"}
STREAM = {**PROMPT, "stream": True}
Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def bound() -> socket.socket:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound


@asynccontextmanager
async def door_before(engine_url: str, *, is_open: bool = True) -> AsyncGenerator[Door]:
    door = Door(bound())
    await door.start(engine_url, "m")
    if is_open:
        door.open()
    try:
        yield door
    finally:
        await door.stop()


@define
class Scene:
    """A scripted engine, its door, and a caller of the door."""

    engine: ScriptedEngine
    door: Door
    http: httpx.AsyncClient

    async def until_quiet(self) -> None:
        """All permits back; the door is left closed."""
        self.door.close()
        await asyncio.wait_for(self.door.drained(), 10)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    engine = ScriptedEngine()
    async with (
        serving(engine.app) as url,
        door_before(url) as door,
        httpx.AsyncClient(base_url=door.url, timeout=10, trust_env=False) as http,
    ):
        yield Scene(engine, door, http)


@asynccontextmanager
async def raw_engine(handle: Handle) -> AsyncGenerator[str]:
    """An engine with its own idea of HTTP."""
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def request_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    body = await reader.readexactly(int(lengths[0].split(b":")[1])) if lengths else b""
    return head, body


async def raw_post(url: str, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request to the door and leave the answer to be read, or not."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**10)
    text = json.dumps(body).encode()
    head = f"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(text)}\r\n\r\n"
    writer.write(head.encode() + text)
    await writer.drain()
    return reader, writer


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not what():  # noqa: ASYNC110 - permits send no event
            await asyncio.sleep(0.005)


# --- what passes --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
async def test_answers_are_the_engine_s_byte_for_byte(scene: Scene, path: str, stream: bool) -> None:
    body = {"rid": "r1", "stream": stream, "text": "x", "messages": [{"role": "user", "content": "x"}]}
    engine = scene.door.upstream.base_url
    async with httpx.AsyncClient(base_url=engine, trust_env=False) as direct:
        straight = await direct.post(path, json=body)
    through = await scene.http.post(path, json=body)
    assert through.content == straight.content
    assert through.headers.multi_items() == straight.headers.multi_items()
    first, second = scene.engine.received
    assert first.body == second.body
    await scene.until_quiet()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/release_memory_occupation"),
        ("POST", "/resume_memory_occupation"),
        ("POST", "/pause_generation"),
        ("POST", "/continue_generation"),
        ("POST", "/update_weights_from_disk"),
        ("POST", "/update_weights_from_tensor"),
        ("POST", "/update_weights_from_distributed"),
        ("POST", "/init_weights_update_group"),
        ("POST", "/destroy_weights_update_group"),
        ("POST", "/load_lora_adapter"),
        ("POST", "/flush_cache"),
        ("POST", "/open_session"),
        ("PUT", "/set_internal_state"),
        ("POST", "/anything/new"),
        ("GET", "/"),
        ("GET", "/docs"),
        ("POST", "/generate/"),
        ("POST", "//generate"),
        ("POST", "/generate/../release_memory_occupation"),
        ("POST", "/generate%2f..%2frelease_memory_occupation"),
        ("POST", "/GENERATE"),
    ],
)
async def test_no_command_passes_and_the_error_names_what_does(method: str, path: str) -> None:
    """Spec: weight updates, pause, release and resume never pass."""
    reached: list[bytes] = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.readline())
        writer.close()

    async with raw_engine(engine) as url, door_before(url) as door:
        answer = await raw_answer(
            door.url, f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
        )
    assert answer.startswith(b"HTTP/1.1 404 ")
    error = json.loads(answer.split(b"\r\n\r\n")[1])["error"]
    assert "POST /generate" in error["message"]
    assert "/abort_request" in error["message"]
    assert reached == []


async def raw_answer(url: str, request: str) -> bytes:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request.encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    body = await reader.readexactly(int(length.split(b":")[1]))
    writer.close()
    return head + body


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/generate"), ("POST", "/server_info"), ("DELETE", "/health")]
)
async def test_a_wrong_method_is_told(scene: Scene, method: str, path: str) -> None:
    answer = await scene.http.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] in answer.json()["error"]["message"]
    assert scene.engine.received == []


async def test_what_speaks_of_one_hop_stays_there_and_the_rest_crosses() -> None:
    heads: list[bytes] = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await request_of(reader))[0])
        writer.write(
            b"HTTP/1.1 418 Teapot\r\ncontent-length: 2\r\nconnection: close, x-hop\r\nx-hop: 1\r\n"
            b"keep-alive: timeout=9\r\nserver: tea\r\nx-request-id: q\r\nX-Odd: \xe4\r\n\r\nno"
        )
        await writer.drain()
        writer.close()

    async with raw_engine(engine) as url, door_before(url) as door, httpx.AsyncClient() as http:
        answer = await http.post(
            f"{door.url}/generate?a=%2F&b=c",
            content=b"{}",
            headers={"x-request-id": "q", "x-smg-routing-key": "k", "connection": "x-mine", "x-mine": "1"},
        )
    assert (answer.status_code, answer.content) == (418, b"no")
    assert set(answer.headers) == {"content-length", "server", "x-request-id", "x-odd"}
    assert answer.headers.raw[-1] == (b"x-odd", b"\xe4")
    (head,) = heads
    assert head.startswith(b"POST /generate?a=%2F&b=c HTTP/1.1\r\n")
    names = {line.split(b":")[0].lower() for line in head.split(b"\r\n")[1:-2]}
    assert {b"x-request-id", b"x-smg-routing-key"} <= names
    assert not names & {b"connection", b"x-mine", b"transfer-encoding"}


async def test_bodies_of_megabytes_pass_both_ways_and_compressed_ones_stay_so() -> None:
    packed = gzip.compress(bytes(range(256)) * 2**14, compresslevel=0)
    bodies: list[bytes] = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append((await request_of(reader))[1])
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed))
        writer.write(packed)
        await writer.drain()
        writer.close()

    sent = json.dumps({"rid": "r", "input_ids": list(range(500_000))}).encode()
    async with (
        raw_engine(engine) as url,
        door_before(url) as door,
        httpx.AsyncClient() as http,
        http.stream("POST", f"{door.url}/generate", content=sent) as answer,
    ):
        got = b"".join([chunk async for chunk in answer.aiter_raw()])
    assert bodies == [sent]
    assert got == packed
    assert answer.headers["content-encoding"] == "gzip"


async def test_a_stream_passes_byte_by_byte_as_it_comes() -> None:
    events = b'data: {"text": "\xc3\xa4"}\n\ndata: [DONE]\n\n'
    more = asyncio.Event()

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for byte in events:
            writer.write(b"1\r\n%c\r\n" % byte)
            await writer.drain()
            await more.wait()
            more.clear()
        writer.write(b"0\r\n\r\n")
        writer.close()

    pieces: list[bytes] = []
    async with (
        raw_engine(engine) as url,
        door_before(url) as door,
        httpx.AsyncClient() as http,
        http.stream("POST", f"{door.url}/generate", json=STREAM) as answer,
    ):
        async for piece in answer.aiter_raw():
            pieces.append(piece)
            more.set()
    assert pieces == [bytes([byte]) for byte in events]


# --- open, close, permits -------------------------------------------------------------------


async def test_a_closed_door_refuses_work_and_lets_cancels_and_metadata_through() -> None:
    """Pitfall 20, the door's half: while the engine is paused nothing is dispatched to it."""
    reached: list[bytes] = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await request_of(reader)
        reached.append(head.split(b" ")[1])
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 27\r\n\r\n" + b'{"model_path":"m","pid":77}')
        await writer.drain()
        writer.close()

    async with (
        raw_engine(engine) as url,
        door_before(url, is_open=False) as door,
        httpx.AsyncClient(base_url=door.url) as http,
    ):
        for method, path in (
            ("POST", "/generate"),
            ("POST", "/v1/chat/completions"),
            ("POST", "/chat/completions"),
            ("POST", "/v1/completions"),
            ("GET", "/health"),
            ("GET", "/health_generate"),
        ):
            refused = await http.request(method, path)
            assert refused.status_code == 503, path
            assert int(refused.headers["retry-after"]) >= 1
            error = refused.json()["error"]
            assert "takes no requests now" in error["message"]
            assert error["type"] == ("server_error" if path.startswith(("/v1/", "/chat/")) else "unavailable")
        assert reached == [], "also a health check would make it generate"
        assert (await http.post("/abort_request", json={"rid": "r"})).status_code == 200
        assert (await http.post("/close_session", json={})).status_code == 200
        assert (await http.get("/server_info")).json() == {"model_path": "m"}
        assert reached == [b"/abort_request", b"/close_session", b"/server_info"]
        door.open()
        assert (await http.get("/health")).status_code == 200


async def test_a_closed_door_refuses_before_the_body_is_sent() -> None:
    async with door_before("http://127.0.0.1:1", is_open=False) as door:
        head = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
        assert (await asyncio.wait_for(raw_answer(door.url, head), 5)).startswith(b"HTTP/1.1 503 ")


async def test_a_permit_lasts_from_sending_to_the_end_of_the_answer(scene: Scene) -> None:
    scene.engine.behaviour.gate = asyncio.Event()
    async with scene.http.stream("POST", "/generate", json=STREAM) as answer:
        assert scene.door.permits == 1
        scene.door.close()
        draining = asyncio.create_task(scene.door.drained())
        refused = await scene.http.post("/generate", json={"text": "late"})
        assert refused.status_code == 503
        with pytest.raises(EngineError, match="1 permits are out"):
            scene.door.open()
        assert not draining.done()
        scene.engine.behaviour.gate.set()
        assert b"[DONE]" in b"".join([chunk async for chunk in answer.aiter_bytes()])
    await asyncio.wait_for(draining, 5)
    assert scene.door.permits == 0
    scene.door.open()
    assert (await scene.http.post("/generate", json=PROMPT)).status_code == 200
    assert len(scene.engine.received) == 2


async def test_a_door_opens_only_after_somebody_waited_for_its_drain(scene: Scene) -> None:
    scene.door.open()
    with pytest.raises(EngineError, match="close it first"):
        await scene.door.drained()
    scene.door.close()
    scene.door.close()
    with pytest.raises(EngineError, match="was not waited for"):
        scene.door.open()
    await scene.door.drained()
    scene.door.open()


async def test_a_door_without_an_engine_is_not_opened() -> None:
    door = Door(bound())
    with pytest.raises(EngineError, match="no engine"):
        door.open()
    await door.stop()
    await door.stop()
    with pytest.raises(EngineError, match="started once"):
        await door.start("http://127.0.0.1:1", "m")


async def test_the_address_is_held_from_the_first_moment() -> None:
    """Between reservation and serving nobody else can bind the port, and callers are not refused."""
    reserved = bound()
    reserved.listen(1)
    door = Door(reserved)
    other = socket.socket()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", int(door.url.rsplit(":", 1)[1])))
    other.close()
    waiting = asyncio.create_task(httpx.AsyncClient(timeout=10).get(f"{door.url}/health"))
    await asyncio.sleep(0.05)
    await door.start("http://127.0.0.1:1", "m")
    assert (await waiting).status_code == 503
    await door.stop()


async def test_small_writes_are_not_held_back() -> None:
    """Head and body of an answer are two writes; without this the second waits 40 ms for the first's ACK."""
    reserved = bound()
    door = Door(reserved)
    await door.start("http://127.0.0.1:1", "m")
    assert reserved.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await door.stop()


# --- callers that leave ---------------------------------------------------------------------


@pytest.mark.parametrize("body", [PROMPT, STREAM, {"text": "no id of its own"}])
async def test_a_caller_that_leaves_ends_its_request_in_the_engine(
    scene: Scene, body: dict[str, Any]
) -> None:
    """Pitfall 21: dropped in mid-answer, the engine aborts, and in flight returns to zero."""
    scene.engine.behaviour.stuck = True
    _, writer = await raw_post(scene.door.url, body)
    await scene.engine.until_running(1)
    assert scene.door.permits == 1
    writer.transport.abort()
    await asyncio.wait_for(scene.engine.until_running(0), 10)
    assert set(scene.engine.aborts) == {scene.engine.received[0].payload["rid"]}
    await scene.until_quiet()


async def test_an_abort_that_does_nothing_keeps_the_permit(scene: Scene) -> None:
    """Pitfall 21: a closed stream is no proof that the engine stopped."""
    scene.engine.behaviour.stuck = True
    scene.engine.behaviour.ignores_aborts = True
    _, writer = await raw_post(scene.door.url, PROMPT)
    await scene.engine.until_running(1)
    writer.transport.abort()
    await asyncio.wait_for(scene.engine.until_aborted(3), 10)
    assert scene.door.permits == 1
    scene.door.close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(scene.door.drained(), 0.3)
    assert len(scene.engine.received) == 1, "told to stop again and again, asked once"
    scene.engine.running["r1"].set()
    await asyncio.wait_for(scene.door.drained(), 10)


async def test_a_batch_without_ids_is_read_to_its_end(scene: Scene) -> None:
    scene.engine.behaviour.gate = asyncio.Event()
    reader, writer = await raw_post(scene.door.url, {"text": ["a", "b"], "stream": True})
    await reader.readline()
    writer.transport.abort()
    await asyncio.sleep(0.1)
    assert scene.door.permits == 1
    assert scene.engine.aborts == []
    scene.engine.behaviour.gate.set()
    await scene.until_quiet()


async def test_an_abort_sent_to_the_door_reaches_the_engine(scene: Scene) -> None:
    """Pitfall 19: the engine must see the abort, also through a closed door."""
    scene.engine.behaviour.stuck = True
    asking = asyncio.create_task(scene.http.post("/generate", json=PROMPT))
    await scene.engine.until_running(1)
    scene.door.close()
    assert (await scene.http.post("/abort_request", json={"rid": "r1"})).status_code == 200
    assert scene.engine.aborts == ["r1"]
    assert (await asking).status_code == 200
    await scene.until_quiet()


async def test_a_caller_who_leaves_while_sending_takes_no_permit(scene: Scene) -> None:
    host, port = scene.door.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    await writer.drain()
    await asyncio.sleep(0.05)
    assert scene.door.permits == 0
    writer.transport.abort()
    await scene.until_quiet()
    assert scene.engine.received == []


# --- slow callers ----------------------------------------------------------------------------


async def test_a_slow_caller_holds_the_engine_back_until_the_door_is_closed() -> None:
    """Back-pressure while open; a closed door reads on without the caller, who still gets every byte."""
    total, written = 64 * 2**20, 0

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while written < total:
            writer.write(b"x" * 2**16)
            await writer.drain()
            written += 2**16
        writer.close()

    async with raw_engine(engine) as url, door_before(url) as door:
        reader, writer = await raw_post(door.url, PROMPT)
        await reader.readuntil(b"\r\n\r\n")
        seen = -1
        while written != seen:  # until nothing moves any more
            seen = written
            await asyncio.sleep(0.3)
        assert written < total / 2, "the engine runs ahead of its caller"
        assert door.permits == 1
        door.close()
        await asyncio.wait_for(door.drained(), 30)
        assert written == total
        got = 0
        while got < total and (data := await reader.read(2**20)):
            got += len(data)
        assert got == total
        writer.close()


# --- engines that die ------------------------------------------------------------------------


async def test_an_engine_nobody_listens_for_is_502_without_its_address() -> None:
    free = bound()
    dead = f"http://127.0.0.1:{free.getsockname()[1]}"
    free.close()
    async with door_before(dead) as door, httpx.AsyncClient(base_url=door.url) as http:
        for method, path in (("POST", "/generate"), ("GET", "/health"), ("GET", "/server_info")):
            answer = await http.request(method, path)
            assert answer.status_code == 502
            assert dead.removeprefix("http://") not in answer.text
        door.close()
        await asyncio.wait_for(door.drained(), 5)


@pytest.mark.parametrize("framing", [b"content-length: 1000\r\n", b"transfer-encoding: chunked\r\n"])
async def test_an_engine_that_dies_in_mid_answer_cuts_the_caller(framing: bytes) -> None:
    """A torn answer must not look like a whole one. With the process gone, the permit is back."""
    requests = 0

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        server.close()  # the whole process goes: nobody will listen any more
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n5\r\ndata:\r\n")
        await writer.drain()
        writer.transport.abort()

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with door_before(url) as door, httpx.AsyncClient() as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post(f"{door.url}/generate", json=STREAM)
        door.close()
        await asyncio.wait_for(door.drained(), 10)
    assert requests == 1


async def test_an_answer_that_broke_off_before_a_living_engine_is_aborted_there() -> None:
    """Pitfall 21: the HTTP server gave up, the scheduler may not have; the permit waits for the abort."""
    seen: list[bytes] = []
    accept_aborts = asyncio.Event()

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await request_of(reader)
        seen.append(head.split(b" ")[1])
        if head.startswith(b"POST /abort_request") and accept_aborts.is_set():
            assert json.loads(body) == {"rid": "r1"}
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
        writer.transport.close()

    async with raw_engine(engine) as url, door_before(url) as door, httpx.AsyncClient() as http:
        assert (await http.post(f"{door.url}/generate", json=PROMPT)).status_code == 502
        await until(lambda: seen.count(b"/abort_request") >= 2)
        assert door.permits == 1
        accept_aborts.set()
        await until(lambda: door.permits == 0)
    assert seen.count(b"/generate") == 1


async def test_a_metadata_answer_that_is_none_is_502() -> None:
    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret")
        writer.close()

    async with raw_engine(engine) as url, door_before(url) as door, httpx.AsyncClient() as http:
        answer = await http.get(f"{door.url}/server_info")
    assert answer.status_code == 502
    assert "secret" not in answer.text


# --- the end -----------------------------------------------------------------------------------


async def test_a_stopped_door_cuts_everybody_and_nobody_listens() -> None:
    engine = ScriptedEngine()
    engine.behaviour.stuck = True
    async with serving(engine.app) as url:
        door = Door(bound())
        await door.start(url, "m")
        door.open()
        async with httpx.AsyncClient(base_url=door.url) as http:
            asking = [asyncio.create_task(http.post("/generate", json={"text": "x"})) for _ in range(3)]
            await engine.until_running(3)
            await asyncio.wait_for(door.stop(), 5)
            assert door.permits == 0
            for answer in await asyncio.gather(*asking, return_exceptions=True):
                assert isinstance(answer, httpx.TransportError)
            with pytest.raises(httpx.ConnectError):
                await http.get("/health")
        with pytest.raises(EngineError, match="was stopped"):
            door.open()
        with pytest.raises(DoorClosedError):
            door.begin(None, tuple)  # type: ignore[arg-type]
        await door.stop()


@pytest.mark.parametrize("noise", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01 tls", b"\r\n\r\n"])
async def test_noise_on_the_port_harms_nobody(scene: Scene, noise: bytes) -> None:
    """Routers probe with an HTTP/2 preface."""
    host, port = scene.door.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(noise)
    await writer.drain()
    assert (await scene.http.post("/generate", json=PROMPT)).status_code == 200
    writer.close()
