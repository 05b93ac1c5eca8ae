"""Everything that is left to chance in a schedule, from its seed alone: layout, delays, faults.

Faults are planned by message number: the n-th message of the schedule meets them. So they fall into every
phase alike, and a message that is sent while a fault is planned for it is the natural place for it to strike.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Fate(StrEnum):
    """What may become of one message."""

    LOST = "lost"
    MUTE = "carried out, its answer lost"
    SLOW = "delivered late"
    LATE = "answered late"
    TWICE = "delivered twice"
    WRONG = "answered wrongly"


class Blow(StrEnum):
    """What may happen to a process, a disk or a wire."""

    KILL_ENGINE = "engine killed"
    HANG_ENGINE = "engine hangs"
    KEEP_MEMORY = "engine will keep its memory"
    LOSE_WEIGHTS = "engine will lose its weights"
    KILL_WORKER = "worker killed"
    KILL_COORDINATOR = "coordinator killed"
    KILL_ROLE = "role service killed"
    KILL_JOB = "job killed"
    KILL_DRIVER = "driver killed"
    KILL_CONSUMER = "consumer killed"
    PARTITION = "partition"
    FAIL_REQUEST = "a request will fail"
    SINK_FULL = "sink full"
    SINK_UNSURE = "sink stores, but raises"
    DISK_FULL = "journal's disk full"
    DISK_STUCK = "journal torn, and not to be mended"


_FATES = tuple(Fate)
_BLOWS = tuple(Blow)


class Chance:
    """One schedule's luck. ``faults`` limits how many are planned; 0 gives a quiet schedule."""

    def __init__(self, seed: int, *, faults: int | None = None) -> None:
        self._random = Random(seed)
        self.idle = False
        """Engines take no time: while a job is brought up without faults."""
        draw = self._random.random
        planned = (0, 1, 1, 1, 2, 2, 4)[int(draw() * 7)] if faults is None else faults
        horizon = (10, 20, 30, 60)[int(draw() * 4)]
        self.plan: dict[int, list[Fate | Blow]] = {}
        for _ in range(planned):
            kinds: Sequence[Fate | Blow] = _FATES if draw() < 0.5 else _BLOWS
            self.plan.setdefault(int(draw() * horizon), []).append(kinds[int(draw() * len(kinds))])

    def delay(self) -> float:
        """Of one message or call, seconds: mostly short, sometimes long enough to be overtaken."""
        drawn = self._random.random()
        return drawn * 0.01 if drawn < 0.9 else (drawn - 0.9) * 5.0

    def message_delay(self) -> float:
        """Of a message, seconds: often none at all."""
        drawn = self._random.random()
        return 0.0 if drawn < 0.5 else self.delay()

    def work(self) -> float:
        """Of a step of an engine, seconds."""
        return 0.0 if self.idle else self.delay()

    def long_delay(self) -> float:
        """Of a message that is held up: from seconds to far beyond every deadline."""
        drawn = self._random.random()
        return 1.0 + drawn * drawn * 150.0

    def happens(self, probability: float) -> bool:
        return self._random.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self._random.random() * len(options))]
