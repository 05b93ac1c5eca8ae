"""The wire under a gateway: what is no proper HTTP is refused, and what is read is what h11 reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import h11
import pytest
from attrs import define
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.gateway.settings import GatewaySettings
from rolecall.testing.caller_line import Asked, CallerLine
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import Plane, plane

POST = b"POST /generate HTTP/1.1\r\nhost: x\r\n"
BODY = b'{"text": "x"}'
ASK = POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


async def asked_by(pieces: Sequence[bytes]) -> CallerLine:
    line = CallerLine()
    await line.feed(*pieces)
    await line.lose()
    return line


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def cut_up(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


def h11_reads(data: bytes) -> list[Asked]:
    """The requests that h11 takes from a connection before it ends or is found wrong."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(data)
    found: list[Asked] = []
    head, body = None, b""
    while True:
        try:
            event = server.next_event()
        except h11.RemoteProtocolError:
            return found
        if isinstance(event, h11.Request):
            head, body = event, b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            found.append(Asked(head.method.decode(), head.target, list(head.headers), body))
            server.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            server.send(h11.EndOfMessage())
            if server.our_state is not h11.DONE or server.their_state is not h11.DONE:
                return found
            server.start_next_cycle()
        else:
            return found


# --- what is read -------------------------------------------------------------------------

