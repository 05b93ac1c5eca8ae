"""The wire under a gateway: an answer is whole or seen to break off; what a caller may cost is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
import pytest
from attrs import evolve
from uvicorn.server import ServerState

from rolecall.serving.protocol import Http1Protocol, Limits
from rolecall.testing.caller_line import App, CallerLine, answer, configured

LIMITS = Limits()
POST = b"POST /generate HTTP/1.1\r\nhost: x\r\n"
ASK = POST + b"content-length: 2\r\n\r\n{}"
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"

# --- what is written ----------------------------------------------------------------------


def saying(*messages: dict[str, Any]) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        for message in messages:
            await send(message)

    return app


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def part(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def written(app: App, data: bytes = GET) -> CallerLine:
    line = CallerLine(app=app)
    await line.feed(data)
    return line


async def test_an_answer_of_known_length_is_one_write_and_keeps_the_connection() -> None:
    line = await written(saying(start((b"content-length", b"2")), part(b"ok")))
    assert line.wire.written == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    assert not line.wire.over


async def test_an_answer_of_unknown_length_is_chunked() -> None:
    line = await written(saying(start(), part(b"a", more=True), part(b"", more=True), part(b"bc")))
    assert line.wire.written.endswith(b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n")
    assert not line.wire.over


async def test_to_http_1_0_it_lasts_until_the_connection_ends() -> None:
    app = saying(start(), part(b"a", more=True), part(b"bc"))
    line = await written(app, b"GET / HTTP/1.0\r\n\r\n")
    assert line.wire.written == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nabc"
    assert line.wire.closed


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_has_none(status: int) -> None:
    line = await written(saying(start(status=status), part(b"oops")))
    assert line.wire.written.endswith(b"\r\n\r\n")
    assert b"encoding" not in line.wire.written
    head = await written(
        saying(start((b"content-length", b"4")), part(b"four")), GET.replace(b"GET", b"HEAD")
    )
    assert head.wire.written.endswith(b"content-length: 4\r\n\r\n")


async def test_a_head_is_not_kept_back_for_its_body() -> None:
    hold = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        await hold.wait()
        await send(part(b"x"))

    line = await written(app)
    assert line.wire.written.endswith(b"chunked\r\n\r\n")
    hold.set()
    await line.feed()
    assert line.wire.written.endswith(b"1\r\nx\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "header",
    [
        (b"x-a", b"b\r\nx-evil: 1"),
        (b"x-a", b"b\nx-evil: 1"),
        (b"x-a", b"\x00"),
        (b"x-a\r\nx-evil", b"1"),
        (b"x a", b"1"),
        (b"", b"1"),
    ],
)
async def test_a_header_that_would_say_more_than_one_thing_is_a_500(header: tuple[bytes, bytes]) -> None:
    line = await written(saying(start(header), part(b"ok")))
    assert line.wire.written.startswith(b"HTTP/1.1 500 ")
    assert b"evil" not in line.wire.written


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [part(b"x")],
        [start((b"content-length", b"x"))],
    ],
    ids=["nothing", "no head", "no number"],
)
async def test_an_app_that_does_not_begin_an_answer_is_a_500(messages: list[dict[str, Any]]) -> None:
    line = await written(saying(*messages))
    assert line.wire.written.startswith(b"HTTP/1.1 500 ")
    assert line.wire.closed


@pytest.mark.parametrize(
    "messages",
    [
        [start(), part(b"a", more=True)],
        [start((b"content-length", b"2")), part(b"a", more=True)],
        [start((b"content-length", b"2")), part(b"a")],
        [start((b"content-length", b"2")), part(b"abc")],
        [start(), part(b"a", more=True), start()],
    ],
    ids=["chunks", "length", "too short", "too long", "two heads"],
)
async def test_an_answer_that_is_left_open_never_looks_complete(messages: list[dict[str, Any]]) -> None:
    line = await written(saying(*messages))
    assert line.wire.closed
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(line.wire.written)
    client.receive_data(b"")
    assert isinstance(client.next_event(), h11.Response)
    with pytest.raises(h11.RemoteProtocolError):
        list(iter(client.next_event, h11.EndOfMessage()))


async def test_an_answer_that_only_the_connections_end_would_tell_is_reset() -> None:
    config = configured(saying(start(), part(b"a", more=True)))
    server = await asyncio.get_running_loop().create_server(
        lambda: Http1Protocol(config, ServerState(), {}), "127.0.0.1", 0
    )
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


# --- callers that send ahead, leave or dawdle -----------------------------------------------


async def test_requests_that_were_sent_ahead_are_answered_in_turn() -> None:
    holds = [asyncio.Event() for _ in range(3)]
    begun: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["raw_path"])
        await holds[len(begun) - 1].wait()
        await send(start((b"content-length", b"2")))
        await send(part(scope["raw_path"]))

    line = CallerLine(app=app)
    await line.feed(b"".join(GET.replace(b"/ ", b"/%d " % number) for number in range(3)))
    for number in range(3):
        assert begun == [b"/%d" % at for at in range(number + 1)]
        holds[number].set()
        await line.feed()
    assert [answer[:2] for answer in line.wire.written.split(b"\r\n\r\n")[1:]] == [b"/0", b"/1", b"/2"]


@pytest.mark.parametrize("ahead", [GET * 100, CHUNKED + b"10000\r\n" + b"x" * 65536 + b"\r\n1\r\nx\r\n"])
async def test_who_sends_too_much_ahead_is_cut(ahead: bytes) -> None:
    hold = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await hold.wait()

    line = CallerLine(app=app)
    await line.feed(GET + ahead)
    assert line.wire.cut
    await line.lose()
    hold.set()
    await line.feed()


async def test_no_error_is_written_into_an_answer_that_has_begun() -> None:
    hold = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        await send(part(b"a", more=True))
        await hold.wait()

    line = CallerLine(app=app)
    await line.feed(GET + b"\x00")
    assert line.wire.cut
    assert line.wire.written.count(b"HTTP/1.1") == 1
    await line.lose()
    hold.set()
    await line.feed()


@pytest.mark.parametrize("ahead", [b"", GET, POST], ids=["nothing", "a request", "half a request"])
@pytest.mark.parametrize("how", ["lost", "half-closed"])
async def test_a_caller_that_leaves_is_seen_whatever_it_sent_ahead(ahead: bytes, how: str) -> None:
    """Who ends its side only might still read; engines do not work on a guess."""
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            seen.append(message["type"])
        seen.append("left")
        await send(start())

    line = CallerLine(app=app)
    await line.feed(ASK + ahead)
    assert seen == ["http.request"]
    if how == "half-closed":
        line.protocol.eof_received()
        assert line.wire.cut
    await line.lose()
    assert seen[:2] == ["http.request", "left"]
    assert line.wire.written == b""


async def test_a_body_waits_for_the_app_and_the_caller_for_both() -> None:
    go = asyncio.Event()
    taken: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            await go.wait()
            message = await receive()
            taken.append(len(message["body"]))
            more = message["more_body"]
        await answer(send)

    line = CallerLine(app=app)
    await line.feed(POST + b"content-length: 1000000\r\n\r\n")
    sent = 0
    while not line.wire.paused:
        await line.feed(b"x" * 10_000)
        sent += 10_000
    assert LIMITS.unread_bytes < sent <= LIMITS.unread_bytes + 10_000
    go.set()
    while sent < 1_000_000:
        await line.feed(b"x" * 10_000)
        sent += 10_000
        assert not line.wire.paused
    assert sum(taken) == 1_000_000
    assert line.wire.written.endswith(b"ok\r\n0\r\n\r\n")


async def test_a_body_that_ends_while_it_waits_leaves_nothing_paused() -> None:
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await answer(send)

    line = CallerLine(app=app)
    await line.feed(POST + b"content-length: 100000\r\n\r\n" + b"x" * 100_000)
    assert not line.wire.paused
    go.set()
    await line.feed(GET)
    assert line.wire.written.count(b"HTTP/1.1 200") == 2


async def test_an_answer_waits_for_a_caller_that_does_not_read() -> None:
    sent: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        while len(sent) < 100:
            await send(part(b"x" * 1000, more=True))
            sent.append(1000)
        await send(part(b""))

    line = CallerLine(app=app)
    line.protocol.pause_writing()
    await line.feed(GET)
    assert sent == []
    line.protocol.resume_writing()
    await line.feed()
    assert len(sent) == 100


async def test_what_is_poured_is_framed_as_what_is_sent_until_there_is_no_room() -> None:
    had_room: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        call = send.__self__
        with pytest.raises(RuntimeError, match="wrong time"):
            call.pour(b"early")
        await send(start())
        had_room.append(call.pour(b"ab"))
        line.protocol.pause_writing()
        had_room.append(call.pour(b"c"))
        await call.room()
        had_room.append(call.pour(b"d"))
        await send(part(b""))
        with pytest.raises(RuntimeError, match="wrong time"):
            call.pour(b"late")

    line = CallerLine(app=app)
    await line.feed(GET)
    assert had_room == [True, False]
    line.protocol.resume_writing()
    await line.feed()
    assert had_room == [True, False, True]
    assert line.wire.written.endswith(b"\r\n\r\n2\r\nab\r\n1\r\nc\r\n1\r\nd\r\n0\r\n\r\n")


async def test_what_is_poured_for_nobody_is_thrown_away_and_waits_for_nobody() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        line.protocol.pause_writing()
        await send.__self__.room()
        poured.append(send.__self__.pour(b"x"))

    poured: list[bool] = []
    line = CallerLine(app=app)
    await line.feed(GET)
    line.protocol.connection_lost(None)
    await line.feed()
    assert poured == [True]
    assert b"x\r\n" not in line.wire.written.partition(b"\r\n\r\n")[2]


async def test_what_is_left_of_an_unwanted_body_is_thrown_away_and_the_connection_ends() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)

    line = CallerLine(app=app)
    await line.feed(POST + b"content-length: 100000\r\n\r\n{")
    assert b"connection: close" in line.wire.written
    assert (line.wire.ended, line.wire.closed) == (True, False)
    await line.feed(*(b"x" * 10_000 for _ in range(10)), GET)
    assert line.wire.written.count(b"HTTP/1.1") == 1


async def test_a_caller_that_asks_before_it_sends_is_told_to() -> None:
    line = CallerLine()
    await line.feed(POST + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
    assert line.wire.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    await line.feed(b"{}")
    assert [asked.body for asked in line.asked] == [b"{}"]
    assert line.wire.written.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize(
    "flood",
    [b"x-a: " + b"y" * 4096, b"x-a: b\r\n" * 512, b"/" * 4096],
    ids=["one long value", "many headers", "a long target"],
)
async def test_a_head_without_end_is_refused(flood: bytes) -> None:
    line = CallerLine()
    await line.feed(b"GET /" if flood.startswith(b"/") else POST)
    fed = 0
    while not line.wire.over:
        await line.feed(flood)
        fed += len(flood)
        assert fed <= LIMITS.head_bytes + len(flood)
    assert line.wire.written.startswith(b"HTTP/1.1 431 ")


async def test_the_limit_of_a_head_is_exact_however_it_comes() -> None:
    room = LIMITS.head_bytes - len("/generate") - len(b"host: x\r\n") - len(b"a: \r\n")
    for size, status in ((room, 200), (room + 1, 431)):
        line = CallerLine()
        await line.feed(b"GET /generate HTTP/1.1\r\nhost: x\r\na: " + b"y" * size + b"\r\n\r\n")
        assert line.wire.written.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("begin", [b"2\r\n{}\r\n0\r\n", b"2;"], ids=["trailers", "an extension of a chunk"])
async def test_what_stands_around_chunks_is_bounded_too(begin: bytes) -> None:
    line = CallerLine()
    await line.feed(CHUNKED + begin)
    fed = 0
    while not line.wire.over:
        await line.feed(b"a" * 4096)
        fed += 4096
        assert fed <= LIMITS.head_bytes + 4096


# --- time ---------------------------------------------------------------------------------

HASTY = Limits(head_s=0.05, body_s=0.05, close_s=0.05)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - timers are what is tested
            await asyncio.sleep(0.005)


async def drip(line: CallerLine, data: bytes, every_s: float = 0.01) -> None:
    """Send byte by byte until the connection ends."""
    for at in range(len(data)):
        if line.wire.over:
            return
        await line.feed(data[at : at + 1])
        await asyncio.sleep(every_s)


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"", None), (b"GE", 408), (POST, 408), (POST + b"content-length: 2\r\n\r\n{", 408)],
    ids=["nothing", "half a line", "half a head", "half a body"],
)
async def test_a_caller_that_stops_in_the_middle_is_not_waited_for(data: bytes, status: int | None) -> None:
    line = CallerLine(limits=HASTY)
    await line.feed(data)
    await until(lambda: line.wire.over)
    assert line.wire.written[9:12] == (b"" if status is None else b"%d" % status)
    assert line.asked == []


async def test_a_head_byte_by_byte_has_no_more_time_than_any() -> None:
    line = CallerLine(limits=HASTY)
    await drip(line, POST * 10)
    assert line.wire.written.startswith(b"HTTP/1.1 408 ")


async def test_the_second_request_of_a_connection_has_no_more_time_either() -> None:
    line = CallerLine(limits=HASTY)
    await line.feed(GET)
    await drip(line, POST * 10)
    assert line.wire.written.count(b"HTTP/1.1 200 ") == 1
    assert line.wire.written.count(b"HTTP/1.1 408 ") == 1


async def test_a_body_that_keeps_coming_has_all_the_time_that_its_app_gives() -> None:
    line = CallerLine(limits=HASTY)
    await line.feed(POST + b"content-length: 20\r\n\r\n")
    await drip(line, b"x" * 20)
    assert [asked.body for asked in line.asked] == [b"x" * 20]


async def test_an_app_has_all_the_time_it_wants() -> None:
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await answer(send)

    lines = [CallerLine(app=app, limits=evolve(HASTY, unread_bytes=1)) for _ in range(2)]
    await lines[0].feed(GET)
    await lines[1].feed(POST + b"content-length: 4\r\n\r\nxx")
    assert lines[1].wire.paused
    await asyncio.sleep(0.15)
    assert not any(line.wire.over for line in lines)
    go.set()
    for line in lines:
        await line.feed()
        assert line.wire.written.startswith(b"HTTP/1.1 200 ")


async def test_an_idle_connection_is_given_up() -> None:
    line = CallerLine(limits=evolve(HASTY, head_s=30.0))
    line.protocol._keep_alive_s = 0.05  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    await line.feed(GET)
    assert not line.wire.over
    await until(lambda: line.wire.closed)


async def test_who_does_not_take_the_last_of_an_answer_is_cut() -> None:
    """The transport waits for ever to flush; not so the connection."""
    line = CallerLine(limits=HASTY)
    await line.feed(POST + b"connection: close\r\ncontent-length: 2\r\n\r\n{}")
    assert line.wire.closed
    await until(lambda: line.wire.cut)


async def test_shutting_down_ends_idle_connections_and_lets_answers_end() -> None:
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await answer(send)

    idle, busy = CallerLine(), CallerLine(app=app)
    await busy.feed(GET)
    idle.protocol.shutdown()
    busy.protocol.shutdown()
    assert idle.wire.closed
    assert not busy.wire.over
    go.set()
    await busy.feed()
    assert b"connection: close" in busy.wire.written
    assert busy.wire.closed
