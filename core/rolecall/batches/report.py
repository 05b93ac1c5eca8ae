"""What a batch did and how long each part took, as values; drawn by the command line."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from attrs import field, frozen

from rolecall.batches.sample import Sample
from rolecall.ids import BatchId


class Direction(StrEnum):
    """Which way a hand-over goes: a role is woken, or put to sleep."""

    ONLOAD = "onload"
    OFFLOAD = "offload"


@frozen(kw_only=True)
class PhaseRecord:
    """One phase: generation, a stage, or publishing. Seconds since the batch began.

    role: awake for it, None if it needs none. ``tokens`` are those made or scored.
    """

    name: str
    role: str | None
    start_s: float
    end_s: float
    samples: int
    tokens: int


@frozen(kw_only=True)
class Handover:
    """One role woken or put to sleep. Seconds since the batch began."""

    role: str
    direction: Direction
    start_s: float
    end_s: float


@frozen(kw_only=True)
class BatchReport:
    """A committed batch.

    samples: as published, scores written back.
    dropped: ids of samples that a reward's ``drop_sample`` took out → the stage that did.
    phases, handovers: in the order in which they ended; they may overlap.
    """

    batch: BatchId
    samples: tuple[Sample, ...]
    dropped: Mapping[str, str] = field(factory=dict)
    phases: tuple[PhaseRecord, ...] = ()
    handovers: tuple[Handover, ...] = ()
    seconds: float = 0.0
