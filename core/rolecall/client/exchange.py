"""Exchange: one request to one engine, from sending to the engine's end of it.

Every step runs in a task of its own. A caller that stops waiting (deadline, disconnect, cancellation)
therefore cuts nothing: the exchange goes on without it and is handed to the aborter
(:mod:`rolecall.client.aborter`), which tells the engine to stop and reads on until the engine *has*
stopped. Cutting the connection instead would lose the only proof of that.

Every exchange ends in one of two ways: read to its end and closed, or abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from rolecall.client.transport import Incoming, Outgoing, Transport
from rolecall.errors import UpstreamError

_T = TypeVar("_T")


class Exchange:
    """One POST and its answer; used by one caller at a time.

    ended: the engine has finished with the request, by the end of its answer or of the connection.
    """

    def __init__(self, transport: Transport, request: Outgoing) -> None:
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
        """Send, and return the head of the answer.

        Raises:
            UpstreamError: see :meth:`Transport.send`.
        """
        return await self._run(self._open())

    async def next_chunk(self) -> bytes:
        """Return the next piece of the body, empty at its end.

        Raises:
            UpstreamError: the connection broke.
        """
        return await self._run(self._next())

    async def read(self) -> bytes:
        """Return the rest of the body.

        Raises:
            UpstreamError: the connection broke.
        """
        return await self._run(self._read())

    async def finish(self) -> None:
        """Read on and throw away until the engine has ended; a broken connection is an end, too."""
        try:
            if self._step is not None:
                await self._step
            if self._incoming is not None:
                while await self._next():
                    pass
        except UpstreamError:
            pass  # The engine let go of the request: all that is asked here.

    async def aclose(self) -> None:
        """Cut what still runs. Repeats do nothing."""
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
