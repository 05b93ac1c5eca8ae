"""Every transport on real sockets: sent once, never replayed, stale connections unnoticed."""

from __future__ import annotations

import asyncio
import gzip
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from rolecall.client.http1_transport import Http1Transport
from rolecall.client.httpx_transport import HttpxTransport
from rolecall.client.transport import ConnectError, Outgoing, Transport, end_to_end, header, media_type
from rolecall.errors import UpstreamError
from rolecall.testing.asgi_server import serving


async def echo(request: Request) -> Response:
    body = await request.body()
    lines = [f"{name}: {value}" for name, value in request.headers.items()]
    return PlainTextResponse("\n".join([request.method, *lines, body.decode()]))


async def redirect(request: Request) -> Response:
    return RedirectResponse("/echo", status_code=307)


APP = Starlette(
    routes=[Route("/echo", echo, methods=["GET", "POST"]), Route("/redirect", redirect, methods=["POST"])]
)


def post(url: str, body: bytes = b"{}") -> Outgoing:
    return Outgoing(method="POST", url=url, headers=[(b"x-test", b"1")], body=body)


async def answer(transport: Transport, request: Outgoing) -> tuple[int, bytes]:
    incoming = await transport.send(request)
    try:
        return incoming.status, b"".join([chunk async for chunk in incoming.chunks()])
    finally:
        await incoming.aclose()


@pytest.fixture(params=[HttpxTransport, Http1Transport], ids=["httpx", "http1"])
def make(request: pytest.FixtureRequest) -> type[Any]:
    return request.param


@pytest.fixture
async def transport(make: type[Any]) -> AsyncIterator[Transport]:
    transport = make(max_concurrency=4)
    yield transport
    await transport.aclose()


@asynccontextmanager
async def raw_server(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A TCP server with its own idea of HTTP."""
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    async with server:
        yield f"http://{host}:{port}"


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return head + await reader.readexactly(length)


async def test_it_sends_what_it_is_given_and_nothing_of_its_own(transport: Transport) -> None:
    async with serving(APP) as url:
        status, body = await answer(transport, post(f"{url}/echo", b'{"a": 1}'))
    assert status == 200
    names = {line.split(":")[0] for line in body.decode().splitlines()[1:-1]}
    assert names == {"host", "content-length", "x-test"}
    assert body.endswith(b'{"a": 1}')


async def test_it_follows_no_redirect(transport: Transport) -> None:
    async with serving(APP) as url:
        assert (await answer(transport, post(f"{url}/redirect")))[0] == 307


async def test_a_proxy_in_the_environment_catches_nothing(
    make: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    transport = make(max_concurrency=1)
    async with serving(APP) as url:
        assert (await answer(transport, post(f"{url}/echo")))[0] == 200
    await transport.aclose()


async def test_a_port_nobody_listens_on_is_told_apart(transport: Transport) -> None:
    async with raw_server(_hang_up) as url:
        pass
    with pytest.raises(ConnectError) as failure:
        await transport.send(post(url))
    assert failure.value.refused


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize(
    "fate", ["reset after the request", "close after the request", "torn head", "torn body"]
)
async def test_a_lost_answer_is_an_error_and_the_request_was_sent_once(
    transport: Transport, fate: str
) -> None:
    requests: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await read_request(reader))
        if fate == "torn head":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-le")
        elif fate == "torn body":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort")
        await writer.drain()
        if fate.startswith("reset"):
            writer.transport.abort()
        writer.close()

    async with raw_server(handle) as url:
        with pytest.raises(UpstreamError):
            await answer(transport, post(url))
        await asyncio.sleep(0.05)
    assert len(requests) == 1


async def test_a_connection_that_the_server_closed_while_idle_is_no_error(transport: Transport) -> None:
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()  # without having announced it

    async with raw_server(handle) as url:
        for _ in range(20):
            assert await answer(transport, post(url)) == (200, b"{}")
            await asyncio.sleep(0.002)
    assert connections == 20


async def test_idle_connections_are_given_up_before_a_server_would(make: type[Any]) -> None:
    """With uvicorn's own idle limit; no request may meet a connection that is being closed."""
    transport = make(max_concurrency=4, keepalive_s=0.3)
    async with serving(APP, timeout_keep_alive=1) as url:
        for pause_s in (0, 0.25, 0.35, 1.0):
            await asyncio.sleep(pause_s)
            assert (await answer(transport, post(f"{url}/echo")))[0] == 200
    await transport.aclose()


def test_by_default_idle_connections_are_given_up_before_uvicorn_would(make: type[Any]) -> None:
    default = inspect.signature(make).parameters["keepalive_s"].default
    assert default < uvicorn.Config(APP).timeout_keep_alive


async def test_connections_are_used_again(transport: Transport) -> None:
    peers: set[str] = set()

    async def peer(request: Request) -> Response:
        peers.add(f"{request.client}")
        return PlainTextResponse("")

    async with serving(Starlette(routes=[Route("/", peer, methods=["POST"])])) as url:
        for _ in range(10):
            await answer(transport, post(f"{url}/"))
    assert len(peers) == 1


async def test_more_requests_than_turns_wait_and_all_succeed(make: type[Any]) -> None:
    """Waiting for a turn uses up no connect time, and no more than that many are under way."""
    transport = make(max_concurrency=10, connect_timeout_s=0.5)
    now = most = 0

    async def slow(request: Request) -> Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.1)
        now -= 1
        return PlainTextResponse("ok")

    async with serving(Starlette(routes=[Route("/", slow, methods=["POST"])])) as url:
        answers = await asyncio.gather(*(answer(transport, post(f"{url}/")) for _ in range(80)))
    await transport.aclose()
    assert set(answers) == {(200, b"ok")}
    assert most <= 10


