"""A pipe between an engine that sends and a caller that takes, each at its own pace.

One task writes, one reads. Whoever writes waits for a slow reader, which is what slows the engine down
to its caller; but only until the pipe is *widened*: then it takes everything, so that an engine that has
to be quiet is not kept by a caller who does not read. Bytes come out as they went in, in pieces of any
size.
"""

from __future__ import annotations

import asyncio


class Pipe:
    """``capacity``: bytes that may wait for the reader before the writer does."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._waiting: list[bytes] = []
        self._size = 0
        self._wide = False
        self._dropping = False
        self._ended = False
        self._failure: Exception | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def write(self, data: bytes) -> None:
        """Put bytes in; return when there is room for more."""
        if self._dropping:
            return
        self._waiting.append(data)
        self._size += len(data)
        self._news.set()
        while self._size > self._capacity and not self._wide:
            self._room.clear()
            await self._room.wait()

    def end(self, failure: Exception | None = None) -> None:
        """Say that no more will come, and why if that is no good end. Repeats do nothing."""
        if not self._ended:
            self._ended, self._failure = True, failure
            self._news.set()

    def widen(self) -> None:
        """From now on never make the writer wait."""
        self._wide = True
        self._room.set()

    def drop(self) -> None:
        """Throw away what is and will be in it: nobody reads any more."""
        self._dropping = True
        self._waiting.clear()
        self._size = 0
        self.widen()

    @property
    def exhausted(self) -> bool:
        """Whether all was read, and the end was a good one."""
        return self._ended and self._failure is None and not self._waiting

    async def read(self) -> bytes:
        """Return what has come, at least one byte; empty at the end.

        Raises:
            Exception: what the pipe was ended with, after all that had come before.
        """
        while not self._waiting:
            if self._ended:
                if self._failure is not None:
                    raise self._failure
                return b""
            self._news.clear()
            await self._news.wait()
        data = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        self._waiting.clear()
        self._size = 0
        self._room.set()
        return data
