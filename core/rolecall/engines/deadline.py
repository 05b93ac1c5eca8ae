"""One outer deadline per command; every inner wait is derived from it.

A command's deadline is made once, where the command enters, and handed down. An inner wait asks
it for its share, so no inner wait can outlive the outer call. Time comes from an injected
:class:`Clock`: tests turn it by hand.

Nothing here retries, and nothing here knows what it bounds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from attrs import field, frozen, validators

from rolecall.errors import EngineError

T = TypeVar("T")

logger = logging.getLogger(__name__)

_RESOLUTION_S = 1e-6


class Clock(Protocol):
    """Monotonic time and a way to wait for it."""

    def now_s(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class LoopClock:
    """The running event loop's monotonic time."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class DeadlineExceededError(EngineError):
    """A step did not end in the time it was given; what it achieved is unknown."""


@frozen(kw_only=True)
class Deadline:
    """A moment on a clock, and how long the whole was meant to take (for messages)."""

    clock: Clock
    ends_s: float
    total_s: float = field(validator=validators.ge(0))

    @staticmethod
    def after(clock: Clock, seconds: float) -> Deadline:
        """Return the deadline that is ``seconds`` from now."""
        return Deadline(clock=clock, ends_s=clock.now_s() + seconds, total_s=seconds)

    def remaining_s(self) -> float:
        """Seconds left; zero once it has passed."""
        left = self.ends_s - self.clock.now_s()
        # Less than the clock can wait for is nothing: sleeping it would not move the time.
        return left if left > _RESOLUTION_S else 0.0

    @property
    def passed(self) -> bool:
        return self.remaining_s() <= 0.0

    def at_most(self, seconds: float) -> Deadline:
        """Return an inner deadline of ``seconds``, cut to what is left of this one."""
        return Deadline.after(self.clock, min(seconds, self.remaining_s()))

    def share(self, fraction: float) -> Deadline:
        """Return an inner deadline of a fraction of what is left, so that later steps have time."""
        return Deadline.after(self.clock, self.remaining_s() * fraction)

    def leaving(self, seconds: float) -> Deadline:
        """Return an inner deadline that ends ``seconds`` earlier, for cleaning up or answering.

        A short outer deadline gives up at most a fifth of itself.
        """
        remaining = self.remaining_s()
        return Deadline.after(self.clock, remaining - min(seconds, remaining / 5))

    async def pause(self, seconds: float) -> None:
        """Wait ``seconds``, or until the deadline if that comes first."""
        await self.clock.sleep(min(seconds, self.remaining_s()))

    async def bound(self, work: Coroutine[Any, Any, T], doing: str) -> T:
        """Run ``work`` and return its result, or cancel it when the deadline passes.

        Cancellation of the caller cancels the work. The work is not waited for once it has been
        cancelled: a step that ignores cancellation can't hold up the command.

        Raises:
            DeadlineExceededError: ``doing`` did not end in time.
        """
        task = asyncio.ensure_future(work)
        timer = asyncio.ensure_future(self.clock.sleep(self.remaining_s()))
        try:
            await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise DeadlineExceededError(
                f"{doing} did not end within {self.total_s:.3g} s; what it achieved is unknown"
            )
        finally:
            timer.cancel()
            if not task.done():
                task.add_done_callback(_log_late_end)
                task.cancel()
            elif not task.cancelled():
                task.exception()  # read, also when the caller was cancelled and nobody will


def _log_late_end(task: asyncio.Future[Any]) -> None:
    """Read a cancelled step's result, so that an error raised while it was cancelled is seen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.info("a step that was given up ended with %s: %s", type(error).__name__, error)