names = st.sampled_from([b"content-type", b"x-a", b"accept", b"x-request-id"])
values = st.sampled_from([b"application/json", b"", b"a b\tc", b"\xe9", b"x" * 300])
cuts = st.lists(st.integers(0, 10_000), max_size=12)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One to three proper requests, one behind the other, with each kind of framing."""
    data = b""
    for _ in range(draw(st.integers(1, 3))):
        body: bytes = draw(st.binary(max_size=100))
        lines = [draw(st.sampled_from([b"POST /generate", b"GET /engines?schema=1"])) + b" HTTP/1.1"]
        lines += [b"%b: %b" % (draw(names), draw(values)) for _ in range(draw(st.integers(0, 3)))]
        lines.insert(draw(st.integers(1, len(lines))), b"host: x")
        if draw(st.booleans()):
            lines.append(b"content-length: %d" % len(body))
        else:
            lines.append(b"transfer-encoding: chunked")
            size = draw(st.integers(1, 50))
            parts = [body[at : at + size] for at in range(0, len(body), size)]
            extension = draw(st.sampled_from([b"", b";a=b", b';a="b c"']))
            trailer = draw(st.sampled_from([b"", b"x-request-id: evil\r\n"]))
            body = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
            body += b"0\r\n" + trailer + b"\r\n"
        data += b"\r\n".join(lines) + b"\r\n\r\n" + body
    return data


def same(found: Sequence[Asked], wanted: Sequence[Asked]) -> bool:
    plain = [(asked.method, asked.body, sorted(asked.headers)) for asked in found]
    return plain == [(asked.method, asked.body, sorted(asked.headers)) for asked in wanted]


@settings(max_examples=100, deadline=None)
@given(requests(), cuts)
async def test_proper_requests_are_what_h11_reads_however_they_come(data: bytes, cuts: list[int]) -> None:
    wanted = h11_reads(data)
    assert wanted
    found = await asked_by(cut_up(data, cuts))
    assert same(found.asked, wanted)
    assert found.wire.written.count(b"HTTP/1.1 200") == len(wanted)


@settings(max_examples=200, deadline=None)
@given(
    requests(),
    st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=3)), min_size=1, max_size=3),
    cuts,
)
async def test_damaged_requests_are_never_read_otherwise_than_h11_reads_them(
    data: bytes, damages: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    """One may be refused where the other is more lenient; where both read, they read the same bodies."""
    for place, junk in damages:
        at = place % (len(data) + 1)
        data = data[:at] + junk + data[at + len(junk) :]
    found = (await asked_by(cut_up(data, cuts))).asked
    wanted = h11_reads(data)
    both = min(len(found), len(wanted))
    assert [asked.body for asked in found[:both]] == [asked.body for asked in wanted[:both]]


TWO_READINGS = {
    "length and chunks": POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + GET,
    "chunks and length": POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n" + GET,
    "two lengths": POST + b"content-length: 2\r\ncontent-length: 7\r\n\r\n{}" + GET,
    "one length twice": POST + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}" + GET,
    "a list of lengths": POST + b"content-length: 2, 2\r\n\r\n{}" + GET,
    "signed length": POST + b"content-length: +2\r\n\r\n{}" + GET,
    "hexadecimal length": POST + b"content-length: 0x2\r\n\r\n{}" + GET,
    "empty length": POST + b"content-length:\r\n\r\n{}" + GET,
    "huge length": POST + b"content-length: 18446744073709551618\r\n\r\n{}" + GET,
    "blank before the colon": POST + b"content-length : 2\r\n\r\n{}" + GET,
    "folded length": POST + b"content-length:\r\n 2\r\n\r\n{}" + GET,
    "folded header": POST + b"a: b\r\n c\r\ncontent-length: 2\r\n\r\n{}" + GET,
    "folded first header": b"POST /generate HTTP/1.1\r\n host: x\r\n\r\n" + GET,
    "bare line feeds": ASK.replace(b"\r\n", b"\n") + GET,
    "a bare line feed": POST + b"a: b\ncontent-length: 2\r\n\r\n{}" + GET,
    "a bare carriage return": POST + b"a: b\rcontent-length: 2\r\n\r\n{}" + GET,
    "a zero byte": POST + b"a: \x00\r\ncontent-length: 2\r\n\r\n{}" + GET,
    "a control byte": POST + b"a: \x01\r\ncontent-length: 2\r\n\r\n{}" + GET,
    "a line that is no header": POST + b"content-length\r\n\r\n" + GET,
    "a header without a name": POST + b": 2\r\n\r\n" + GET,
    "a header's name that is no token": POST + b"a(b): 2\r\n\r\n" + GET,
    "another encoding": POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + GET,
    "an unknown encoding": POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + GET,
    "no encoding by name": POST + b"transfer-encoding: identity\r\ncontent-length: 2\r\n\r\n{}" + GET,
    "chunked twice": POST + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + GET,
    "two encodings": POST
    + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n"
    + GET,
    "a strange blank": POST + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + GET,
    "chunks in HTTP/1.0": CHUNKED.replace(b"/1.1", b"/1.0") + b"0\r\n\r\n" + GET,
    "signed chunk size": CHUNKED + b"+2\r\n{}\r\n0\r\n\r\n" + GET,
    "hexadecimal mark in a chunk size": CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n" + GET,
    "blank behind a chunk size": CHUNKED + b"2 \r\n{}\r\n0\r\n\r\n" + GET,
    "huge chunk size": CHUNKED + b"10000000000000002\r\n{}\r\n0\r\n\r\n" + GET,
    "bare line feed behind a chunk size": CHUNKED + b"2\n{}\r\n0\r\n\r\n" + GET,
    "bare line feed in an extension": CHUNKED + b"2;a\n{}\r\n0\r\n\r\n" + GET,
    "bare line feed behind a chunk": CHUNKED + b"2\r\n{}\n0\r\n\r\n" + GET,
    "no line end behind a chunk": CHUNKED + b"2\r\n{}0\r\n\r\n" + GET,
    "a length in trailers": CHUNKED + b"0\r\ncontent-length: 9\r\n\r\n" + GET,
    "no host": b"POST /generate HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}" + GET,
    "two hosts": POST + b"host: y\r\ncontent-length: 2\r\n\r\n{}" + GET,
    "HTTP/0.9": b"GET /generate\r\n\r\n" + GET,
    "HTTP/1.2": GET.replace(b"/1.1", b"/1.2") + GET,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + GET,
    "HTTP/2.0": ASK.replace(b"/1.1", b"/2.0") + GET,
    "a method in small letters": GET.lower() + GET,
    "a blank in the target": b"GET /a b HTTP/1.1\r\nhost: x\r\n\r\n" + GET,
    "a target that is no path": b"GET a HTTP/1.1\r\nhost: x\r\n\r\n" + GET,
    "a tunnel": b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n" + GET,
    "TLS": b"\x16\x03\x01\x02\x00\x01" + GET,
}


@pytest.mark.parametrize("data", TWO_READINGS.values(), ids=TWO_READINGS)
async def test_what_can_be_read_in_two_ways_is_refused_and_ends_the_connection(data: bytes) -> None:
    """In one piece and byte by byte. The request behind it, which another reader may see, is never read."""
    for pieces in ([data], bytewise(data)):
        line = await asked_by(pieces)
        assert line.asked == []
        assert line.wire.over
        assert line.wire.written.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))
        assert b"\r\nconnection: close\r\n" in line.wire.written
        assert line.wire.written.count(b"HTTP/1.1 ") == 1


async def test_trailers_and_extensions_of_chunks_are_nobodys() -> None:
    """A trailer named like a header comes after all that was decided by headers."""
    line = CallerLine()
    trailers = b"authorization: Bearer x\r\nx-smg-routing-key: k\r\n"
    await line.feed(CHUNKED + b'2;a=b;c="d"\r\n{}\r\n0;e\r\n' + trailers + b"\r\n", GET)
    assert [(asked.body, len(asked.headers)) for asked in line.asked] == [(b"{}", 2), (b"", 1)]


@pytest.mark.parametrize(
    "framing", [b"content-length: 2\r\n\r\n{}", b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"]
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_who_asks_for_an_upgrade_is_answered_as_if_not(framing: bytes, size: int) -> None:
    """Java's client asks for HTTP/2 with every first request. What follows may be another protocol's."""
    data = POST + b"connection: upgrade\r\nupgrade: h2c\r\n" + framing + GET
    line = await asked_by([data[at : at + size] for at in range(0, len(data), size)])
    assert [asked.body for asked in line.asked] == [b"{}"]
    assert line.wire.over


async def test_nothing_is_read_behind_a_connections_last_request() -> None:
    line = await asked_by([POST + b"connection: close\r\ncontent-length: 2\r\n\r\n{}" + GET, b"\x00"])
    assert [asked.body for asked in line.asked] == [b"{}"]
    assert line.wire.written.count(b"HTTP/1.1 ") == 1


# --- a served gateway ---------------------------------------------------------------------


@define
class Caller:
    """A caller on a bare socket."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, url: str) -> Caller:
        host, port = url.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def all(self) -> bytes:
        """Read until the connection ends."""
        async with asyncio.timeout(5):
            return await self.reader.read()


