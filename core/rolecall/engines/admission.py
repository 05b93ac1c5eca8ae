"""The port to the door in front of an engine's head.

An engine that has moments in which no request may reach it, since it sleeps or changes its weights,
listens where only its worker reaches it. Requests come through a door, which the engine host opens
and closes (``rolecall.guard`` has the real one). The door counts a *permit* for each request it let
through, from before it is sent to the engine's end of the answer, so that "drained" means "zero
permits", counted, not guessed. Engines without such moments have none.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

from rolecall.interfaces.engine_backend import UPDATE_CAPABILITY, Capability, EngineFeatures


class Admission(Protocol):
    """One door. Closed when made; ``open`` and ``close`` are its only switches."""

    @property
    def url(self) -> str:
        """Where requests go; the engine's published address. Fixed at construction."""
        ...

    @property
    def permits(self) -> int:
        """Requests that were let through and whose end is not confirmed."""
        ...

    async def start(self, engine_url: str, served_model_name: str) -> None:
        """Listen, closed; what is let through later goes to ``engine_url``.

        Metadata that passes names the model ``served_model_name``, whatever the engine calls itself.
        """
        ...

    def open(self) -> None:
        """Let requests in. Repeats do nothing.

        Raises:
            EngineError: a permit is out, or nobody was told by ``drained`` since the last ``close``
                that none is; or the door was stopped.
        """
        ...

    def close(self) -> None:
        """Let no request in; those inside go on, and cancelling stays possible. Repeats do nothing."""
        ...

    async def drained(self) -> None:
        """Return when no permit is out; the caller bounds the wait. That is the drain's end, and
        only then may the door be opened again.

        Raises:
            EngineError: the door is open.
        """
        ...

    async def stop(self) -> None:
        """Cut every connection and stop listening. Repeats do nothing."""
        ...


MakeDoor = Callable[[socket.socket], Admission]
"""Makes a door on a bound socket, which the door owns from then on; it is an engine's published
address, held without a gap from its reservation to the door's end."""


def wants_door(features: EngineFeatures) -> bool:
    """Whether engines with such features have moments in which no request may reach them."""
    return bool(features.capabilities & {Capability.SLEEP, *UPDATE_CAPABILITY.values()})
