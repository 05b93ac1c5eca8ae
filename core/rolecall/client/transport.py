"""Transport: the port behind which HTTP to engines happens.

Gateways, guards and direct clients send through it; one implementation is chosen at their construction
(:mod:`rolecall.client.http1_transport`, unless another is given). A transport sends every request at most
once, follows no redirect, decodes no body and uses no proxy. Deadlines are its caller's: it is cancelled, not
timed out, except while a connection is being made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache
from typing import Protocol

from attrs import frozen

from rolecall.errors import UpstreamError

Headers = Sequence[tuple[bytes, bytes]]
"""Raw header lines; names in lower case."""


class ConnectError(UpstreamError):
    """No connection was made, so nothing was sent."""

    refused: bool = False
    """True when the host answered that nobody listens: the process that did is gone."""


Take = Callable[[bytes], bool]
"""Takes a piece of a body, and tells whether there is room for more."""


@frozen(kw_only=True)
class Outgoing:
    """One request."""

    method: str
    url: str
    headers: Headers
    body: bytes


class Head(Protocol):
    """Status and headers of an answer."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers: ...


class Incoming(Head, Protocol):
    """An answer whose head has arrived. It must be closed."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, undecoded; to be used once.

        Raises:
            UpstreamError: the connection broke, or the body is not framed as HTTP says.
        """
        ...

    async def aclose(self) -> None:
        """Give the connection back, or cut it if the body has not ended. Repeats do nothing."""
        ...


class Exchange(Protocol):
    """One request to one engine and its answer, from sending to the engine's end of it.

    It goes on whether anybody waits or not: a caller that stops waiting (deadline, disconnect, cancellation)
    cuts nothing and loses nothing, and the exchange is handed to the aborter
    (:mod:`rolecall.client.aborter`), which tells the engine to stop and reads on until the engine *has*
    stopped. Cutting the connection instead would lose the only proof of that. So every exchange ends in one
    of two ways: read to its end and closed, or abandoned. Used by one caller at a time.
    """

    @property
    def url(self) -> str: ...

    @property
    def ended(self) -> bool:
        """The engine has finished with the request, by the end of its answer or of the connection."""
        ...

    async def open(self) -> Head:
        """Return the answer's head once it is there.

        Raises:
            UpstreamError: see :meth:`Transport.send`.
        """
        ...

    async def next_chunk(self) -> bytes:
        """Return the next piece of the body as it arrived, empty at its end.

        Raises:
            UpstreamError: the connection broke, or the body is not framed as HTTP says.
        """
        ...

    async def pour(self, take: Take) -> bool:
        """Hand the body over as it arrives; return True at its end, False as soon as ``take`` has enough.

        What comes after that waits, within bounds, for whoever asks for it next. Whoever waits here is not
        woken for each piece, which is most of what one costs.

        Raises:
            UpstreamError: as above.
        """
        ...

    async def read(self) -> bytes:
        """Return the rest of the body.

        Raises:
            UpstreamError: as above.
        """
        ...

    async def finish(self) -> None:
        """Read on and throw away until the engine has ended; a broken connection is an end, too."""
        ...

    async def aclose(self) -> None:
        """Cut what still runs. Repeats do nothing."""
        ...


class Transport(Protocol):
    """Sends requests, many at once. Make, use and close it in one event loop."""

    def begin(self, request: Outgoing) -> Exchange:
        """Send, never twice, and return at once; what goes wrong is told by the exchange."""
        ...

    async def send(self, request: Outgoing) -> Incoming:
        """Send and return when the head of the answer is there. Never sends twice.

        Raises:
            ConnectError: nothing was sent.
            UpstreamError: the engine may have got the request, but gave no answer.
        """
        ...

    async def aclose(self) -> None:
        """Cut what is open. Repeats do nothing."""
        ...


HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Header names that speak of one connection only (RFC 9110, 7.6.1)."""


@lru_cache(maxsize=64)
def _dropped(connection: bytes, without: frozenset[bytes]) -> frozenset[bytes]:
    """All names that may not cross a hop, given what ``Connection`` says."""
    return HOP_BY_HOP | without | {token.strip().lower() for token in connection.split(b",")}


def end_to_end(headers: Headers, *, without: frozenset[bytes] = frozenset()) -> list[tuple[bytes, bytes]]:
    """Return the headers that may cross a hop: none of ``HOP_BY_HOP``, nor named by ``Connection``."""
    named = b",".join([value for name, value in headers if name == b"connection"])
    dropped = _dropped(named, without)
    return [pair for pair in headers if pair[0] not in dropped]


def header(headers: Headers, name: bytes) -> bytes | None:
    """Return the first value of a header; ``name`` in lower case."""
    for key, value in headers:
        if key == name:
            return value
    return None


def media_type(headers: Headers) -> str:
    """Return the content type without parameters, in lower case; empty if there is none."""
    return _media_type(header(headers, b"content-type") or b"")


@lru_cache(maxsize=256)
def _media_type(value: bytes) -> str:
    return value.split(b";")[0].strip().lower().decode("latin-1")
