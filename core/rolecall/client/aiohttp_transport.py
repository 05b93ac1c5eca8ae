"""The transport on aiohttp: for many requests at once.

Its cost per request does not grow with the connections in use, unlike httpx's (docs/decisions/0019-aiohttp.md
has the figures). A connection is used by one request at a time and again by later ones; what was said of idle
connections in :mod:`rolecall.client.httpx_transport` holds here too.

Header values are sent as UTF-8, the only encoding that aiohttp writes. Others are refused, not mangled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from io import BytesIO

import aiohttp
from yarl import URL

from rolecall.client.transport import ConnectError, Headers, Incoming, Outgoing
from rolecall.errors import UpstreamError

_ADDED_BY_AIOHTTP = ("accept", "accept-encoding", "content-type", "user-agent")
_LARGE_BODY = 2**20
"""From here on aiohttp wants a body as a file, which it writes in pieces; see its ``BytesPayload``."""
_READ_BUFFER = 2**16


class AiohttpTransport:
    """Sends over aiohttp; at most ``max_concurrency`` requests at once, the others wait their turn.

    connect_timeout_s: for one TCP (and TLS) handshake; waiting for a turn doesn't count. Generous for the
        same reason as httpx's.
    keepalive_s: how long a connection may lie idle; shorter than the engine's own idle limit.
    """

    def __init__(
        self, *, max_concurrency: int, connect_timeout_s: float = 30.0, keepalive_s: float = 2.0
    ) -> None:
        self._turns = asyncio.Semaphore(max_concurrency)
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s)
        self._keepalive_s = keepalive_s
        self._session: aiohttp.ClientSession | None = None

    def _open_session(self) -> aiohttp.ClientSession:
        # At first use: aiohttp wants a running loop, and a transport may be made without one.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=self._keepalive_s),
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_ADDED_BY_AIOHTTP,
                auto_decompress=False,
                trust_env=False,
                read_bufsize=_READ_BUFFER,
            )
            # aiohttp repeats a GET whose kept-alive connection broke. The port says: never.
            self._session._retry_connection = False  # pyright: ignore[reportPrivateUsage]
        return self._session

    async def send(self, request: Outgoing) -> Incoming:
        headers = _texts(request)
        await self._turns.acquire()
        try:
            with _translated(request.url):
                response = await self._open_session().request(
                    request.method,
                    URL(request.url, encoded=True),
                    headers=headers,
                    data=_payload(request),
                    allow_redirects=False,
                )
        except BaseException:
            self._turns.release()
            raise
        return _AiohttpIncoming(response, request.url, self._turns)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


class _AiohttpIncoming:
    def __init__(self, response: aiohttp.ClientResponse, url: str, turns: asyncio.Semaphore) -> None:
        self._response = response
        self._url = url
        self._turns = turns
        self._closed = False
        self.status = response.status
        self.headers: Headers = [(name.lower(), value) for name, value in response.raw_headers]

    async def chunks(self) -> AsyncIterator[bytes]:
        with _translated(self._url):
            while chunk := await self._response.content.readany():
                yield chunk

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._response.close()  # one whose body has ended gave its connection back already
            self._turns.release()


def _texts(request: Outgoing) -> list[tuple[str, str]]:
    try:
        return [(name.decode(), value.decode()) for name, value in request.headers]
    except UnicodeDecodeError as error:
        raise ConnectError(f"{request.url}: a header is not UTF-8 and can't be sent: {error}") from error


def _payload(request: Outgoing) -> bytes | BytesIO | None:
    if not request.body and request.method == "GET":
        return None
    return request.body if len(request.body) <= _LARGE_BODY else BytesIO(request.body)


@contextmanager
def _translated(url: str) -> Generator[None]:
    """Turn aiohttp's errors into the transport's."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        failure = ConnectError(f"no connection to {url}: {_reason(error)}")
        failure.refused = isinstance(getattr(error, "os_error", None), ConnectionRefusedError)
        raise failure from error
    # Beside its own errors, aiohttp lets some of the socket's through; ValueError is a bad URL or header.
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise UpstreamError(f"{url}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
