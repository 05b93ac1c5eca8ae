"""An event loop in virtual time, made for many short schedules one after the other.

Like :class:`rolecall.testing.virtual_time.VirtualTimeLoop` it jumps to the next timer when every task waits,
but it has no selector, and "threads" (``run_in_executor``) take virtual time. One loop serves all schedules.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any

LONGEST_S = 20_000.0
"""A schedule lasts longer if somebody looks after engines for ever, and nobody else moves."""

Latency = Callable[[], float]


class StuckError(Exception):
    """Somebody waits for what will never come."""


class SimLoop(asyncio.BaseEventLoop):
    """``latency`` gives the time that a call to a thread takes, there and back."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self.latency: Latency = lambda: 0.0
        # Errors that nobody awaited come when their tasks are collected: in no schedule for certain.
        self.set_exception_handler(lambda loop, context: None)
        self._soon: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._number = 0
        self._broken: BaseException | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    def time(self) -> float:
        return self._now

    def play(self, main: Coroutine[Any, Any, None], latency: Latency) -> None:
        """Run one schedule from time 0, and leave nothing of it behind."""
        self._now = 0.0
        self._stopping = False  # somebody may have stopped it when it had ended
        self.latency = latency
        self._broken = None
        try:
            self.run_until_complete(main)
        finally:
            self._clear()
        if self._broken is not None:
            raise self._broken

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Call ``func`` in its own moment, as a thread would; what it raises is its outcome."""
        outcome = self.create_future()

        def work() -> None:
            result, error = None, None
            try:
                result = func(*args)
            except Exception as raised:
                error = raised
            self._after(self.latency(), settle, result, error)

        def settle(result: Any, error: Exception | None) -> None:
            if outcome.done():
                return
            if error is None:
                outcome.set_result(result)
            else:
                outcome.set_exception(error)

        self._after(self.latency(), work)
        return outcome

    def _after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        if seconds:
            self.call_later(seconds, call, *args)
        else:
            call(*args)

    # --- a loop without sockets and other threads, and with nothing to check ------------------

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = _Handle(callback, args, context or copy_context())
        self._soon.append(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = _Handle(callback, args, context or copy_context())
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, handle))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        return task

    def _run_once(self) -> None:
        soon, timers = self._soon, self._timers
        if not soon:
            while timers and timers[0][2].is_cancelled:
                heapq.heappop(timers)
            if not timers:
                raise StuckError("every task waits for something that nothing will bring about")
            self._now = max(self._now, timers[0][0])
            if self._now > LONGEST_S:
                raise StuckError(f"somebody still waits after {LONGEST_S:,.0f} s")
        now = self._now
        while timers and timers[0][0] <= now:
            soon.append(heapq.heappop(timers)[2])
        for _ in range(len(soon)):
            handle = soon.popleft()
            if handle.is_cancelled:
                continue
            try:
                handle.context.run(handle.callback, *handle.args)
            except Exception as error:
                self._broken = self._broken or error

    def _clear(self) -> None:
        """End every task that is left, and forget every timer."""
        self.latency = lambda: 0.0
        for _ in range(100):
            left = [task for task in self._tasks if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            self._timers.clear()
            self.call_soon(self.stop)
            self.run_forever()
        self._tasks.clear()
        self._soon.clear()
        self._timers.clear()


class _Handle:
    """A callback that is due, and may be cancelled: as :class:`asyncio.Handle`, without its checks."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(self, callback: Any, args: tuple[Any, ...], context: Context) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled
