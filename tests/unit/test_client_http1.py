"""The HTTP/1.1 connection: answers in any pieces, h11 as the oracle, and all that is framed wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import h11
import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.client import http1_connection
from rolecall.client.http1_connection import HIGH_WATER, LONG, MAX_HEAD_BYTES, Answer, Connection
from rolecall.errors import UpstreamError


class Wire(asyncio.Transport):
    """The engine's end: keeps what was written; says whether it was paused or cut."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.paused = False
        self.cut = False
        self.unsent = 0

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(list_of_data)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.cut = True

    def get_write_buffer_size(self) -> int:
        return self.unsent


@frozen
class Seen:
    """What came of an answer."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    reusable: bool


class Line:
    """A connection to a wire, and what it told its pool."""

    def __init__(self) -> None:
        self.ends: list[Connection] = []
        self.losses: list[Connection] = []
        self.wire = Wire()
        self.connection = Connection(
            "http://h:1", room=memoryview(bytearray(1)), on_end=self.ends.append, on_lost=self.losses.append
        )
        self.connection.connection_made(self.wire)

    def ask(self) -> Answer:
        return self.connection.send(b"POST / HTTP/1.1\r\n\r\n", b"", "http://h:1/generate")

    def feed(self, data: bytes) -> None:
        if not self.wire.cut:  # a transport that was cut delivers nothing
            self.connection.data_received(data)

    def close(self) -> None:
        if not self.wire.cut:
            self.connection.eof_received()
            self.connection.connection_lost(None)


async def answer_to(pieces: Sequence[bytes], *, close: bool = True) -> Seen:
    """Ask, deliver the pieces, then close; raises what the caller would see."""
    line = Line()
    answer = line.ask()
    for piece in pieces:
        line.feed(piece)
    reusable = bool(line.ends) and line.connection.usable
    if close:
        line.close()
    async with asyncio.timeout(1):
        await answer.head()
        body = await answer.rest()
    return Seen(answer.status, answer.headers, body, reusable)


def cut_up(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The data in pieces that end at the cuts."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


def h11_says(data: bytes) -> Seen | None:
    """What h11 makes of an answer that ends with the connection; None if it finds it wrong or unfinished."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/", headers=[("host", "h"), ("content-length", "0")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    client.receive_data(b"")
    status, headers, body = 0, [], b""
    try:
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                status, headers = event.status_code, list(event.headers)
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif not isinstance(event, h11.InformationalResponse):
                return None
    except h11.RemoteProtocolError:
        return None
    return Seen(status, headers, body, False)


# --- proper answers ---------------------------------------------------------------------

names = st.sampled_from([b"content-type", b"x-a", b"server", b"date"])
values = st.sampled_from([b"application/json", b"", b"a b\tc", b"\xe9", b"x" * 300])
bodies = st.binary(max_size=200)
cuts = st.lists(st.integers(0, 10_000), max_size=12)
damages = st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=3)), min_size=1, max_size=4)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """Proper answers with each kind of framing, after any number of informational ones."""
    before = b"".join(
        b"HTTP/1.1 %d Wait\r\n\r\n" % draw(st.sampled_from([100, 102, 103]))
        for _ in range(draw(st.integers(0, 2)))
    )
    lines = [b"HTTP/1.1 %d Reason" % draw(st.sampled_from([200, 201, 400, 404, 503]))]
    lines += [b"%b: %b" % (draw(names), draw(values)) for _ in range(draw(st.integers(0, 4)))]
    body: bytes = draw(bodies)
    match draw(st.sampled_from(["length", "chunked", "close"])):
        case "length":
            lines.append(b"content-length: %d" % len(body))
        case "chunked":
            lines.append(b"transfer-encoding: chunked")
            size = draw(st.integers(1, 50))
            parts = [body[at : at + size] for at in range(0, len(body), size)]
            trailer = draw(st.sampled_from([b"", b"x-trailer: 1\r\n"]))
            body = (
                b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n" + trailer + b"\r\n"
            )
        case _:
            lines.append(b"connection: close")
    return before + b"\r\n".join(lines) + b"\r\n\r\n" + body


