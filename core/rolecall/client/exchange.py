"""An exchange over any transport that can send: every step runs in a task of its own.

So whoever stops waiting for a step does not end it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol, TypeVar

from rolecall.client.transport import Incoming, Outgoing, Take
from rolecall.errors import UpstreamError

_T = TypeVar("_T")


class Sends(Protocol):
    """The part of a transport that is needed here."""

    async def send(self, request: Outgoing) -> Incoming: ...


class SentExchange:
    """Implements :class:`~rolecall.client.transport.Exchange`; sends when it is opened."""

    def __init__(self, transport: Sends, request: Outgoing) -> None:
        self._transport = transport
        self._request = request
        self._incoming: Incoming | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._step: asyncio.Task[Any] | None = None
        self.ended = False

    @property
    def url(self) -> str:
        return self._request.url

    async def open(self) -> Incoming:
        return await self._run(self._open())

    async def next_chunk(self) -> bytes:
        return await self._run(self._next())

    async def pour(self, take: Take) -> bool:
        while chunk := await self.next_chunk():
            if not take(chunk):
                return False
        return True

    async def read(self) -> bytes:
        return await self._run(self._read())

    async def finish(self) -> None:
        try:
            if self._step is not None:
                await self._step
            if self._incoming is not None:
                while await self._next():
                    pass
        except UpstreamError:
            pass  # The engine let go of the request: all that is asked here.

    async def aclose(self) -> None:
        if self._step is not None and not self._step.done():
            self._step.cancel()
            await asyncio.wait({self._step})
        if self._incoming is not None:
            await self._incoming.aclose()

    # --- steps --------------------------------------------------------------------------

    async def _run(self, step: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.create_task(step)
        self._step = task
        return await asyncio.shield(task)

    async def _open(self) -> Incoming:
        try:
            self._incoming = await self._transport.send(self._request)
        except UpstreamError:
            self.ended = True
            raise
        self._chunks = self._incoming.chunks()
        return self._incoming

    async def _next(self) -> bytes:
        assert self._chunks is not None
        try:
            chunk = await anext(self._chunks, b"")
        except UpstreamError:
            self.ended = True
            raise
        self.ended = not chunk
        return chunk

    async def _read(self) -> bytes:
        parts: list[bytes] = []
        while chunk := await self._next():
            parts.append(chunk)
        return b"".join(parts)