async def test_a_cancelled_request_gives_its_turn_back(make: type[Any]) -> None:
    transport = make(max_concurrency=1)
    stuck = asyncio.Event()

    async def never(request: Request) -> Response:
        await stuck.wait()
        return PlainTextResponse("")

    app = Starlette(routes=[Route("/never", never, methods=["POST"]), *APP.routes])
    async with serving(app) as url:
        waiting = asyncio.create_task(transport.send(post(f"{url}/never")))
        await asyncio.sleep(0.05)
        waiting.cancel()
        assert (await asyncio.wait_for(answer(transport, post(f"{url}/echo")), 5))[0] == 200
        stuck.set()
    await transport.aclose()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_nothing_is_sent_again_on_a_connection_that_broke(transport: Transport, method: str) -> None:
    """Also not a GET, which HTTP would allow; the second request of each connection is not answered."""
    requests = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await reader.readuntil(b"\r\n\r\n")
        requests += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await reader.readuntil(b"\r\n\r\n")
        requests += 1
        writer.transport.abort()

    async with raw_server(handle) as url:
        request = Outgoing(method=method, url=url, headers=[], body=b"")
        assert await answer(transport, request) == (200, b"{}")
        with pytest.raises(UpstreamError):
            await answer(transport, request)
        await asyncio.sleep(0.05)
    assert requests == 2


async def test_bodies_arrive_as_they_are_compressed_or_not(transport: Transport) -> None:
    packed = gzip.compress(b"tokens" * 100)

    async def compressed(request: Request) -> Response:
        return Response(packed, headers={"content-encoding": "gzip", "X-Mixed": "1"})

    async with serving(Starlette(routes=[Route("/", compressed, methods=["POST"])])) as url:
        incoming = await transport.send(post(f"{url}/"))
        assert header(incoming.headers, b"content-encoding") == b"gzip"
        assert header(incoming.headers, b"x-mixed") == b"1"
        assert b"".join([chunk async for chunk in incoming.chunks()]) == packed
        await incoming.aclose()


async def test_large_bodies_and_other_alphabets_arrive_whole(transport: Transport) -> None:
    body = b"x" * (3 * 2**20)
    headers = [(b"x-key", "schlüssel".encode())]
    seen: list[bytes] = []

    async def take(request: Request) -> Response:
        seen.append(dict(request.headers.raw)[b"x-key"])
        seen.append(await request.body())
        return Response(status_code=204)

    async with serving(Starlette(routes=[Route("/a b", take, methods=["POST"])])) as url:
        request = Outgoing(method="POST", url=f"{url}/a%20b", headers=headers, body=body)
        status, _ = await answer(transport, request)
    assert status == 204
    assert seen == ["schlüssel".encode(), body]


async def test_a_stream_comes_in_the_pieces_in_which_it_was_sent(transport: Transport) -> None:
    """One byte is passed on before the next is there."""
    more = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for byte in b"data":
            writer.write(b"1\r\n%c\r\n" % byte)
            await writer.drain()
            await more.wait()
            more.clear()
        writer.write(b"0\r\n\r\n")
        writer.close()

    async with raw_server(handle) as url:
        incoming = await transport.send(post(url))
        pieces: list[bytes] = []
        async for piece in incoming.chunks():
            pieces.append(piece)
            more.set()
        await incoming.aclose()
    assert pieces == [b"d", b"a", b"t", b"a"]


async def test_closing_an_answer_early_cuts_the_connection(transport: Transport) -> None:
    ended = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx")
        if not await reader.read():
            ended.set()
        writer.close()

    async with raw_server(handle) as url:
        incoming = await transport.send(post(url))
        await anext(incoming.chunks())
        await incoming.aclose()
        await incoming.aclose()
        await asyncio.wait_for(ended.wait(), 5)


def test_what_speaks_of_one_hop_does_not_cross_it() -> None:
    headers = [
        (b"connection", b"close, X-Once"),
        (b"connection", b"x-twice"),
        (b"x-once", b"1"),
        (b"x-twice", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"te", b"trailers"),
        (b"upgrade", b"h2c"),
        (b"keep-alive", b"1"),
        (b"x-request-id", b"r"),
        (b"host", b"h"),
    ]
    assert end_to_end(headers, without=frozenset({b"host"})) == [(b"x-request-id", b"r")]


def test_a_media_type_is_told_without_parameters_in_lower_case() -> None:
    headers = [(b"content-type", b"Text/Event-Stream; charset=utf-8")]
    assert media_type(headers) == "text/event-stream"
    assert header(headers, b"etag") is None
    assert media_type([]) == ""