@contextmanager
def copying_up_to(size: int) -> Generator[None]:
    """Bodies of which more is left than so many bytes go past the parser."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http1_connection, "LONG", size)
        yield


@settings(max_examples=200, deadline=None)
@given(answers(), cuts, st.sampled_from([0, 20, LONG]))
async def test_a_proper_answer_is_what_h11_reads_however_it_comes(
    data: bytes, cuts: list[int], copied: int
) -> None:
    with copying_up_to(copied):
        wanted, found = h11_says(data), await answer_to(cut_up(data, cuts))
    assert wanted is not None
    assert (found.status, found.body) == (wanted.status, wanted.body)
    assert sorted(found.headers) == sorted(wanted.headers)


@settings(max_examples=300, deadline=None)
@given(answers(), damages, cuts, st.sampled_from([0, LONG]))
async def test_a_damaged_answer_is_never_read_otherwise_than_h11_reads_it(
    data: bytes, damages: list[tuple[int, bytes]], cuts: list[int], copied: int
) -> None:
    """It may be refused where h11 is more lenient; if both read it, they read the same."""
    for place, junk in damages:
        at = place % (len(data) + 1)
        data = data[:at] + junk + data[at + len(junk) :]
    try:
        with copying_up_to(copied):
            found = await answer_to(cut_up(data, cuts))
    except UpstreamError:
        return
    wanted = h11_says(data)
    if wanted is not None:
        assert (found.status, found.body) == (wanted.status, wanted.body)


@pytest.mark.parametrize("size", [1, 2, 7, 4096])
async def test_a_stream_keeps_every_byte_and_ends_only_at_its_end(size: int) -> None:
    events = b"".join(b'data: {"n": %d}\n\n' % n for n in range(200))
    data = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"".join(
        b"%x\r\n%b\r\n" % (len(part), part) for part in (events[:1000], events[1000:])
    )
    line = Line()
    answer = line.ask()
    for at in range(0, len(data), size):
        line.feed(data[at : at + size])
    await answer.head()
    taken = b""
    while len(taken) < len(events):
        taken += await answer.piece()
    assert taken == events
    assert not answer.ended
    line.feed(b"0\r\n\r\n")
    assert (await answer.piece(), answer.ended, line.connection.usable) == (b"", True, True)


async def test_a_slow_taker_pauses_the_engine_and_loses_nothing() -> None:
    line = Line()
    answer = line.ask()
    whole = 8 * HIGH_WATER
    line.feed(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % whole)
    sent = 0
    while not line.wire.paused:
        line.feed(b"x" * 4096)
        sent += 4096
    assert sent <= HIGH_WATER + 4096, "what is kept is bounded"
    taken = 0
    while taken < whole:
        taken += len(await answer.piece())
        while not line.wire.paused and sent < whole:
            line.feed(b"x" * 4096)
            sent += 4096
    assert (await answer.piece(), taken) == (b"", whole)
    assert line.connection.usable


async def test_an_answer_byte_by_byte_for_a_slow_taker_is_bounded_in_what_it_costs() -> None:
    """Each piece is an object: ten times its byte."""
    line = Line()
    answer = line.ask()
    line.feed(OK + b"transfer-encoding: chunked\r\n\r\n")
    sent = 0
    while not line.wire.paused:
        line.feed(b"1\r\nx\r\n" * 100)
        sent += 100
    assert sent < HIGH_WATER / 50
    assert await answer.piece() == b"x" * sent, "what has come is taken at once"
    assert not line.wire.paused


async def test_an_engine_that_ends_its_side_is_not_waited_for_to_read_the_request() -> None:
    """The transport would wait until the rest of the request is sent, and the caller for the transport."""
    line = Line()
    answer = line.ask()
    line.wire.unsent = 1
    line.feed(OK + b"content-length: 5\r\n\r\nhi")
    line.connection.eof_received()
    assert line.wire.cut
    await answer.head()
    assert await answer.piece() == b"hi"
    with pytest.raises(UpstreamError, match="ended before"):
        await answer.piece()


async def test_an_answer_before_the_whole_request_was_sent_is_the_connections_last() -> None:
    line = Line()
    answer = line.ask()
    line.wire.unsent = 1
    line.feed(OK + b"content-length: 2\r\n\r\nhi")
    assert await answer.rest() == b"hi"
    assert line.wire.cut
    assert (line.ends, line.losses) == ([], [line.connection])


async def test_trailers_are_no_headers() -> None:
    line = Line()
    answer = line.ask()
    line.feed(OK + b"transfer-encoding: chunked\r\n\r\n2;a=b\r\nhi\r\n0\r\nx-late: 1\r\n\r\n")
    assert await answer.rest() == b"hi"
    assert answer.headers == [(b"transfer-encoding", b"chunked")]
    assert line.connection.usable


async def test_whoever_stops_waiting_cuts_nothing() -> None:
    line = Line()
    answer = line.ask()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await answer.head()
    line.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab")
    await answer.head()
    assert await answer.piece() == b"ab"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await answer.piece()
    line.feed(b"cd")
    assert (await answer.rest(), line.connection.usable) == (b"cd", True)


# --- handing over -----------------------------------------------------------------------

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def pouring(answer: Answer, take: Callable[[bytes], bool]) -> asyncio.Task[bool]:
    task = asyncio.create_task(answer.pour(take))
    await asyncio.sleep(0)
    return task


async def test_a_body_is_handed_over_as_it_arrives_a_read_at_a_time() -> None:
    line, taken = Line(), list[bytes]()
    answer = line.ask()
    line.feed(CHUNKED + b"1\r\na\r\n")

    def take(piece: bytes) -> bool:
        taken.append(piece)
        return True

    task = await pouring(answer, take)
    assert taken == [b"a"], "what had come already"
    line.feed(b"1\r\nb\r\n2\r\ncd\r\n3")
    assert taken == [b"a", b"bcd"], "at once, without a turn of the event loop"
    line.feed(b"\r\nefg\r\n0\r\n\r\n")
    assert await task
    assert (b"".join(taken), answer.ended, line.connection.usable) == (b"abcdefg", True, True)


@pytest.mark.parametrize("framing", ["chunks", "length"])
async def test_whoever_has_enough_gets_no_more_until_asking_again_and_the_engine_waits(framing: str) -> None:
    line, taken, room = Line(), bytearray(), False
    answer = line.ask()
    whole = 8 * HIGH_WATER
    chunks = framing == "chunks"
    line.feed(CHUNKED if chunks else OK + b"content-length: %d\r\n\r\n" % whole)

    def take(piece: bytes) -> bool:
        taken.extend(piece)
        return room

    def feed() -> None:
        line.feed((b"1000\r\n%b\r\n" if chunks else b"%b") % (b"x" * 4096))

    task = await pouring(answer, take)
    sent = 0
    while not line.wire.paused:
        feed()
        sent += 4096
    assert len(taken) == 4096
    assert sent <= HIGH_WATER + 2 * 4096, "what is kept is bounded"
    assert not await task
    assert not await answer.pour(take), "all that was kept, and enough again"
    assert len(taken) == sent
    assert not line.wire.paused
    room = True
    task = await pouring(answer, take)
    for _ in range(sent, whole, 4096):
        feed()
    if chunks:
        line.feed(b"0\r\n\r\n")
    assert await task
    assert (len(taken), line.connection.usable) == (whole, True)


async def test_a_body_that_breaks_off_is_handed_over_as_far_as_it_came() -> None:
    line, taken = Line(), list[bytes]()
    task = await pouring(line.ask(), lambda piece: taken.append(piece) is None)
    line.feed(CHUNKED + b"2\r\nhi\r\nno size\r\n")
    with pytest.raises(UpstreamError, match="no proper HTTP"):
        await task
    assert taken == [b"hi"]


async def test_whoever_stops_being_handed_over_loses_nothing() -> None:
    line, taken = Line(), list[bytes]()
    answer = line.ask()
    task = await pouring(answer, lambda piece: taken.append(piece) is None)
    line.feed(CHUNKED + b"1\r\na\r\n")
    task.cancel()
    await asyncio.wait({task})
    line.feed(b"1\r\nb\r\n0\r\n\r\n")
    assert taken == [b"a"]
    assert await answer.rest() == b"b"


# --- wrong answers ----------------------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "data",
    [
        OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nhi!",
        OK + b"content-length: 2, 3\r\n\r\nhi!",
        OK + b"content-length: -2\r\n\r\nhi",
        OK + b"content-length: +2\r\n\r\nhi",
        OK + b"content-length: 0x2\r\n\r\nhi",
        OK + b"content-length: 99999999999999999999999\r\n\r\nhi",
        OK + b"content-length : 2\r\n\r\nhi",
        OK + b" content-length: 2\r\n\r\nhi",
        OK + b"a: b\r\n folded\r\ncontent-length: 2\r\n\r\nhi",
        OK + b"a: b\x00c\r\ncontent-length: 2\r\n\r\nhi",
        OK + b"a: b\rc: d\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\ncontent-length: 2\n\nhi",
        OK + b"transfer-encoding: chunked\r\n\r\n-1\r\nhi\r\n0\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\n+2\r\nhi\r\n0\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\n2 \r\nhi\r\n0\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\n2\r\nhi0\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\n2\nhi\n0\n\n",
        OK + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nhi\r\n0\r\n\r\n",
        OK + b"transfer-encoding: gzip\r\n\r\nhi",
        OK + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        OK + b"transfer-encoding: identity\r\ncontent-length: 2\r\n\r\nhi",
        OK + b"transfer-encoding: chunked\r\n\r\n2;a\nb\r\nhi\r\n0\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\ncontent-length: 9\r\n\r\n",
        OK + b"content-length: 2\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nabc",
        b"HTTP/1.1 99999 What\r\n\r\n",
        b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"220 mail.example ESMTP\r\n",
        b"",
        b"HTTP/1.1 200",
        OK + b"content-length: 5\r\n\r\nhi",
        OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ],
)
async def test_an_answer_that_is_framed_wrongly_is_refused(data: bytes) -> None:
    """In one piece and byte by byte; what contradicts itself is how one answer is smuggled into another."""
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))]):
        for copied in (0, LONG):
            with copying_up_to(copied), pytest.raises(UpstreamError, match="http://h:1/generate"):
                await answer_to(pieces)


async def test_a_second_answer_behind_the_first_is_nobodys() -> None:
    """The first one stands; the connection, on which the second would be the next caller's, does not."""
    one = OK + b"content-length: 2\r\n\r\nhi"
    seen = await answer_to([one + OK + b"content-length: 5\r\n\r\nevil!"])
    assert (seen.body, seen.reusable) == (b"hi", False)
    line = Line()
    answer = line.ask()
    line.feed(one)
    assert (await answer.rest(), line.connection.usable) == (b"hi", True)
    line.feed(OK)
    assert not line.connection.usable
    assert line.losses == [line.connection]


