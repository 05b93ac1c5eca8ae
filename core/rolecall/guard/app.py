"""The guard's ASGI app: what comes in by which path, and what callers are told.

Plain ASGI, since every request of an engine passes here. Bodies and streams pass byte by byte; the only
answers that are looked into are metadata. Errors have the shape that the path's protocol has, and name no
address: that of the engine is nobody's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol
from uuid import uuid4

from starlette.types import Message, Receive, Scope, Send

from rolecall.client.transport import Headers, Incoming, Outgoing, end_to_end, header
from rolecall.errors import UpstreamError
from rolecall.gateway.errors import plain_error
from rolecall.guard.allowed import ALLOWED, ENTRIES, Entry, Passage
from rolecall.guard.flight import Flight, Upstream
from rolecall.guard.metadata import filtered
from rolecall.guard.permits import DoorClosedError
from rolecall.guard.request_ids import named_rids, with_rid

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 256 * 2**20
"""A guard on memory, not a policy: gateways have their own, lower limit."""
RETRY_AFTER_S = 1

_CONTROL_S = 30.0
"""How long a cancel or metadata call may take. They don't wait for a forward pass."""
_NOT_FOR_ENGINES = frozenset({b"content-length", b"expect", b"host"})
_NO_ANSWER = "the engine could not be reached, or broke its answer off; the request was not repeated"
_CLOSED = (
    "the engine takes no requests now: it sleeps, is being started, put to sleep or woken, "
    "or its weights change"
)


class Inside(Protocol):
    """What the app needs of its door."""

    @property
    def is_open(self) -> bool: ...

    @property
    def upstream(self) -> Upstream: ...

    def begin(self, request: Outgoing, rids: Callable[[], tuple[str, ...]]) -> Flight:
        """Take a permit and send.

        Raises:
            DoorClosedError: nobody is let in.
        """
        ...


class _AnswerNow(Exception):
    """The request ends here, with this answer."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class GuardApp:
    """See the module's contract."""

    def __init__(self, door: Inside) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        try:
            entry = _entry(path, scope["method"])
            if entry.passage is Passage.WORK:
                await self._work(entry, scope, receive, send)
            else:
                await self._control(entry, scope, receive, send)
        except _AnswerNow as answer:
            response = plain_error(answer.status, str(answer), path, headers=answer.headers)
            await response(scope, receive, send)

    # --- through an open door -----------------------------------------------------------

    async def _work(self, entry: Entry, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._door.is_open:
            raise _closed()  # before the body is read; asked again when the permit is taken
        body = await _read_body(scope, receive)
        if entry.method == "POST":
            body = with_rid(body, uuid4().hex)
        try:
            flight = self._door.begin(self._outgoing(entry, scope, body), lambda: named_rids(body))
        except DoorClosedError as error:
            raise _closed() from error
        leaving = asyncio.create_task(_until_left(receive, flight))
        try:
            await _deliver(flight, send)
        finally:
            leaving.cancel()

    # --- at any time --------------------------------------------------------------------

    async def _control(self, entry: Entry, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._outgoing(entry, scope, await _read_body(scope, receive))
        incoming, body = await self._ask(request)
        if entry.passage is Passage.METADATA and incoming.status == 200:
            try:
                body = filtered(entry.path, body, self._door.upstream.served_model_name)
            except ValueError as error:
                logger.warning("%s answered what it should not: %s", entry.path, error)
                raise _AnswerNow(
                    502, f"the engine's answer to {entry.path} is not what it should be"
                ) from error
        headers = end_to_end(incoming.headers, without=frozenset({b"content-length"}))
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": incoming.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _ask(self, request: Outgoing) -> tuple[Incoming, bytes]:
        try:
            async with asyncio.timeout(_CONTROL_S):
                incoming = await self._door.upstream.control.send(request)
                try:
                    return incoming, b"".join([chunk async for chunk in incoming.chunks()])
                finally:
                    await incoming.aclose()
        except UpstreamError as error:
            logger.warning("a call broke: %s", error)
            raise _AnswerNow(502, _NO_ANSWER) from error
        except TimeoutError as error:
            raise _AnswerNow(504, f"the engine gave no answer within {_CONTROL_S:g} s") from error

    def _outgoing(self, entry: Entry, scope: Scope, body: bytes) -> Outgoing:
        query: bytes = scope["query_string"]
        url = self._door.upstream.base_url + entry.path + (f"?{query.decode('latin-1')}" if query else "")
        headers = end_to_end(scope["headers"], without=_NOT_FOR_ENGINES)
        if entry.passage is Passage.METADATA:
            headers = [pair for pair in headers if pair[0] != b"accept-encoding"]
            headers.append((b"accept-encoding", b"identity"))
        return Outgoing(method=entry.method, url=url, headers=headers, body=body)


def _entry(path: str, method: str) -> Entry:
    entry = ENTRIES.get(path)
    if entry is None:
        raise _AnswerNow(404, f"{path!r:.120} does not pass to the engine; what passes: {ALLOWED}")
    if method != entry.method:
        message = f"{path} takes {entry.method}, not {method:.20}; what passes: {ALLOWED}"
        raise _AnswerNow(405, message, {"allow": entry.method})
    return entry


def _closed() -> _AnswerNow:
    return _AnswerNow(503, _CLOSED, {"retry-after": str(RETRY_AFTER_S)})


async def _read_body(scope: Scope, receive: Receive) -> bytes:
    headers: Headers = scope["headers"]
    announced = header(headers, b"content-length") or b"0"
    if announced.isdigit() and int(announced) > MAX_BODY_BYTES:
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _AnswerNow(400, "the caller left while sending")  # nobody reads this
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise _too_large()
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large() -> _AnswerNow:
    return _AnswerNow(413, f"the body is over {MAX_BODY_BYTES} bytes")


async def _until_left(receive: Receive, flight: Flight) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    flight.abandon()


async def _deliver(flight: Flight, send: Send) -> None:
    try:
        incoming = await flight.head()
    except UpstreamError as error:
        raise _AnswerNow(502, _NO_ANSWER) from error
    headers = end_to_end(incoming.headers)
    await send({"type": "http.response.start", "status": incoming.status, "headers": headers})
    try:
        while data := await flight.pipe.read():
            await send(_body(data, more=not flight.pipe.exhausted))
            if flight.pipe.exhausted:
                return
    except UpstreamError:
        return  # without an end of the body: the server cuts the connection, and the caller sees it
    await send(_body(b"", more=False))


def _body(data: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}
