"""One HTTP/1.1 connection to an engine, as an asyncio protocol around httptools' parser.

A connection carries one request at a time. Its answer is parsed as it comes, whether anybody waits for it or
not, so giving up waiting cuts nothing; what is not taken is kept up to ``HIGH_WATER`` bytes, and then the
engine is not read from until something is. The connection knows no pool: it says when its answer has ended
(and whether another request may follow) and when it is lost.

Strict: an answer that is not framed as RFC 9112 says is an error, never a guess, and ends the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from rolecall.client.transport import Headers, Take
from rolecall.errors import UpstreamError

HIGH_WATER = 2**17
"""Bytes of an answer that are kept for a slow taker before its connection is paused."""
_PIECE_BYTES = 64
"""What each piece of an answer costs besides its bytes: engines may send a byte at a time."""

_ONE_WRITE = 2**16
"""Bytes of a request's body up to which it is copied behind the head, so that both are one packet or two."""

LONG = 2**14
"""Bytes that are left of a body from which on they are not worth copying."""

MAX_HEAD_BYTES = 2**17
"""Most bytes without a byte of the body: status line and headers, trailers, or what stands between chunks."""

_NO_BODY = frozenset({204, 304})
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


class Answer:
    """What has arrived of one answer, and the one who waits for more of it."""

    __slots__ = (
        "_connection",
        "_kept",
        "_pieces",
        "_take",
        "_taker",
        "ended",
        "error",
        "head_arrived",
        "headers",
        "status",
        "url",
    )

    def __init__(self, url: str, connection: Connection) -> None:
        self.url = url
        self.status = 0
        self.headers: Headers = []
        self.error: UpstreamError | None = None
        self.head_arrived = False
        self.ended = False
        self._connection = connection
        self._pieces: list[bytes] = []
        self._kept = 0
        self._take: Take | None = None
        self._taker: asyncio.Future[None] | None = None

    @property
    def over(self) -> bool:
        """Whether the engine has finished with the request, by the end of its answer or of the connection."""
        return self.ended or self.error is not None

    async def head(self) -> None:
        """Return when status and headers are there.

        Raises:
            UpstreamError: the connection ended before, or what came is no HTTP.
        """
        while not self.head_arrived:
            await self._more()

    async def piece(self) -> bytes:
        """Return what has arrived of the body, at least a byte; empty at the end. Cancelling loses nothing.

        Raises:
            UpstreamError: the connection broke.
        """
        while not self._pieces:
            if self.ended:
                return b""
            await self._more()
        return self._taken()

    async def pour(self, take: Take) -> bool:
        """Hand over what has arrived and what arrives, a read's worth at a time; return True at the end,
        False as soon as there is no more room. Cancelling loses nothing.

        Raises:
            UpstreamError: the connection broke.
        """
        while True:
            if self._pieces and not take(self._taken()):
                return False
            if self.ended:
                return True
            self._take = take
            try:
                await self._more()
                if self._take is None:
                    return False
            finally:
                self._take = None

    async def rest(self) -> bytes:
        """Return all that is left of the body in one piece.

        Raises:
            UpstreamError: the connection broke.
        """
        taken: list[bytes] = []
        while True:
            taken.append(self._taken())
            if self.ended:
                return b"".join(taken)
            await self._more()

    # --- told by the connection -----------------------------------------------------------

    def arrived(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._kept += len(piece) + _PIECE_BYTES
        if self._kept > HIGH_WATER:
            self._connection.pause()

    def come(self) -> None:
        """All of what was read has arrived."""
        take = self._take
        if take is None:
            self.wake()
        elif self._pieces and not take(self._taken()):
            self._take = None
            self.wake()

    def fail(self, error: UpstreamError) -> None:
        if not self.ended:
            self.error = error
            self.wake()

    def wake(self) -> None:
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    # --- waiting --------------------------------------------------------------------------

    async def _more(self) -> None:
        if self.error is not None:
            raise self.error
        self._taker = asyncio.get_running_loop().create_future()
        try:
            await self._taker
        finally:
            self._taker = None

    def _taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        self._kept = 0
        self._connection.resume()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Connection(asyncio.BufferedProtocol):
    """See the module's contract.

    Args:
        origin: ``http://host:port``, for messages.
        room: as much is read at once; connections of one event loop may share it. Event loops by themselves
            read so much that a few hundred long answers would be in memory as a whole.
        on_end: called with this connection when an answer has ended and another request may follow.
        on_lost: called once, with this connection, when it can't be used any more.
    """

    def __init__(
        self,
        origin: str,
        *,
        room: memoryview,
        on_end: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self.origin = origin
        self.idle_since = 0.0
        self._room = room
        self._on_end = on_end
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._lost = False
        self._paused = False
        self._head_bytes = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._framed = False
        self._body_left = 0
        self._unparsed = 0
        self._until_close = False

    @property
    def usable(self) -> bool:
        """Whether a request may be sent: open, with nothing under way or unasked for."""
        return not self._lost and self._answer is None

    @property
    def connected(self) -> bool:
        """Whether there has been a connection at all."""
        return self._transport is not None

    def send(self, head: bytes, body: bytes, url: str) -> Answer:
        """Write one request, whole; only on a usable connection."""
        assert self._transport is not None
        assert self.usable
        self._answer = answer = Answer(url, self)
        self._head_bytes = 0
        self._headers = []
        self._framed = False
        self._body_left = 0
        self._until_close = False
        if len(body) <= _ONE_WRITE:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return answer

    def cut(self) -> None:
        """End the connection at once. Repeats do nothing."""
        self._lose(UpstreamError(f"{self.origin}: the connection was cut on this side"))

    def pause(self) -> None:
        """Read no more for now."""
        if not self._paused and not self._lost and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused and not self._lost and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    # --- asyncio --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: other event loops have transports of their own.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._room[:nbytes])

    def data_received(self, data: bytes | memoryview) -> None:
        """Take what was read; it is copied, and may be overwritten afterwards."""
        answer = self._answer
        if answer is None:
            self._lose(UpstreamError(f"{self.origin} sent something that nobody asked for"))
            return
        if self._unparsed:
            self._take_unparsed(answer, data)
            return
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._lose(UpstreamError(f"{self._answer_url} switched to another protocol"))
        except httptools.HttpParserError as error:
            reason = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
            self._lose(UpstreamError(f"{self._answer_url}: the answer is no proper HTTP: {reason}"))
        else:
            if self._head_bytes > MAX_HEAD_BYTES:
                self._lose(UpstreamError(f"{self._answer_url}: {MAX_HEAD_BYTES} bytes came and no body"))
            elif self._body_left > LONG and answer.head_arrived and not answer.ended:
                self._unparsed = self._body_left
            answer.come()

    def _take_unparsed(self, answer: Answer, data: bytes | memoryview) -> None:
        """Take a part of a body of known length past the parser, which would copy it."""
        left = self._unparsed - len(data)
        self._unparsed = max(0, left)
        answer.arrived(bytes(data if left >= 0 else data[:left]))
        answer.come()
        if left <= 0:
            reusable = self._parser.should_keep_alive()
            self._parser = httptools.HttpResponseParser(self)  # the old one still waits for this body
            self._finish(answer, reusable=reusable and left == 0)

    def eof_received(self) -> None:
        """The engine will send no more. Not left to the transport, which would first wait until the engine
        has read what is left of the request; it may never."""
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        answer = self._answer
        if answer is not None and exc is None and self._until_close and answer.head_arrived:
            self._finish(answer, reusable=False)
        reason = f": {exc}" if exc is not None and str(exc) else ""
        self._lose(UpstreamError(f"{self._answer_url}: the connection ended before the answer did{reason}"))

    # --- httptools ------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._answer is None:  # a second answer, right behind the first
            raise _BadAnswerError("there is more than was asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._headers.append((name, value))
        if name in _FRAMING:
            self._framed = True
            if name == b"content-length" and not (self._answer is None or self._answer.head_arrived):
                self._body_left = int(value)
            # llhttp knows other encodings, and takes what is below the chunks for the body.
            if name == b"transfer-encoding" and value.lower() != b"chunked":
                raise _BadAnswerError(f"its transfer-encoding {value!r:.80} is not known")

    def on_headers_complete(self) -> None:
        answer = self._answer
        assert answer is not None
        status = self._parser.get_status_code()
        if self._parser.get_http_version() not in ("1.1", "1.0") or status == 101:
            raise _BadAnswerError("it speaks another protocol than HTTP/1.1")
        if status < 200:  # informational: the answer proper follows
            self._headers = []
            self._framed = False
            self._body_left = 0
            return
        answer.status = status
        answer.headers = self._headers
        self._headers = []
        self._until_close = status not in _NO_BODY and not self._framed
        answer.head_arrived = True
        answer.wake()

    def on_body(self, body: bytes) -> None:
        assert self._answer is not None
        self._head_bytes = 0
        self._body_left -= len(body)
        self._answer.arrived(body)

    def on_message_complete(self) -> None:
        answer = self._answer
        if answer is not None and answer.head_arrived:
            self._finish(answer, reusable=self._parser.should_keep_alive())

    # --- ends -----------------------------------------------------------------------------

    @property
    def _answer_url(self) -> str:
        return self.origin if self._answer is None else self._answer.url

    def _finish(self, answer: Answer, *, reusable: bool) -> None:
        self._answer = None
        answer.ended = True
        answer.wake()
        if self._lost:
            return
        # An engine that answers before it has the whole request may never read the rest of it.
        if reusable and self._transport is not None and not self._transport.get_write_buffer_size():
            self.resume()
            self._on_end(self)
        else:
            self._lose(None)

    def _lose(self, error: UpstreamError | None) -> None:
        if self._lost:
            return
        self._lost = True
        if self._transport is not None:
            self._transport.abort()
        answer, self._answer = self._answer, None
        if answer is not None and error is not None:
            answer.fail(error)
        self._on_lost(self)


class _BadAnswerError(Exception):
    """Raised in a callback of the parser."""
