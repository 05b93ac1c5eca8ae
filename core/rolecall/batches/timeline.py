"""Keeps the time of a batch: phases, progress and hand-overs, as records and as events.

One instance a batch, owned by the runner. It only watches; nothing it does can fail a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rolecall.batches.report import Direction, Handover, PhaseRecord
from rolecall.events.event import Emit
from rolecall.ids import BatchId
from rolecall.interfaces.role import Progress


class Timeline:
    """Records of one batch; times are seconds since it was made."""

    def __init__(self, batch: BatchId, emit: Emit, clock: Callable[[], float]) -> None:
        self._batch = batch
        self._emit = emit
        self._clock = clock
        self._began = clock()
        self.phases: list[PhaseRecord] = []
        self.handovers: list[Handover] = []
        self.current = "begin"
        """The phase or hand-over under way or, between two, the last one; for messages."""

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    @contextmanager
    def phase(self, name: str, role: str | None, total: int) -> Generator[Progress]:
        """Time a phase; yields what its progress is reported to. A failed phase never finishes."""
        self.current = name
        done, tokens = 0, 0
        start_s = self.seconds

        def progress(samples: int, made: int) -> None:
            nonlocal done, tokens
            done, tokens = done + samples, tokens + made
            self._emit("stage.progress", batch=self._batch, stage=name, done=done, total=total, tokens=tokens)

        self._emit("stage.state", batch=self._batch, stage=name, role=role, state="started")
        progress(0, 0)
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
        self.current = f"{direction} of {role}"
        start_s = self.seconds
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
