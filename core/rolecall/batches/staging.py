"""The CPU staging area: complete groups wait here while roles take turns on the devices.

It bounds how much of a batch may lie in memory and keeps what generation made apart from what
stages add. Scores go to copies; :meth:`StagingArea.write_back` is the one moment in which they
reach the samples, for all or for none.

Stages may run at the same time. What one of them is shown depends on those that have surely ended
before it (:class:`~rolecall.batches.turns.PlannedStage`), never on how fast another one is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from attrs import evolve

from rolecall.batches.sample import Sample, Scores
from rolecall.errors import ScoringError

DEFAULT_CAPACITY = 65_536


class StagingArea:
    """Holds the samples of one batch, in the order in which they were made."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._capacity = capacity
        self._samples: dict[str, Sample] = {}
        self._copies: dict[str, Sample] = {}
        self._dropped_by: dict[str, list[str]] = {}

    def reserve(self, samples: int) -> None:
        """Refuse, before anything is generated, what would not fit.

        Raises:
            ScoringError: more than the capacity.
        """
        if samples > self._capacity:
            raise ScoringError(
                f"{samples} samples do not fit the staging area of {self._capacity}; "
                "make the batch smaller or raise batch.staging_samples"
            )

    def capture(self, samples: Sequence[Sample]) -> None:
        """Take the validated samples of a batch; once."""
        self.reserve(len(samples))
        self._samples = {sample.sample_id: sample for sample in samples}
        self._copies = dict(self._samples)

    @property
    def scored(self) -> tuple[Sample, ...]:
        """Copies of the samples still in the batch, with the scores of the stages so far."""
        return tuple(copy for name, copy in self._copies.items() if name not in self._dropped_by)

    @property
    def dropped(self) -> Mapping[str, str]:
        """Sample id → the stage that dropped it, the first to do so."""
        return {sample_id: stages[0] for sample_id, stages in self._dropped_by.items()}

    def shown_to(self, reads: Set[str], before: Set[str]) -> tuple[Sample, ...]:
        """Return what a stage scores: every sample that no stage of ``before`` has dropped, with those
        of its score fields that the stage ``reads``."""
        return tuple(
            evolve(sample, scores={name: value for name, value in sample.scores.items() if name in reads})
            for sample in self._copies.values()
            if before.isdisjoint(self._dropped_by.get(sample.sample_id, ()))
        )

    def add(self, stage: str, scores: Scores) -> None:
        """Put a stage's validated fields on the copies; a sample scored None leaves the batch."""
        for sample_id, fields in scores.items():
            if fields is None:
                self._dropped_by.setdefault(sample_id, []).append(stage)
            else:
                copy = self._copies[sample_id]
                self._copies[sample_id] = evolve(copy, scores={**copy.scores, **fields})

    def write_back(self, final: Mapping[str, Mapping[str, Any]]) -> tuple[Sample, ...]:
        """Return the batch's samples with their final score fields.

        ``final`` must have the fields of every sample still in the batch: all or none.
        """
        left = [name for name in self._copies if name not in self._dropped_by]
        if set(final) != set(left):
            raise ScoringError(f"scores of {len(final)} samples for a batch of {len(left)}")
        return tuple(
            evolve(self._samples[sample_id], scores=dict(fields)) for sample_id, fields in final.items()
        )
