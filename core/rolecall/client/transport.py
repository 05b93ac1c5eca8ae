"""Transport: the port behind which HTTP to engines happens.

Gateways and direct clients send through it; one implementation is chosen at their construction
(:mod:`rolecall.client.httpx_transport`). A transport sends every request at most once, follows no
redirect, decodes no body and uses no proxy. Deadlines are its caller's: it is cancelled, not timed out,
except while a connection is being made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from attrs import frozen

from rolecall.errors import UpstreamError

Headers = Sequence[tuple[bytes, bytes]]
"""Raw header lines; names in lower case."""


class ConnectError(UpstreamError):
    """No connection was made, so nothing was sent."""

    refused: bool = False
    """True when the host answered that nobody listens: the process that did is gone."""


@frozen(kw_only=True)
class Outgoing:
    """One request."""

    method: str
    url: str
    headers: Headers
    body: bytes


class Incoming(Protocol):
    """An answer whose head has arrived. It must be closed."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers: ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, undecoded; to be used once.

        Raises:
            UpstreamError: the connection broke, or the body is not framed as HTTP says.
        """
        ...

    async def aclose(self) -> None:
        """Give the connection back, or cut it if the body has not ended. Repeats do nothing."""
        ...


class Transport(Protocol):
    """Sends requests, many at once. Make, use and close it in one event loop."""

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


def end_to_end(headers: Headers, *, without: frozenset[bytes] = frozenset()) -> list[tuple[bytes, bytes]]:
    """Return the headers that may cross a hop: none of ``HOP_BY_HOP``, nor named by ``Connection``."""
    named = {
        token.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    dropped = HOP_BY_HOP | named | without
    return [(name.lower(), value) for name, value in headers if name.lower() not in dropped]


def header(headers: Headers, name: bytes) -> bytes | None:
    """Return the first value of a header; ``name`` in lower case."""
    return next((value for key, value in headers if key.lower() == name), None)


def media_type(headers: Headers) -> str:
    """Return the content type without parameters, in lower case; empty if there is none."""
    value = header(headers, b"content-type") or b""
    return value.split(b";")[0].strip().lower().decode("latin-1")
