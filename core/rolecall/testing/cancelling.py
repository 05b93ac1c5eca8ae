"""Cancels what waits, and says whether it really ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def cancel_when(
    reached: asyncio.Event | Coroutine[Any, Any, object], work: Coroutine[Any, Any, object], patience_s: float
) -> None:
    """Start ``work``, cancel it once ``reached`` has come, and check that nothing of it is left.

    Work that ends before it is reached is not cancelled.

    Raises:
        AssertionError: it went on, or came to an end as if nobody had cancelled it, or left a task behind.
    """
    before = asyncio.all_tasks()
    task = asyncio.create_task(work)
    signal = asyncio.create_task(reached.wait() if isinstance(reached, asyncio.Event) else reached)
    await asyncio.wait({task, signal}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
    signal.cancel()
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=patience_s)
        assert task.done(), f"it was cancelled and still runs after {patience_s:g} s"
        assert task.cancelled(), f"it was cancelled, and swallowed that: {_end_of(task)}"
    left = asyncio.all_tasks() - before - {task, signal}
    for other in left:
        other.cancel()
    assert not left, f"it left tasks behind: {[other.get_coro() for other in left]}"


def _end_of(task: asyncio.Task[object]) -> str:
    error = task.exception()
    return f"it returned {task.result()!r:.120}" if error is None else f"it raised {error!r}"
