"""The port to the door in front of an engine's head.

An engine that can sleep listens where only its worker reaches it; requests come through a door,
which the engine host opens and closes (``rolecall.guard`` has the real one). The door counts a
*permit* for each request it let through, from its first byte to the end of the answer, so that
"drained" means "zero permits", counted, not guessed. Engines that can't sleep have none.
"""

from __future__ import annotations

from typing import Protocol


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

    async def start(self, engine_url: str) -> None:
        """Listen, closed; what is let through later goes to ``engine_url``."""
        ...

    def open(self) -> None:
        """Let requests in. Repeats do nothing.

        Raises:
            EngineError: a permit is still out, so the last drain has not ended.
        """
        ...

    def close(self) -> None:
        """Let no request in; those inside go on, and cancelling stays possible. Repeats do nothing."""
        ...

    async def drained(self) -> None:
        """Return when no permit is out; the caller bounds the wait."""
        ...

    async def stop(self) -> None:
        """Cut every connection and stop listening. Repeats do nothing."""
        ...
