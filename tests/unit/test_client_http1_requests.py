"""The HTTP/1.1 transport: what it will not send, and what it does with connections that nobody uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from rolecall.client.http1_transport import Http1Transport
from rolecall.client.transport import ConnectError, Outgoing

# --- requests ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        (b"x-a", b"b\r\nx-evil: 1"),
        (b"x-a", b"b\nx-evil: 1"),
        (b"x-a", b"b\x00"),
        (b"x-a\r\nx-evil", b"1"),
        (b"x a", b"1"),
        (b"", b"1"),
        (b"x-a:", b"1"),
        (b"Content-Length", b"5"),
        (b"transfer-encoding", b"chunked"),
        (b"Host", b"elsewhere"),
        (b"connection", b"close"),
        (b"expect", b"100-continue"),
    ],
)
async def test_a_header_that_would_say_more_than_one_thing_is_not_sent(header: tuple[bytes, bytes]) -> None:
    transport = Http1Transport(max_concurrency=1)
    request = Outgoing(method="POST", url="http://127.0.0.1:9/", headers=[header], body=b"{}")
    with pytest.raises(ConnectError, match="can't be sent"):
        await transport.send(request)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/",
        "http://",
        "http://user:secret@h/",
        "http://h/a b",
        "http://h/\r\nx: y",
        "http://h:notaport/",
        "http://h/ä",
        "http://[::1",
    ],
)
async def test_what_is_no_url_of_an_engine_is_not_asked(url: str) -> None:
    with pytest.raises(ConnectError):
        await Http1Transport(max_concurrency=1).send(Outgoing(method="POST", url=url, headers=[], body=b""))


@pytest.mark.parametrize("method", ["HEAD", "CONNECT", "post", "GET\r\nx: y"])
async def test_methods_whose_answers_are_framed_otherwise_are_not_sent(method: str) -> None:
    request = Outgoing(method=method, url="http://h/", headers=[], body=b"")
    with pytest.raises(ConnectError, match="is not sent"):
        await Http1Transport(max_concurrency=1).send(request)


@asynccontextmanager
async def keeping_open() -> AsyncGenerator[tuple[str, set[asyncio.StreamWriter]]]:
    """A server that answers at once and keeps its connections; yields its URL and those that are open."""
    open_now: set[asyncio.StreamWriter] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now.add(writer)
        while (await reader.read(65536)) != b"":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        open_now.discard(writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", open_now


async def test_after_a_burst_idle_connections_are_given_up_by_themselves() -> None:
    transport = Http1Transport(max_concurrency=50, keepalive_s=0.05)
    async with keeping_open() as (url, open_now):

        async def ask() -> None:
            incoming = await transport.send(Outgoing(method="POST", url=url, headers=[], body=b"{}"))
            async for _ in incoming.chunks():
                pass
            await incoming.aclose()

        await asyncio.gather(*(ask() for _ in range(50)))
        assert open_now
        async with asyncio.timeout(5):
            while open_now:  # noqa: ASYNC110 - seen at the other end only
                await asyncio.sleep(0.01)
        await transport.aclose()


async def test_a_closed_transport_asks_nobody() -> None:
    transport = Http1Transport(max_concurrency=1)
    await transport.aclose()
    await transport.aclose()
    with pytest.raises(ConnectError, match="closed"):
        await transport.send(Outgoing(method="POST", url="http://127.0.0.1:9/", headers=[], body=b""))


def test_it_runs_on_another_event_loop_than_asyncios() -> None:
    """uvloop's transports are no ``asyncio.Transport``; servers run on it where it is installed."""
    uvloop = pytest.importorskip("uvloop")

    async def ask_twice() -> list[bytes]:
        transport = Http1Transport(max_concurrency=1)
        answers: list[bytes] = []
        async with asyncio.timeout(10), keeping_open() as (url, _):
            for _ in range(2):
                exchange = transport.begin(Outgoing(method="POST", url=url, headers=[], body=b"{}"))
                await exchange.open()
                answers.append(await exchange.read())
                await exchange.aclose()
            await transport.aclose()
        return answers

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask_twice()) == [b"{}", b"{}"]
