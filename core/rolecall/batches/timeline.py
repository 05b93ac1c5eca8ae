"""Keeps the time of a batch: phases, progress and hand-overs, as records and as events.

One instance a batch, owned by the runner. Phases and hand-overs may overlap. It only watches; nothing it
does can fail a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rolecall.batches.report import Direction, Handover, PhaseRecord
from rolecall.events.event import Emit
from rolecall.ids import BatchId
from rolecall.interfaces.role import Progress


class Timeline:
    """Records of one batch, in the order in which they ended; times are seconds since it was made."""

    def __init__(self, batch: BatchId, emit: Emit, clock: Callable[[], float]) -> None:
        self._batch = batch
        self._emit = emit
        self._clock = clock
        self._began = clock()
        self._under_way: dict[str, None] = {}
        self._ended_in: str | None = None
        self._has_failed = False
        self.phases: list[PhaseRecord] = []
        self.handovers: list[Handover] = []

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    @property
    def where(self) -> str:
        """The step that failed first; or else those that were under way when the batch was cancelled."""
        return self._ended_in or "begin"

    @contextmanager
    def step(self, name: str) -> Generator[None]:
        """Note that something is under way, for messages; a failure in it is one of the batch."""
        self._under_way[name] = None
        try:
            yield
        except asyncio.CancelledError:
            self._ended_in = self._ended_in or " and ".join(self._under_way)
            raise
        except BaseException:
            if not self._has_failed:
                self._ended_in, self._has_failed = name, True
            raise
        finally:
            del self._under_way[name]

    @contextmanager
    def phase(self, name: str, role: str | None, total: int) -> Generator[Progress]:
        """Time a phase; yields what its progress is reported to. A failed phase never finishes."""
        done, tokens = 0, 0
        start_s = self.seconds

        def progress(samples: int, made: int) -> None:
            nonlocal done, tokens
            done, tokens = done + samples, tokens + made
            self._emit("stage.progress", batch=self._batch, stage=name, done=done, total=total, tokens=tokens)

        self._emit("stage.state", batch=self._batch, stage=name, role=role, state="started")
        progress(0, 0)
        with self.step(name):
            yield progress
        self.phases.append(
            PhaseRecord(
                name=name, role=role, start_s=start_s, end_s=self.seconds, samples=done, tokens=tokens
            )
        )
        self._emit("stage.state", batch=self._batch, stage=name, role=role, state="finished")

    @contextmanager
    def handover(self, role: str, direction: Direction) -> Generator[None]:
        """Time a hand-over that succeeds."""
        start_s = self.seconds
        with self.step(f"{direction} of {role}"):
            yield
        record = Handover(role=role, direction=direction, start_s=start_s, end_s=self.seconds)
        self.handovers.append(record)
        self._emit(
            "handover",
            batch=self._batch,
            role=role,
            direction=str(direction),
            seconds=record.end_s - record.start_s,
        )
