"""Call: one request of a caller and its answer, as ASGI's scope, ``receive`` and ``send``.

Made by :class:`~rolecall.serving.protocol.Http1Protocol` when a request's head is there, and run when those
before it on the connection have been answered. It frames the answer and knows nothing of the next request.
"""

from __future__ import annotations

import asyncio
import http
import logging
from collections.abc import Iterable, MutableMapping
from functools import cache
from typing import Any, Protocol

from rolecall.header_lines import UNSENDABLE, is_name

_log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]

_BODYLESS = frozenset({204, 304})
_FRAMING_LENGTHS = frozenset({len("connection"), len("content-length"), len("transfer-encoding")})

_LONG = 2**14
"""Bytes of a body from which on they are not worth copying behind the head."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FAILED = b"Internal Server Error"


class Line(Protocol):
    """What a call needs of its connection."""

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]: ...

    @property
    def transport(self) -> asyncio.Transport: ...

    @property
    def full(self) -> bool:
        """Whether the caller has not taken what was written, but for a bounded rest."""
        ...

    async def room(self) -> None:
        """Return when it is not full any more, or the caller is gone."""
        ...

    def read_on(self) -> None:
        """Room for more of the body."""
        ...

    def answered(self, call: Call) -> None:
        """The whole answer was written."""
        ...

    def broken_off(self, call: Call) -> None:
        """No more of an answer that has begun will come."""
        ...


class Call:
    """See the module's contract.

    keep_alive: another request may follow; it is decided when the answer begins.
    arrived: all of the request's body has come.
    unread: bytes of it that the app has not taken.
    begun, ended: whether the answer has been.
    until_close: only the connection's end tells that of the answer, one of unknown length to HTTP/1.0.
    gone: nobody takes the answer any more; what is sent is thrown away.
    """

    __slots__ = (
        "_begun_with",
        "_chunked",
        "_expects_continue",
        "_line",
        "_news",
        "_owed",
        "_pieces",
        "_silent",
        "_told_all",
        "arrived",
        "begun",
        "ended",
        "gone",
        "keep_alive",
        "scope",
        "unread",
        "until_close",
    )

    def __init__(self, line: Line, scope: Scope, *, keep_alive: bool, expects_continue: bool) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.arrived = False
        self.unread = 0
        self.begun = False
        self.ended = False
        self.until_close = False
        self.gone = False
        self._line = line
        self._expects_continue = expects_continue
        self._pieces: list[bytes] = []
        self._told_all = False
        self._news: asyncio.Event | None = None
        self._begun_with = b""
        self._chunked = False
        self._silent = False
        self._owed = 0

    # --- told by the connection -----------------------------------------------------------

    def add(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self._pieces.append(piece)
        self.unread += len(piece)
        self._wake()

    def end_body(self) -> None:
        """The body has come to its end."""
        self.arrived = True
        self._wake()

    def leave(self) -> None:
        """The caller is gone."""
        self.gone = True
        self._wake()

    async def run(self, app: Any) -> None:
        """Let the app answer; an answer it leaves open is broken off, one it never began is a 500."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:  # noqa: BLE001 - the server lives on, and the caller is told what can be told
            _log.exception("the app failed")
        finally:
            if not (self.ended or self.gone):
                self._leave_open()

    # --- ASGI -----------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Return the next part of the body; after it, that the caller is gone or the answer complete."""
        while not (self.gone or self.ended):
            if self._pieces or (self.arrived and not self._told_all):
                return self._next_part()
            if self._expects_continue and not self.begun:
                self._expects_continue = False
                self._line.transport.write(_CONTINUE)
            if self._news is None:
                self._news = asyncio.Event()
            self._news.clear()
            await self._news.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Write a part of the answer once there is room for it; nothing if the caller is gone.

        Raises:
            RuntimeError: the app breaks ASGI's rules, or HTTP's for what a header may hold.
        """
        if self.gone:
            return
        kind = message["type"]
        if kind == "http.response.body" and self.begun and not self.ended:
            if self._line.full:
                await self._line.room()
                if self.gone:
                    return
            self._continue(message.get("body", b""), message.get("more_body", False))
        elif kind == "http.response.start" and not self.begun:
            self._begin(message["status"], message.get("headers", ()))
            # Written together with the first part of the body; on its own if that does not follow at once.
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            raise RuntimeError(f"the app sent {kind!r} at the wrong time")

    # --- past ASGI ------------------------------------------------------------------------

    async def answer(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Write a whole answer once there is room for it: both messages of ``send`` in one.

        Raises:
            RuntimeError: an answer has begun; else as ``send``.
        """
        if self._line.full:
            await self._line.room()
        if self.gone:
            return
        if self.begun:
            raise RuntimeError("the app answered twice")
        self._begin(status, headers)
        self._continue(body, False)

    def pour(self, piece: bytes) -> bool:
        """Write a piece of an answer that has begun, now; return whether there is room for more.

        What ``send`` does, without a message and a wait for each piece. Whoever pours waits for ``room`` when
        there is none, and ends the answer with ``send``. It is thrown away if the caller is gone.

        Raises:
            RuntimeError: the answer has not begun, has ended, or is not as long as its Content-Length.
        """
        if self.gone:
            return True
        if not self.begun or self.ended:
            raise RuntimeError("the app poured at the wrong time")
        self._continue(piece, True)
        return not self._line.full

    async def room(self) -> None:
        """Return when there is room for more, or the caller is gone."""
        await self._line.room()

    # --- parts ----------------------------------------------------------------------------

    def _next_part(self) -> Message:
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self.unread = 0
        self._told_all = self.arrived
        if not self.arrived:
            self._line.read_on()
        return {"type": "http.request", "body": body, "more_body": not self.arrived}

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        lines = [_status_line(status)]
        length = -1
        default = self._line.default_headers
        for name, value in (*default, *headers) if default else headers:
            if not is_name(name) or UNSENDABLE.search(value):
                raise RuntimeError(f"header {name!r:.80} can't be sent as it is")
            framing = name.lower() if len(name) in _FRAMING_LENGTHS else b""
            if framing == b"connection":
                self.keep_alive = self.keep_alive and b"close" not in value.lower()
            elif framing != b"transfer-encoding":  # framing is done here
                if framing == b"content-length":
                    length = int(value)
                lines.append(name + b": " + value)
        self._silent = self.scope["method"] == "HEAD" or status in _BODYLESS
        self._owed = length
        if length < 0 and not self._silent:
            if self.scope["http_version"] == "1.1":
                self._chunked = True
                lines.append(b"transfer-encoding: chunked")
            else:
                self.until_close = True
                self.keep_alive = False
        # What is left of a body that the app did not want can't be told from another request.
        self.keep_alive = self.keep_alive and self.arrived
        if not self.keep_alive:
            lines.append(b"connection: close")
        self.begun = True
        self._begun_with = b"\r\n".join(lines) + b"\r\n\r\n"

    def _flush(self) -> None:
        head, self._begun_with = self._begun_with, b""
        if head and not self.gone:
            self._line.transport.write(head)

    def _continue(self, body: bytes, more: bool) -> None:
        head, self._begun_with = self._begun_with, b""
        if self._chunked:
            data = b"%b%x\r\n%b\r\n" % (head, len(body), body) if body else head
            if not more:
                data += b"0\r\n\r\n"
        elif self._silent:
            data = head
        else:
            self._owed -= len(body)
            if not self.until_close and (self._owed < 0 or (self._owed and not more)):
                self._begun_with = head
                raise RuntimeError("the app's body is not as long as its Content-Length")
            if head and len(body) > _LONG:
                self._line.transport.write(head)
                data = body
            else:
                data = head + body if head else body
        if data:
            self._line.transport.write(data)
        if not more:
            self.ended = True
            self._wake()
            self._line.answered(self)

    def _leave_open(self) -> None:
        if self.begun:
            self._flush()
            self._line.broken_off(self)
            return
        self.keep_alive = False
        length = str(len(_FAILED)).encode()
        self._begin(500, [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", length)])
        self._continue(_FAILED, False)

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()


@cache
def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}".encode()
