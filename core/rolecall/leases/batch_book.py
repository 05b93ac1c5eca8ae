"""All batches of a run and its first failure: pure, synchronous, no leases.

Invariants: the first failure wins and is never replaced; once the run has failed no batch is
PENDING and none is begun; a committed batch stays committed. Committed batches are remembered up
to a bound; what is older is answered with "no longer known", never with a guess.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from attrs import frozen

from rolecall.errors import BatchFailedError, CommitTimeoutError, TransitionError
from rolecall.events.event import Emit
from rolecall.ids import BatchId
from rolecall.leases.batch_state import Batch, BatchState

COMMITTED_BATCHES = 1_024
"""Committed batches that are remembered."""


@frozen(kw_only=True)
class RunFailure:
    """The first failure of the run."""

    batch: BatchId
    reason: str


class BatchBook:
    """Opened, written and read by the ledger alone."""

    def __init__(
        self, *, emit: Emit, clock: Callable[[], float], committed_limit: int = COMMITTED_BATCHES
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._limit = committed_limit
        self._batches: dict[BatchId, Batch] = {}
        self._committed: deque[BatchId] = deque()
        self._highest_forgotten = BatchId(-1)
        self.failure: RunFailure | None = None

    def begin(self, number: BatchId) -> None:
        """Open a batch; an already pending one is left as it is.

        Raises:
            BatchFailedError: the run has failed.
            TransitionError: the batch was committed, or is too old to tell.
        """
        self.require_healthy(number)
        if self.is_pending(number):
            return
        if number in self._batches or self._is_forgotten(number):
            raise TransitionError(
                f"batch {number} can't begin: {self.describe(number)}; batch numbers are never reused"
            )
        self._batches[number] = Batch(number, emit=self._emit, clock=self._clock)

    def require_pending(self, number: BatchId) -> None:
        """Return if the batch is PENDING.

        Raises:
            BatchFailedError: the run has failed.
            TransitionError: the batch has not begun or has ended.
        """
        self.require_healthy(number)
        if not self.is_pending(number):
            raise TransitionError(f"batch {number} is not open: {self.describe(number)}")

    def is_pending(self, number: BatchId) -> bool:
        """Return whether the batch has begun and not ended."""
        batch = self._batches.get(number)
        return batch is not None and batch.state is BatchState.PENDING

    def require_healthy(self, number: BatchId) -> None:
        """Raise the run's first failure, worded for this batch, if there is one."""
        if self.failure is None:
            return
        first = f"batch {self.failure.batch} failed: {self.failure.reason}"
        if number == self.failure.batch:
            raise BatchFailedError(first)
        raise BatchFailedError(f"batch {number} can't be committed, the run has failed: {first}")

    def is_committed(self, number: BatchId) -> bool:
        """Return whether the batch is committed; False means it still may be.

        Raises:
            BatchFailedError: it never will be, as it or the run failed.
            CommitTimeoutError: it is older than all remembered batches and not open.
        """
        if self.knows_committed(number):
            return True
        if self._is_forgotten(number):
            raise CommitTimeoutError(f"waiting for batch {number} is pointless: {self.describe(number)}")
        self.require_healthy(number)
        return False

    def knows_committed(self, number: BatchId) -> bool:
        """Return whether the batch is remembered as COMMITTED."""
        batch = self._batches.get(number)
        return batch is not None and batch.state is BatchState.COMMITTED

    def commit(self, number: BatchId, *, reason: str) -> None:
        """Enter COMMITTED; the caller has checked everything that speaks against it."""
        self._batches[number].enter_state(BatchState.COMMITTED, reason=reason)
        self._committed.append(number)
        if len(self._committed) > self._limit:
            oldest = self._committed.popleft()
            del self._batches[oldest]
            self._highest_forgotten = max(self._highest_forgotten, oldest)

    def fail(self, number: BatchId, *, reason: str) -> None:
        """Fail the batch and the run, unless the run has failed before.

        A batch that never began is failed too: its begin may have been lost on the way, and
        somebody may wait for it.

        Raises:
            TransitionError: the batch was committed, or is too old to tell.
        """
        if self.knows_committed(number) or self._is_forgotten(number):
            raise TransitionError(f"batch {number} can't fail ({reason}): {self.describe(number)}")
        if self.failure is not None:
            return
        batch = self._batches.get(number)
        if batch is None:
            batch = self._batches[number] = Batch(number, emit=self._emit, clock=self._clock)
        self.failure = RunFailure(batch=number, reason=reason)
        batch.enter_state(BatchState.FAILED, reason=reason)
        for other in self._batches.values():
            if other.state is BatchState.PENDING:
                other.enter_state(BatchState.FAILED, reason=f"batch {number} failed: {reason}")

    def describe(self, number: BatchId) -> str:
        """Return the batch's present state in words."""
        batch = self._batches.get(number)
        if batch is not None:
            return f"it is {batch.state} since {self._clock() - batch.entered_s:.1f} s"
        if self._is_forgotten(number):
            return f"it is older than the last {self._limit} committed batches and no longer known"
        return "it has not begun"

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches.values())

    def _is_forgotten(self, number: BatchId) -> bool:
        return number <= self._highest_forgotten and number not in self._batches
