"""Calls that are made again while nobody is there to answer them.

For calls whose repeat does nothing, or joins the first, as all of the coordinator's do. Pure asyncio: the
client over Ray uses it while the coordinator's actor is restarted, a simulation while its coordinator is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rolecall.errors import JobError

logger = logging.getLogger(__name__)

RESTART_S = 60.0
"""How long a restart may take; an actor that can't be scheduled again will never answer."""

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0

T = TypeVar("T")


class UnreachableError(JobError):
    """There was nobody to answer a call, which may have been carried out all the same."""


async def repeating(asked: str, call: Callable[[], Awaitable[T]], *, within_s: float = RESTART_S) -> T:
    """Make a call until it is answered, by a result or an error, and return or raise that.

    ``call`` is made anew each time; ``asked`` names it in the log. Pauses double, up to a bound.

    Raises:
        UnreachableError: the last one, when ``within_s`` have passed since the first.
    """
    loop = asyncio.get_running_loop()
    give_up_s: float | None = None
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await call()
        except UnreachableError as error:
            if give_up_s is None:
                give_up_s = loop.time() + within_s
                logger.warning("%s is repeated until it is answered: %s", asked, error)
            if loop.time() + pause_s > give_up_s:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
