"""An asyncio event loop whose clock jumps: hours of timeouts in milliseconds, always the same way.

    run_virtual(scenario())         # like asyncio.run, but no real time passes

    with VirtualClock() as clock:
        clock.run(scenario())
        assert clock.now_s() == 3600

When nothing can run, the loop's clock jumps to the next timer instead of sleeping. When nothing
is scheduled either, the program waits for something that will never come, and the loop raises:
a hanging waiter is an error, not a slow test.

For code that waits only for timers and for other tasks. What is given to a thread of the loop
(``asyncio.to_thread``) runs at once, in the loop's own. Other threads and sockets are not seen: a
result that is still on its way from one counts as "never".
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class NothingScheduledError(RuntimeError):
    """Every task waits and no timer is set."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """``time()`` starts at 0 and moves only when every task waits."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        del executor
        outcome: asyncio.Future[Any] = self.create_future()
        try:
            outcome.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 (handed to the caller, who raises it)
            outcome.set_exception(error)
        return outcome


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise NothingScheduledError("every task waits for something that nothing will bring about")
        self._loop.jump(timeout)
        return []


class VirtualClock:
    """Runs coroutines one after the other, on one loop in virtual time.

    Also a :class:`~rolecall.engines.deadline.Clock` for what has one injected.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=VirtualTimeLoop)

    def __enter__(self) -> VirtualClock:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result; not from inside a running loop."""
        return self._runner.run(main)

    def now_s(self) -> float:
        """Seconds since the clock was made, as timers have counted them."""
        return self._runner.get_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time and return its result."""
    with VirtualClock() as clock:
        return clock.run(main)
