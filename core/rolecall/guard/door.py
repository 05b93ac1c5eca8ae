"""The door: an engine's published address, and the only switches of its guard.

Implements :class:`~rolecall.engines.admission.Admission` for the engine host, in whose event loop it
serves. It owns the bound socket it is made with, the permits, and the connections on both sides.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from rolecall.client.http1_transport import Http1Transport
from rolecall.client.transport import Outgoing
from rolecall.errors import EngineError
from rolecall.guard.app import GuardApp
from rolecall.guard.flight import Flight, Upstream
from rolecall.guard.permits import DoorState, Permits
from rolecall.listener import Listener

logger = logging.getLogger(__name__)

_WORK_AT_ONCE = 2**16
"""Callers bound themselves, and the engine queues: a limit here would only hide a queue from both."""
_CONTROL_AT_ONCE = 1024


class Door:
    """Closed when made; see the module's contract. Make, use and stop it in one event loop."""

    def __init__(self, bound: socket.socket) -> None:
        host, port = bound.getsockname()[:2]
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._permits = Permits(f"the door at {self._url}")
        self._listener = Listener(GuardApp(self), bound)
        self._upstream: Upstream | None = None
        self._flights: dict[asyncio.Task[None], Flight] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    # --- for the engine host ------------------------------------------------------------

    @property
    def url(self) -> str:
        return self._url

    @property
    def permits(self) -> int:
        return self._permits.out

    async def start(self, engine_url: str, served_model_name: str) -> None:
        """Listen, closed; what is let through later goes to ``engine_url``, metadata has this name.

        Raises:
            EngineError: it was started or stopped before.
        """
        if self._upstream is not None or self._permits.state is DoorState.STOPPED:
            raise EngineError(f"the door at {self._url} is started once")
        self._upstream = Upstream(
            base_url=engine_url.rstrip("/"),
            served_model_name=served_model_name,
            work=Http1Transport(max_concurrency=_WORK_AT_ONCE),
            control=Http1Transport(max_concurrency=_CONTROL_AT_ONCE),
        )
        await self._listener.start()

    def open(self) -> None:
        if self._upstream is None:
            raise EngineError(f"the door at {self._url} has no engine to let anybody to")
        self._permits.open()

    def close(self) -> None:
        self._permits.close()
        for flight in self._flights.values():
            # The engine has to become quiet, however slowly its callers read.
            flight.pipe.widen()

    async def drained(self) -> None:
        if self._permits.state is DoorState.OPEN:
            raise EngineError(f"the door at {self._url} is open, so it can't be drained; close it first")
        await self._empty.wait()
        self._permits.acknowledge()

    async def stop(self) -> None:
        self._permits.stop()
        await self._listener.stop()
        flights = list(self._flights)
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
        if self._upstream is not None:
            await self._upstream.aclose()

    # --- for the app ----------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._permits.state is DoorState.OPEN

    @property
    def upstream(self) -> Upstream:
        assert self._upstream is not None, "the app serves only once the door is started"
        return self._upstream

    def begin(self, request: Outgoing, rids: Callable[[], tuple[str, ...]]) -> Flight:
        """Take a permit and send; the permit goes back when the flight ends, however it does.

        Raises:
            DoorClosedError: nobody is let in.
        """
        self._permits.take()
        self._empty.clear()
        flight = Flight(self.upstream, request, rids)
        task = asyncio.create_task(flight.run(), name="rolecall-flight")
        self._flights[task] = flight
        task.add_done_callback(self._landed)
        return flight

    def _landed(self, task: asyncio.Task[None]) -> None:
        del self._flights[task]
        self._permits.give_back()
        if self._permits.out == 0:
            self._empty.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a request through %s broke what it should not", self._url, exc_info=error)
