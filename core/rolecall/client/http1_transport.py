"""The transport for many requests at once: HTTP/1.1 over asyncio's own sockets, parsed by httptools.

Per request it costs about a third of what a general client does (docs/decisions has the figures), and the
cost does not grow with the connections in use. What was said of idle connections in
:mod:`rolecall.client.httpx_transport` holds here too: the one used last is used again first, one that the
engine has closed is never used, and none is kept longer than ``keepalive_s``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import cache, lru_cache
from urllib.parse import urlsplit

from attrs import frozen

from rolecall.client.http1_connection import Answer, Connection
from rolecall.client.transport import ConnectError, Exchange, Head, Incoming, Outgoing, Take
from rolecall.errors import UpstreamError
from rolecall.header_lines import UNSENDABLE, is_name

_METHODS = frozenset({"GET", "POST", "PUT", "DELETE"})
"""Those whose answers have a body like any other."""

_OURS = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"expect", b"upgrade"})
"""Headers that frame a request or speak of its connection; a caller's would contradict what is sent."""


_READ_AT_ONCE = 2**16


class Http1Transport:
    """Sends over asyncio; at most ``max_concurrency`` requests at once, the others wait their turn.

    connect_timeout_s: for one TCP (and TLS) handshake; waiting for a turn doesn't count. Generous for the
        same reason as httpx's.
    keepalive_s: how long a connection may lie idle; shorter than the engine's own idle limit.
    """

    def __init__(
        self, *, max_concurrency: int, connect_timeout_s: float = 30.0, keepalive_s: float = 2.0
    ) -> None:
        self._turns = Turns(max_concurrency)
        self._connect_timeout_s = connect_timeout_s
        self._keepalive_s = keepalive_s
        self._room = memoryview(bytearray(_READ_AT_ONCE))
        self._idle: dict[str, deque[Connection]] = {}
        self._open: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def begin(self, request: Outgoing) -> Exchange:
        return _Http1Exchange(self, request)

    async def send(self, request: Outgoing) -> Incoming:
        exchange = _Http1Exchange(self, request)
        try:
            head = await exchange.open()
        except BaseException:
            await exchange.aclose()
            raise
        return _Http1Incoming(exchange, head)

    def start_now(self, request: Outgoing) -> _Sent | None:
        """Send on an idle connection, if there is one and nobody waits for a turn; else None.

        Raises:
            ConnectError: the request can't be sent as it is.
        """
        origin, head = _head(request)
        if not self._turns.take_now():
            return None
        connection = self._idle_one(origin)
        if connection is None:
            self._turns.give_back()
            return None
        return _Sent(connection.send(head, request.body, request.url), connection, self._turns)

    async def start(self, request: Outgoing) -> _Sent:
        """Send once it is the request's turn, on a new connection if need be; cancelling sends nothing.

        Raises:
            ConnectError: nothing was sent.
        """
        origin, head = _head(request)
        await self._turns.take()
        try:
            connection = self._idle_one(origin) or await self._connect(origin, request.url)
        except BaseException:
            self._turns.give_back()
            raise
        return _Sent(connection.send(head, request.body, request.url), connection, self._turns)

    async def aclose(self) -> None:
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._open):
            connection.cut()

    # --- connections ----------------------------------------------------------------------

    def _idle_one(self, origin: _Origin) -> Connection | None:
        idle = self._idle.get(origin.name)
        while idle:
            connection = idle.pop()
            if connection.usable and not self._is_stale(connection):
                return connection
            connection.cut()
        return None

    async def _connect(self, origin: _Origin, url: str) -> Connection:
        if self._closed:
            raise ConnectError(f"{url}: the transport is closed")
        loop = asyncio.get_running_loop()
        made = Connection(origin.name, room=self._room, on_end=self._put_back, on_lost=self._forget)
        self._open.add(made)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await loop.create_connection(
                    lambda: made, origin.host, origin.port, ssl=_tls() if origin.tls else None
                )
        except (OSError, TimeoutError, UnicodeError) as error:
            reason = f"not within {self._connect_timeout_s:g} s" if isinstance(error, TimeoutError) else error
            failure = ConnectError(f"no connection to {url}: {reason}")
            failure.refused = isinstance(error, ConnectionRefusedError)
            raise failure from error
        finally:
            if not made.connected:
                self._open.discard(made)
        return made

    def _put_back(self, connection: Connection) -> None:
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.setdefault(connection.origin, deque()).append(connection)
        self._sweep_later()

    def _forget(self, connection: Connection) -> None:
        self._open.discard(connection)

    def _is_stale(self, connection: Connection) -> bool:
        return asyncio.get_running_loop().time() - connection.idle_since > self._keepalive_s

    def _sweep_later(self) -> None:
        if self._sweep is None and not self._closed:
            self._sweep = asyncio.get_running_loop().call_later(self._keepalive_s, self._sweep_now)

    def _sweep_now(self) -> None:
        """Give up what has lain idle too long; the oldest of each origin come first."""
        self._sweep = None
        for name, idle in list(self._idle.items()):
            while idle and (not idle[0].usable or self._is_stale(idle[0])):
                idle.popleft().cut()
            if not idle:
                del self._idle[name]
        if self._idle:
            self._sweep_later()


