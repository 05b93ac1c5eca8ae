"""The places in llama.cpp's batch: who has one, and what its cache still holds.

Used from the event loop. Slots are chosen here, not by llama.cpp, so that dropping the cache can
be done without it: a forgotten slot's next request does not reuse anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from attrs import define, field


@define(eq=False)
class Slot:
    """One sequence's place; ``cached`` are the ids its cache holds, empty when forgotten."""

    index: int
    cached: tuple[int, ...] = ()
    last_use: int = 0


@define(eq=False)
class _Waiter:
    sequence: Sequence[int]
    granted: asyncio.Future[Slot] = field(factory=lambda: asyncio.get_running_loop().create_future())


class SlotPool:
    """Grants slots first come, first served, while open."""

    def __init__(self, count: int) -> None:
        self._free = [Slot(index) for index in range(count)]
        self._all = tuple(self._free)
        self._waiting: deque[_Waiter] = deque()
        self._open = True
        self._uses = 0

    async def take(self, sequence: Sequence[int]) -> Slot:
        """Wait for a slot, the free one that shares the longest start with ``sequence``.

        Cancelling gives up the place in the queue, also when the slot was granted meanwhile.
        """
        waiter = _Waiter(sequence)
        self._waiting.append(waiter)
        self._grant()
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif waiter.granted.done() and not waiter.granted.cancelled():
                slot = waiter.granted.result()
                self.give_back(slot, slot.cached)
            raise

    def give_back(self, slot: Slot, cached: tuple[int, ...]) -> None:
        """Return a slot whose cache now holds ``cached``."""
        self._uses += 1
        slot.cached, slot.last_use = cached, self._uses
        self._free.append(slot)
        self._grant()

    def set_open(self, is_open: bool) -> None:
        """Grant slots, or let everyone wait."""
        self._open = is_open
        self._grant()

    def forget(self) -> None:
        """Let no later request reuse what any slot's cache holds."""
        for slot in self._all:
            slot.cached = ()

    def _grant(self) -> None:
        while self._open and self._free and self._waiting:
            waiter = self._waiting.popleft()
            if waiter.granted.done():
                continue
            best = max(self._free, key=lambda slot: (_shared(slot.cached, waiter.sequence), -slot.last_use))
            self._free.remove(best)
            waiter.granted.set_result(best)


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
