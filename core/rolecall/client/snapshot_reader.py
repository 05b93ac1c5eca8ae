"""Reads a role's snapshot over HTTP, from its gateway's ``/engines``."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

from rolecall.client.transport import Headers, Incoming, Outgoing, Transport, header
from rolecall.discovery.registry import Published
from rolecall.errors import RegistryUnavailableError, UpstreamError

_READ_S = 10.0
"""How long a read may take beyond the wait it asked for."""

_PAUSE_FIRST_S = 0.1
_PAUSE_MOST_S = 2.0

_AWAY = frozenset({502, 503, 504})
"""What a front answers while no gateway is behind it."""

_UNROUTED = 404
"""What a front answers that has just started and was not yet told what is behind it."""


class _Away(RegistryUnavailableError):
    """The gateway is not there now; it may be in a moment."""


class HttpSnapshotReader:
    """A :class:`~rolecall.discovery.registry.SnapshotReader` on ``{base_url}/engines``.

    Conditional: what is known comes back as 304. Owns the transport it is given.

    patience_s: how long a gateway may be away, as one that is started again is, before a read fails; it is
        asked again meanwhile, since a read may be repeated.
    """

    def __init__(
        self, transport: Transport, base_url: str, *, token: str | None = None, patience_s: float = 0.0
    ) -> None:
        self._transport = transport
        self._url = f"{base_url}/engines"
        self._token = token
        self._patience_s = patience_s
        self._answered = False

    async def read(self, etag: str | None, wait_s: float) -> Published | None:
        loop = asyncio.get_running_loop()
        started, pause_s = loop.time(), _PAUSE_FIRST_S
        while True:
            try:
                return await self._read(etag, wait_s)
            except _Away as error:
                if loop.time() + pause_s > started + self._patience_s:
                    if not self._patience_s:
                        raise
                    raise RegistryUnavailableError(
                        f"{error}; asked again for {loop.time() - started:.0f} s"
                    ) from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)

    async def _read(self, etag: str | None, wait_s: float) -> Published | None:
        query: dict[str, str] = {}
        if wait_s > 0:
            query["wait_s"] = str(wait_s)
            if etag is not None:
                query["since"] = etag
        url = f"{self._url}?{urlencode(query)}" if query else self._url
        request = Outgoing(method="GET", url=url, headers=self._headers(etag), body=b"")
        try:
            async with asyncio.timeout(wait_s + _READ_S):
                incoming = await self._transport.send(request)
                try:
                    body = b"".join([chunk async for chunk in incoming.chunks()])
                finally:
                    await incoming.aclose()
        except TimeoutError as error:
            raise _Away(f"{self._url} does not answer") from error
        except UpstreamError as error:
            raise _Away(f"discovery can't be read: {error}") from error
        return self._published(incoming, body)

    def _headers(self, etag: str | None) -> Headers:
        headers = [(b"accept", b"application/json"), (b"accept-encoding", b"identity")]
        if etag is not None:
            headers.append((b"if-none-match", f'"{etag}"'.encode()))
        if self._token is not None:
            headers.append((b"authorization", f"Bearer {self._token}".encode()))
        return headers

    def _published(self, incoming: Incoming, body: bytes) -> Published | None:
        if incoming.status == 304:
            return None
        if incoming.status != 200:
            shown = body[:200].decode("utf-8", "replace")
            away = incoming.status in _AWAY or (incoming.status == _UNROUTED and self._answered)
            kind = _Away if away else RegistryUnavailableError
            raise kind(f"{self._url} answered {incoming.status}: {shown}")
        self._answered = True
        etag = (header(incoming.headers, b"etag") or b"").decode("latin-1").removeprefix("W/").strip('"')
        try:
            return Published(etag=etag, body=body.decode())
        except UnicodeDecodeError as error:
            raise RegistryUnavailableError(f"{self._url} answered no UTF-8") from error

    async def aclose(self) -> None:
        await self._transport.aclose()
