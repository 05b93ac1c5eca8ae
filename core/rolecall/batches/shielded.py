"""Finishing what was begun although the caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def finish(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run ``work`` to its end even if the caller is cancelled meanwhile.

    The cancellation is raised afterwards, unless the work itself failed: then its error is
    raised, since what it left behind is what the caller must deal with.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
