"""What the product takes from its surroundings without being given it, put in the simulation's hands.

Threads become calls of the simulated loop, and random marks are numbered, so that a seed is one schedule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from typing import Any
from uuid import UUID


class _Marks:
    """Stands in for the module ``secrets``."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def token_hex(self, nbytes: int) -> str:
        return f"{next(self._numbers):0{2 * nbytes}x}"


def _numbered_ids() -> Callable[[], UUID]:
    numbers = count(1)
    return lambda: UUID(int=next(numbers) << 80)


async def _call_in_thread(call: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, call)


# By name: the package's own name for it is the function.
_REPLACED = (
    (vars(import_module("rolecall.train.consume")), "_in_daemon_thread", lambda: _call_in_thread),
    (vars(import_module("rolecall.job.training_turn")), "secrets", _Marks),
    (vars(import_module("rolecall.scaling.scaler")), "uuid4", _numbered_ids),
)


@contextmanager
def substituted() -> Generator[None]:
    """Have the substitutes, anew, for the length of a schedule."""
    before = [module[name] for module, name, _ in _REPLACED]
    for module, name, make in _REPLACED:
        module[name] = make()
    try:
        yield
    finally:
        for (module, name, _), original in zip(_REPLACED, before, strict=True):
            module[name] = original