class Turns:
    """So many at once, the others in the order in which they came."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take_now(self) -> bool:
        """Take a turn if there is one and nobody waits for it."""
        if self._free <= 0 or self._waiting:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Take a turn, or wait for one."""
        if self.take_now():
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # it came in the moment in which its taker left
            else:
                self._waiting.remove(turn)
            raise

    def give_back(self) -> None:
        """Hand a turn to the next who waits."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class _Sent:
    """A request that is out: its answer, its connection, and its turn, given back once."""

    def __init__(self, answer: Answer, connection: Connection, turns: Turns) -> None:
        self.answer = answer
        self._connection = connection
        self._turns: Turns | None = turns

    def end(self) -> None:
        """Cut what has not ended. Repeats do nothing."""
        turns, self._turns = self._turns, None
        if turns is not None:
            if not self.answer.ended:
                self._connection.cut()
            turns.give_back()


class _Http1Exchange:
    """An exchange without a task of its own, but while it waits for a turn or a connection."""

    def __init__(self, transport: Http1Transport, request: Outgoing) -> None:
        self.url = request.url
        self._failure: UpstreamError | None = None
        self._starting: asyncio.Task[_Sent] | None = None
        self._sent: _Sent | None = None
        try:
            self._sent = transport.start_now(request)
        except ConnectError as error:
            self._failure = error
            return
        if self._sent is None:
            self._starting = asyncio.create_task(transport.start(request))

    @property
    def ended(self) -> bool:
        return self._failure is not None or (self._sent is not None and self._sent.answer.over)

    async def open(self) -> Head:
        answer = self._sent.answer if self._sent is not None else await self._answer()
        if not answer.head_arrived:
            await answer.head()
        return answer

    async def next_chunk(self) -> bytes:
        answer = self._sent.answer if self._sent is not None else await self._answer()
        return await answer.piece()

    async def pour(self, take: Take) -> bool:
        answer = self._sent.answer if self._sent is not None else await self._answer()
        return await answer.pour(take)

    async def read(self) -> bytes:
        answer = self._sent.answer if self._sent is not None else await self._answer()
        return await answer.rest()

    async def finish(self) -> None:
        with suppress(UpstreamError):  # the engine let go of the request: all that is asked here
            answer = await self._answer()
            await answer.head()
            while await answer.piece():
                pass

    async def aclose(self) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting})
        started = self._starting
        if self._sent is None and started and not started.cancelled() and started.exception() is None:
            self._sent = started.result()
        if self._sent is not None:
            self._sent.end()

    async def _answer(self) -> Answer:
        if self._failure is not None:
            raise self._failure
        if self._sent is not None:
            return self._sent.answer
        assert self._starting is not None
        try:
            self._sent = sent = await asyncio.shield(self._starting)
        except UpstreamError as error:
            self._failure = error
            raise
        return sent.answer


class _Http1Incoming:
    def __init__(self, exchange: _Http1Exchange, head: Head) -> None:
        self._exchange = exchange
        self.status = head.status
        self.headers = head.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        while piece := await self._exchange.next_chunk():
            yield piece

    async def aclose(self) -> None:
        await self._exchange.aclose()


# --- requests ---------------------------------------------------------------------------


@frozen(kw_only=True)
class _Origin:
    """Whom a URL speaks to. ``name`` is also the key of its connections."""

    name: str
    host: str
    port: int
    tls: bool
    authority: bytes


def _parts(url: str) -> tuple[_Origin, bytes]:
    """Return the origin and the request target of a URL; ValueError if it is none for this transport."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be http:// or https:// with a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must have no credentials")
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    host = parts.hostname
    shown = f"[{host}]" if ":" in host else host.encode("idna").decode()
    authority = shown if parts.port is None else f"{shown}:{port}"
    target = parts.path or "/"
    if parts.query:
        target += f"?{parts.query}"
    encoded = target.encode("ascii")
    if UNSENDABLE.search(encoded) or b" " in encoded:
        raise ValueError("must have no blank or control character")
    return (
        _Origin(
            name=f"{parts.scheme}://{shown}:{port}",
            host=host,
            port=port,
            tls=tls,
            authority=authority.encode(),
        ),
        encoded,
    )


@lru_cache(maxsize=4096)
def _beginning(method: str, url: str) -> tuple[_Origin, bytes]:
    """Return the origin of a URL and how the head of a request to it begins."""
    if method not in _METHODS:
        raise ConnectError(f"{url}: method {method!r:.40} is not sent; {sorted(_METHODS)} are")
    try:
        origin, target = _parts(url)
    except ValueError as error:
        raise ConnectError(f"{url!r:.200} can't be asked: {error}") from error
    return origin, b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method.encode(), target, origin.authority)


def _head(request: Outgoing) -> tuple[_Origin, bytes]:
    """Return whom a request goes to, and its head: every header that was given, and the body's framing.

    Raises:
        ConnectError: it can't be sent as it is.
    """
    origin, beginning = _beginning(request.method, request.url)
    lines = [beginning]
    for name, value in request.headers:
        if not _is_sendable(name) or UNSENDABLE.search(value):
            raise ConnectError(f"{request.url}: header {name!r:.80} can't be sent as it is")
        lines += (name, b": ", value, b"\r\n")
    if request.body or request.method != "GET":
        lines.append(b"content-length: %d\r\n\r\n" % len(request.body))
    else:
        lines.append(b"\r\n")
    return origin, b"".join(lines)


@lru_cache(maxsize=1024)
def _is_sendable(name: bytes) -> bool:
    return is_name(name) and name.lower() not in _OURS


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