@pytest.mark.parametrize(
    ("data", "reusable"),
    [
        (OK + b"content-length: 2\r\n\r\nhi", True),
        (OK + b"content-length: 2\r\nconnection: close\r\n\r\nhi", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nhi", True),
        (b"HTTP/1.1 204 None\r\n\r\n", True),
        (OK + b"\r\nuntil the end", False),
    ],
)
async def test_a_connection_is_used_again_only_if_both_sides_know_where_the_answer_ended(
    data: bytes, reusable: bool
) -> None:
    assert (await answer_to([data])).reusable is reusable


@pytest.mark.parametrize(
    "flood",
    [
        b"x-a: " + b"x" * 4090,
        b"x-a: b\r\n" * 500,
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100,
    ],
    ids=["one long value", "many headers", "informational answers"],
)
async def test_a_head_without_end_is_given_up(flood: bytes) -> None:
    line = Line()
    answer = line.ask()
    line.feed(b"" if flood.startswith(b"HTTP") else OK)
    fed = 0
    while not line.wire.cut:
        line.feed(flood)
        fed += len(flood)
        assert fed <= MAX_HEAD_BYTES + len(flood)
    with pytest.raises(UpstreamError, match="no body"):
        await answer.head()


async def test_trailers_without_end_are_given_up() -> None:
    line = Line()
    line.ask()
    line.feed(OK + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n")
    fed = 0
    while not line.wire.cut:
        line.feed(b"x-a: b\r\n" * 500)
        fed += 4000
        assert fed <= MAX_HEAD_BYTES + 4000


async def test_a_large_body_in_one_piece_is_no_large_head() -> None:
    body = b"x" * (2 * MAX_HEAD_BYTES)
    seen = await answer_to([OK + b"content-length: %d\r\n\r\n" % len(body) + body])
    assert seen.body == body


@pytest.mark.parametrize("more", [b"", b"close", b"x"])
async def test_a_long_body_goes_past_the_parser_and_ends_where_it_said(more: bytes) -> None:
    """What its head said of the connection still holds; a byte behind it is the connection's end."""
    connection = b"connection: close\r\n" if more == b"close" else b""
    body = bytes(range(256)) * 200
    data = OK + connection + b"content-length: %d\r\n\r\n" % len(body) + body
    data += more if more == b"x" else b""
    line = Line()
    answer = line.ask()
    pieces = [data[at : at + 7_000] for at in range(0, len(data), 7_000)]
    for piece in pieces:
        line.feed(piece)
    assert await answer.rest() == body
    assert line.connection.usable == (not more)
    if line.connection.usable:
        again = line.ask()
        line.feed(OK + b"content-length: 2\r\n\r\nhi")
        assert (await again.rest(), line.connection.usable) == (b"hi", True)


async def test_a_long_body_that_breaks_off_is_an_error() -> None:
    line = Line()
    answer = line.ask()
    line.feed(OK + b"content-length: 100000\r\n\r\nhi")
    line.feed(b"there")
    line.connection.eof_received()
    with pytest.raises(UpstreamError, match="before the answer did"):
        await answer.rest()
