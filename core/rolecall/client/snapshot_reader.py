"""Reads a role's snapshot over HTTP, from its gateway's ``/engines``."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

from rolecall.client.transport import Headers, Incoming, Outgoing, Transport, header
from rolecall.discovery.registry import Published
from rolecall.errors import RegistryUnavailableError, UpstreamError

_READ_S = 10.0
"""How long a read may take beyond the wait it asked for."""


class HttpSnapshotReader:
    """A :class:`~rolecall.discovery.registry.SnapshotReader` on ``{base_url}/engines``.

    Conditional: what is known comes back as 304. Owns the transport it is given.
    """

    def __init__(self, transport: Transport, base_url: str, *, token: str | None = None) -> None:
        self._transport = transport
        self._url = f"{base_url}/engines"
        self._token = token

    async def read(self, etag: str | None, wait_s: float) -> Published | None:
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
            raise RegistryUnavailableError(f"{self._url} does not answer") from error
        except UpstreamError as error:
            raise RegistryUnavailableError(f"discovery can't be read: {error}") from error
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
            raise RegistryUnavailableError(f"{self._url} answered {incoming.status}: {shown}")
        etag = (header(incoming.headers, b"etag") or b"").decode("latin-1").strip('"')
        try:
            return Published(etag=etag, body=body.decode())
        except UnicodeDecodeError as error:
            raise RegistryUnavailableError(f"{self._url} answered no UTF-8") from error

    async def aclose(self) -> None:
        await self._transport.aclose()
