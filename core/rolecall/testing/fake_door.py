"""A door without sockets, for tests of what opens and closes it: the real book, requests by hand."""

from __future__ import annotations

import asyncio
import socket

from rolecall.engines.deadline import Clock, LoopClock
from rolecall.guard.permits import Permits

_LOOK_S = 0.01


class FakeDoor:
    """Implements :class:`~rolecall.engines.admission.Admission`.

    calls: the names of all switches used, in order; a test may put another list there, to see the order
        among other calls.
    book: where a test takes permits, as requests would, and gives them back.
    """

    def __init__(self, bound: socket.socket | None = None, *, clock: Clock | None = None) -> None:
        self.url = "http://door.test:80"
        if bound is not None:
            host, port = bound.getsockname()[:2]
            self.url = f"http://{host}:{port}"
        self.calls: list[str] = []
        self.book = Permits("the fake door")
        self.engine_url: str | None = None
        self.served_model_name: str | None = None
        self._bound = bound
        self._clock = clock or LoopClock()

    @property
    def permits(self) -> int:
        return self.book.out

    async def start(self, engine_url: str, served_model_name: str) -> None:
        self.engine_url = engine_url
        self.served_model_name = served_model_name
        self.calls.append("door.start")

    def open(self) -> None:
        self.calls.append("door.open")
        self.book.open()

    def close(self) -> None:
        self.calls.append("door.close")
        self.book.close()

    async def drained(self) -> None:
        while self.book.out:  # permits are given back by tests, from anywhere
            await self._clock.sleep(_LOOK_S)
        self.book.acknowledge()
        self.calls.append("door.drained")

    async def stop(self) -> None:
        self.calls.append("door.stop")
        self.book.stop()
        if self._bound is not None:
            self._bound.close()
        await asyncio.sleep(0)