@asynccontextmanager
async def served() -> AsyncGenerator[Plane]:
    async with plane(PlainRole(), settings=GatewaySettings(request_timeout_s=5.0)) as world:
        yield world


async def test_a_served_gateway_never_sees_two_requests_where_a_front_sees_one() -> None:
    """All that can be read in two ways, at the real thing: refused, and nothing of it reaches an engine."""
    async with served() as world:
        for name, data in TWO_READINGS.items():
            caller = await Caller.to(world.url)
            caller.writer.write(data.replace(GET, ASK))
            caller.writer.write_eof()
            answers = await caller.all()
            assert answers.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")), name
            assert answers.count(b"HTTP/1.1 ") == 1, name
            caller.writer.close()
        assert world.engines[0].received == []


async def test_what_a_caller_says_of_its_connection_or_in_trailers_never_reaches_an_engine() -> None:
    async with served() as world:
        caller = await Caller.to(world.url)
        caller.writer.write(
            POST + b"connection: close, x-hop\r\nx-hop: 1\r\nx-own: 1\r\nte: trailers\r\nkeep-alive: 5\r\n"
            b"proxy-authorization: secret\r\ntrailer: x-late\r\ntransfer-encoding: chunked\r\n\r\n"
            b'd;x-ext=1\r\n{"text": "x"}\r\n0\r\nx-late: 1\r\n\r\n'
        )
        assert (await caller.all()).startswith(b"HTTP/1.1 200 ")
        received = world.engines[0].received[0]
        assert {"x-own"} == set(received.headers) & {
            *("x-own", "x-hop", "te", "keep-alive", "proxy-authorization", "trailer", "x-late", "x-ext"),
            *("transfer-encoding",),
        }
        caller.writer.close()


async def test_slow_and_silent_callers_keep_nobody_waiting() -> None:
    """Two hundred that send nothing, half a head or half a body; one that asks is answered at once."""
    async with served() as world:
        starts = [b"", b"POST /gen", POST, POST + b"content-length: 9\r\n\r\n{"]
        slow = [await Caller.to(world.url) for _ in range(200)]
        for number, caller in enumerate(slow):
            caller.writer.write(starts[number % len(starts)])
        asking = await Caller.to(world.url)
        asking.writer.write(ASK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert (await asking.all()).startswith(b"HTTP/1.1 200 ")
        assert len(world.engines[0].received) == 1
        for caller in (*slow, asking):
            caller.writer.close()
