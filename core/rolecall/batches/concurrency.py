"""Many awaitable calls with a bound on how many are under way at once.

Used by every stage that asks engines. Holds no limits of its own; the caller passes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


async def gather_bounded(
    items: Iterable[_Item], work: Callable[[_Item], Awaitable[_Result]], limit: int
) -> list[_Result]:
    """Await ``work(item)`` for all items, at most ``limit`` at once; results in the items' order.

    The first call that raises ends the others and is raised itself, not in a group. Cancelling
    the caller cancels the calls under way; in both cases none is left when this returns.
    """
    import asyncio  # a while to import; plugins import this module while a job is planned

    results: dict[int, _Result] = {}
    queue = iter(enumerate(items))

    async def take() -> None:
        # Workers share the iterator, so a task exists only for what runs, however long the list is.
        for index, item in queue:
            results[index] = await work(item)

    failed: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(limit):
                workers.create_task(take())
    except BaseExceptionGroup as group:
        failed = group.exceptions[0]
    if failed is not None:
        raise failed
    return [results[index] for index in range(len(results))]
