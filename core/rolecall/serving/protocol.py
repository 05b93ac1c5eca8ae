"""Http1Protocol: the connection of one caller, for uvicorn: ``uvicorn.Config(app, http=Http1Protocol)``.

It takes the place of uvicorn's own protocol, which sets no limit to the time and the size of a head, merges
trailers into headers, drops the body of a request that asks for an upgrade, writes errors into the middle of
answers, does not see a pipelining caller leave, and waits for ever for one that does not read. Here

* requests are read as RFC 9112 says or refused; what contradicts itself is never guessed. A refused
  connection ends, and nothing is written into an answer that has begun;
* what a caller may make this side keep is bounded: head, unread body, requests sent ahead, and what it has
  not taken of an answer (as much as the event loop's transports say: 64 KiB). So is the time in which it may
  do nothing, but for an answer that the app gives;
* a caller that ends its side of the connection has left, also if it only says that it will send no more. The
  app's ``receive`` tells it at once;
* an answer that breaks off never looks complete.

No WebSockets, no access log. Of uvicorn's settings it heeds ``root_path``, ``timeout_keep_alive`` and the
default headers; its graceful shutdown works.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import urllib.parse
from contextlib import suppress
from functools import lru_cache
from math import inf
from typing import Any, ClassVar, cast

import httptools
import uvicorn
from attrs import frozen
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from rolecall.serving.call import Call

_log = logging.getLogger(__name__)

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_LONG_TARGET = 512


@frozen(kw_only=True)
class Limits:
    """What one connection may cost.

    head_bytes: request line and headers; also trailers, and what stands between two chunks of a body.
    unread_bytes: of a body before the caller is not read from.
    ahead: requests that were sent before those in front of them had been answered.
    head_s: from its first byte to the end of a head; also from the connection's making to its first byte.
    body_s: of silence within a body.
    close_s: until a caller has taken the last of an answer after which the connection ends.
    """

    head_bytes: int = 2**16
    unread_bytes: int = 2**16
    ahead: int = 32
    head_s: float = 30.0
    body_s: float = 30.0
    close_s: float = 30.0


class _RefusedError(Exception):
    """Raised in a callback of the parser: the request is not taken."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Http1Protocol(asyncio.Protocol):
    """See the module's contract. Its arguments are those that uvicorn gives."""

    limits: ClassVar[Limits] = Limits()

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._app: Any = config.loaded_app
        self._root_path = config.root_path
        self._keep_alive_s = config.timeout_keep_alive
        self._state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._unframed = 0
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._in_head = False
        self._arriving: Call | None = None
        self._deaf = False
        self._reading = True
        self._calls: list[Call] = []
        self.full = False
        self._room: asyncio.Event | None = None
        self._expires = inf
        self._timer: asyncio.TimerHandle | None = None
        self._addresses: tuple[Any, Any, str] = (None, None, "http")

    # --- asyncio --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: other event loops have transports of their own.
        self.transport = cast(asyncio.Transport, transport)
        self._state.connections.add(cast(Any, self))
        scheme = "https" if is_ssl(self.transport) else "http"
        self._addresses = (get_local_addr(self.transport), get_remote_addr(self.transport), scheme)
        self._expire_in(self.limits.head_s)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unframed += len(data)
        was_in_head = self._in_head
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            reason = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
            if not self._deaf:  # behind a connection's last request anything may come
                self._refuse(reason if isinstance(reason, _RefusedError) else _RefusedError(400, str(reason)))
        else:
            if self._unframed > self.limits.head_bytes:
                self._refuse(_RefusedError(431 if self._in_head else 400, "there is no end to the head"))
            elif self._arriving is not None:
                self._expire_in(self.limits.body_s)
            elif self._in_head and not was_in_head and not self._calls:
                self._expire_in(self.limits.head_s)

    def eof_received(self) -> None:
        """The caller will send no more, so it has left, unless it only waits for the rest of an answer."""
        if self._calls:
            self.transport.abort()
        else:
            self._deaf = True
            self._expire_in(self.limits.close_s)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._state.connections.discard(cast(Any, self))
        self._deaf = True
        if self._timer is not None:
            self._timer.cancel()
        self._abandon_calls()
        self.resume_writing()
        del self._parser  # which holds this connection

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        if self._room is not None:
            self._room.set()

    # --- uvicorn --------------------------------------------------------------------------

    def answer_last(self) -> None:
        """Let the answers that are under way be the connection's last; an idle one stays."""
        for call in self._calls:
            call.keep_alive = False

    def shutdown(self) -> None:
        """End the connection once what was asked has been answered."""
        self.answer_last()
        if not self._calls:
            self._close()

    # --- httptools ------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._head_bytes = 0
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it is a trailer: nothing may depend on those, and they are read too late
            self._headers.append((name.lower(), value))
            self._head_bytes += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._unframed = 0
        if self._head_bytes > self.limits.head_bytes:
            raise _RefusedError(431, f"the head is over the limit of {self.limits.head_bytes} bytes")
        version = self._parser.get_http_version()
        expects_continue = _check_head(self._headers, self._parser.get_method(), version)
        if len(self._calls) > self.limits.ahead:
            raise _RefusedError(400, "too many requests were sent ahead")
        server, client, scheme = self._addresses
        raw_path, path, query = _target(self._url)
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": server,
            "client": client,
            "scheme": scheme,
            "method": self._parser.get_method().decode(),
            "root_path": self._root_path,
            "path": self._root_path + path,
            "raw_path": self._root_path.encode() + raw_path,
            "query_string": query,
            "headers": self._headers,
            "state": self._app_state.copy(),
        }
        upgrade = self._parser.should_upgrade()
        keep_alive = version == "1.1" and self._parser.should_keep_alive() and not upgrade
        call = Call(self, scope, keep_alive=keep_alive, expects_continue=expects_continue)
        self._arriving = call
        self._calls.append(call)
        if len(self._calls) == 1:
            self._run(call)

    def on_body(self, body: bytes) -> None:
        self._unframed = 0
        call = self._arriving
        if call is None:
            return
        call.add(body)
        if call.unread > self.limits.unread_bytes and self._reading:
            if call is not self._calls[0]:
                raise _RefusedError(400, "too much was sent ahead")
            self._reading = False
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        self._unframed = 0
        call = self._arriving
        if call is None or self._parser.should_upgrade():  # see _feed
            return
        self._arriving = None
        self.read_on()
        self._expires = inf
        self._deaf = not call.keep_alive
        call.end_body()

    # --- calls ----------------------------------------------------------------------------

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return self._state.default_headers

    async def room(self) -> None:
        while self.full:
            if self._room is None:
                self._room = asyncio.Event()
            self._room.clear()
            await self._room.wait()

    def read_on(self) -> None:
        if not self._reading:
            self._reading = True
            self._expire_in(self.limits.body_s)
            self.transport.resume_reading()

    def answered(self, call: Call) -> None:
        self._calls.remove(call)
        self._state.total_requests += 1
        if not call.keep_alive:
            self._close(unread=not call.arrived)
        elif self._calls:
            self._run(self._calls[0])
        else:
            self._expire_in(self.limits.head_s if self._in_head else self._keep_alive_s)

    def broken_off(self, call: Call) -> None:
        if call.until_close:
            # A plain end would look like that of the answer.
            sock = self.transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.transport.abort()
        else:
            self._abandon_calls()
            self._close()

    # --- inside ---------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # llhttp takes what follows for another protocol's. None is spoken here, so it is the request's
            # body, framed as its head said, and the request is the connection's last.
            framing = [
                b"%b: %b\r\n" % pair
                for pair in self._headers
                if pair[0] in (b"content-length", b"transfer-encoding")
            ]
            self._parser = httptools.HttpRequestParser(_BodyOf(self))
            self._parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n")
            if not self._deaf:
                self._parser.feed_data(data[cast(int, upgrade.args[0]) :])

    def _run(self, call: Call) -> None:
        task = self._loop.create_task(call.run(self._app))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def _refuse(self, refused: _RefusedError) -> None:
        """Answer with an error and end the connection; only end it if another answer is under way."""
        _log.info("refused a caller: %s", refused)
        if any(call is not self._arriving or call.begun for call in self._calls):
            self.transport.abort()
            return
        self._abandon_calls()
        self.transport.write(_refusal(refused))
        self._close(unread=True)

    def _abandon_calls(self) -> None:
        calls, self._calls, self._arriving = self._calls, [], None
        for call in calls:
            call.leave()

    def _close(self, *, unread: bool = False) -> None:
        """End the connection when all is written. If the caller may still be sending, that is read and thrown
        away: were it left, the kernel would reset the connection, and the answer be lost."""
        self._deaf = True
        self._arriving = None
        if unread and self.transport.can_write_eof():
            with suppress(OSError):  # it is closed already
                self.transport.write_eof()
            self.read_on()
        else:
            self.transport.close()
        self._expire_in(self.limits.close_s)

    def _expire_in(self, seconds: float) -> None:
        """Set the time until which the caller has to do something; not kept to the millisecond."""
        self._expires = self._loop.time() + seconds
        if self._timer is None:
            self._timer = self._loop.call_at(self._expires, self._look)
        elif self._timer.when() > self._expires:
            self._timer.cancel()
            self._timer = self._loop.call_at(self._expires, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._arriving is not None and not self._reading:
            self._expires = inf  # the app is late, not the caller
        if self._loop.time() < self._expires:
            if self._expires < inf:
                self._timer = self._loop.call_at(self._expires, self._look)
        elif self._deaf:
            self.transport.abort()
        elif self._in_head or self._arriving is not None:
            self._refuse(_RefusedError(408, "the rest of the request did not come"))
        else:
            self._close()


class _BodyOf:
    """Passes a body on to the connection that has had its head."""

    def __init__(self, connection: Http1Protocol) -> None:
        self.on_body = connection.on_body
        self.on_message_complete = connection.on_message_complete


def _check_head(headers: list[tuple[bytes, bytes]], method: bytes, version: str) -> bool:
    """Return whether the caller waits for ``100 Continue``; refuse what can be read in two ways."""
    if version not in ("1.1", "1.0"):
        raise _RefusedError(505, "the version must be HTTP/1.1")
    if method == b"CONNECT":
        raise _RefusedError(501, "this is no proxy")
    hosts, expects_continue = 0, False
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            # llhttp lets through other encodings below the chunks, and chunks in HTTP/1.0.
            if value.lower() != b"chunked" or version == "1.0":
                raise _RefusedError(501, "transfer-encoding: only chunked is known, and only in HTTP/1.1")
        elif name == b"expect":
            expects_continue = value.lower() == b"100-continue"
    if hosts > 1 or (not hosts and version == "1.1"):
        raise _RefusedError(400, "host: must be one header")
    return expects_continue and version == "1.1"


def _target(url: bytes) -> tuple[bytes, str, bytes]:
    """Return raw path, path and query of a request's target."""
    return _known_target(url) if len(url) <= _LONG_TARGET else _parsed_target(url)


def _parsed_target(url: bytes) -> tuple[bytes, str, bytes]:
    parsed = httptools.parse_url(url)
    raw_path = parsed.path or b"/"
    return raw_path, urllib.parse.unquote(raw_path.decode("ascii")), parsed.query or b""


_known_target = lru_cache(maxsize=512)(_parsed_target)


def _refusal(refused: _RefusedError) -> bytes:
    # OpenAI's shape: refused callers may be any.
    kind = "bad_request" if refused.status < 500 else "not_supported"
    error = {"message": str(refused), "type": kind, "param": None, "code": kind}
    body = json.dumps({"error": error}).encode()
    return (
        b"HTTP/1.1 %d Refused\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"connection: close\r\n\r\n%b" % (refused.status, len(body), body)
    )
