"""The transport on httpx.

httpx's connection pool looks at all its connections for every request, so its cost grows with the
square of those in use: 512 concurrent calls through one pool ran at 7 a second. Here they are spread over
small pools, the one used last first, so that connections are used again. That keeps thousands of concurrent
calls usable (about 4 ms of CPU each at 2,000); it does not make httpx fast. After a burst, idle connections
of pools that are not needed any more stay open on this side until they are, or until the end.

A kept-alive connection that the engine has closed is noticed before it is used again, as long as the
engine's close has arrived. What is left is the moment in which the engine closes while a request is on
its way; it can't be told from an engine that died with the request, and a POST is never sent twice. So
idle connections are given up after ``keepalive_s``, which must be shorter than the engine's own idle
limit (5 s in uvicorn, and so in SGLang).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from functools import cache

import httpx

from rolecall.client.exchange import SentExchange
from rolecall.client.transport import ConnectError, Exchange, Headers, Incoming, Outgoing
from rolecall.errors import UpstreamError

_POOL_CONNECTIONS = 8


class HttpxTransport:
    """Sends over httpx; at most ``max_concurrency`` requests at once, the others wait their turn.

    connect_timeout_s: for one TCP (and TLS) handshake; waiting for a turn doesn't count. Generous: a
        burst of a thousand handshakes fills a listener's backlog, and the kernel repeats the lost ones
        only after 1, 3 and 7 seconds. A dead process refuses at once whatever it is.
    keepalive_s: how long a connection may lie idle; see the module's docstring.
    via: carries the requests instead of the network, e.g. ``httpx.ASGITransport``.
    """

    def __init__(
        self,
        *,
        max_concurrency: int,
        connect_timeout_s: float = 30.0,
        keepalive_s: float = 2.0,
        via: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._via = via
        self._turns = asyncio.Semaphore(max_concurrency)
        self._limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=keepalive_s
        )
        self._timeout = httpx.Timeout(None, connect=connect_timeout_s)
        self._pools: list[_Pool] = []
        self._with_room: list[_Pool] = []

    def _new_pool(self) -> _Pool:
        # trust_env off: a proxy variable in the environment must not catch traffic to engines.
        client = httpx.AsyncClient(
            verify=_tls(),
            limits=self._limits,
            timeout=self._timeout,
            transport=self._via,
            trust_env=False,
            follow_redirects=False,
        )
        client.headers.clear()
        pool = _Pool(client)
        self._pools.append(pool)
        return pool

    def begin(self, request: Outgoing) -> Exchange:
        return SentExchange(self, request)

    async def send(self, request: Outgoing) -> Incoming:
        await self._turns.acquire()
        if not self._with_room:
            self._with_room.append(self._new_pool())
        lease = _Lease(self._with_room, self._turns)
        try:
            with _translated(request.url):
                outgoing = lease.client.build_request(
                    request.method, request.url, headers=list(request.headers), content=request.body
                )
                response = await lease.client.send(outgoing, stream=True)
        except BaseException:
            lease.end()
            raise
        return _HttpxIncoming(response, request.url, lease)

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.client.aclose()


@cache
def _tls() -> ssl.SSLContext:
    """One context for all: reading the certificate store takes tens of milliseconds."""
    return ssl.create_default_context()


class _Pool:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.active = 0


class _Lease:
    """One request's turn and its place in a pool with room, given back once."""

    def __init__(self, with_room: list[_Pool], turns: asyncio.Semaphore) -> None:
        self._with_room = with_room
        self._turns = turns
        self._pool = with_room[-1]
        self._pool.active += 1
        if self._pool.active == _POOL_CONNECTIONS:
            with_room.pop()
        self._held = True

    @property
    def client(self) -> httpx.AsyncClient:
        return self._pool.client

    def end(self) -> None:
        if not self._held:
            return
        self._held = False
        if self._pool.active == _POOL_CONNECTIONS:
            self._with_room.append(self._pool)
        self._pool.active -= 1
        self._turns.release()


class _HttpxIncoming:
    def __init__(self, response: httpx.Response, url: str, lease: _Lease) -> None:
        self._response = response
        self._url = url
        self._lease = lease
        self.status = response.status_code
        self.headers: Headers = [(name.lower(), value) for name, value in response.headers.raw]

    async def chunks(self) -> AsyncIterator[bytes]:
        with _translated(self._url):
            async for chunk in self._response.aiter_raw():
                if chunk:
                    yield chunk

    async def aclose(self) -> None:
        try:
            await self._response.aclose()
        finally:
            self._lease.end()


@contextmanager
def _translated(url: str) -> Generator[None]:
    """Turn httpx's errors into the transport's."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        failure = ConnectError(f"no connection to {url}: {_reason(error)}")
        failure.refused = _was_refused(error)
        raise failure from error
    except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
        raise UpstreamError(f"{url}: {_reason(error)}") from error


def _was_refused(error: BaseException | None) -> bool:
    """Whether a refusal is among the causes; httpx and anyio each wrap it in an error of their own."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError):
            return True
        if isinstance(error, BaseExceptionGroup):
            return all(_was_refused(part) for part in error.exceptions)
        error = error.__cause__ or error.__context__
    return False


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
