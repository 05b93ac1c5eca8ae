"""The transport on httpx.

httpx's connection pool looks at all its connections for every request, so its cost grows with the
square of those in use: 512 concurrent calls through one pool ran at 7 a second. Here the connections are
spread over pools of ``_POOL_CONNECTIONS``, which keeps thousands of concurrent calls usable.

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
from math import ceil

import httpx

from rolecall.client.transport import ConnectError, Headers, Incoming, Outgoing
from rolecall.errors import UpstreamError

_POOL_CONNECTIONS = 64


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
        self._tls = ssl.create_default_context()
        self._limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=keepalive_s
        )
        self._timeout = httpx.Timeout(None, connect=connect_timeout_s)
        self._pools = [self._new_pool() for _ in range(ceil(max_concurrency / _POOL_CONNECTIONS))]

    def _new_pool(self) -> _Pool:
        # trust_env off: a proxy variable in the environment must not catch traffic to engines.
        client = httpx.AsyncClient(
            verify=self._tls,
            limits=self._limits,
            timeout=self._timeout,
            transport=self._via,
            trust_env=False,
            follow_redirects=False,
        )
        client.headers.clear()
        return _Pool(client)

    async def send(self, request: Outgoing) -> Incoming:
        await self._turns.acquire()
        # The fullest pools first, so that connections are used again and the last pools run dry.
        pool = next(pool for pool in self._pools if pool.active < _POOL_CONNECTIONS)
        pool.active += 1
        lease = _Lease(pool, self._turns)
        try:
            with _translated(request.url):
                outgoing = pool.client.build_request(
                    request.method, request.url, headers=list(request.headers), content=request.body
                )
                response = await pool.client.send(outgoing, stream=True)
        except BaseException:
            lease.end()
            raise
        return _HttpxIncoming(response, request.url, lease)

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.client.aclose()


class _Pool:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.active = 0


class _Lease:
    """One request's place in a pool and its turn, given back once."""

    def __init__(self, pool: _Pool, turns: asyncio.Semaphore) -> None:
        self._pool = pool
        self._turns = turns
        self._held = True

    def end(self) -> None:
        if self._held:
            self._held = False
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
