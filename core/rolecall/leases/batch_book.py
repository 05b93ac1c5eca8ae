"""All batches of a run and its first failure: pure, synchronous, no leases.

Invariants: the first failure wins and is never replaced, until the run is resumed; while the run has failed
no batch is PENDING and none is begun; a committed batch stays committed. Committed batches are remembered up
to a bound; what is older is answered with "no longer known", never with a guess. Every change is written
down before it is made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from rolecall.errors import BatchFailedError, CommitTimeoutError, TransitionError
from rolecall.events.event import Emit
from rolecall.ids import BatchId
from rolecall.leases.batch_state import Batch, BatchState, PastBatch
from rolecall.leases.history import History, Kind, PastFailure
from rolecall.leases.recording import Recorder

COMMITTED_BATCHES = 1_024
"""Committed batches that are remembered."""


class BatchBook:
    """Opened, written and read by the ledger alone; begins as ``history`` has it."""

    def __init__(
        self,
        *,
        history: History,
        recorder: Recorder,
        emit: Emit,
        clock: Callable[[], float],
        committed_limit: int = COMMITTED_BATCHES,
    ) -> None:
        self._recorder = recorder
        self._emit = emit
        self._clock = clock
        self._limit = committed_limit
        self._batches = {
            BatchId(number): Batch(BatchId(number), emit=emit, clock=clock, past=past)
            for number, past in history.batches.items()
        }
        self._committed = deque(
            number for number, batch in self._batches.items() if batch.state is BatchState.COMMITTED
        )
        self._highest_forgotten = BatchId(history.highest_forgotten)
        self.failure: PastFailure | None = history.failure
        self._forget()

    def begin(self, number: BatchId) -> int:
        """Open a batch and return which attempt it is; an already pending one is left as it is.

        Raises:
            BatchFailedError: the run has failed.
            TransitionError: the batch was committed, or is too old to tell.
        """
        self.require_healthy(number)
        batch = self._batches.get(number)
        if batch is not None and batch.state is BatchState.PENDING:
            return batch.attempt
        if self._is_forgotten(number) or (batch is not None and batch.state is BatchState.COMMITTED):
            raise TransitionError(
                f"batch {number} can't begin: {self.describe(number)}; a committed batch is never made again"
            )
        attempt = 1 if batch is None else batch.attempt + 1
        self._recorder.decide(Kind.BEGUN, durable=False, batch=number, attempt=attempt)
        if batch is None:
            self._batches[number] = Batch(number, emit=self._emit, clock=self._clock)
        else:
            batch.enter_state(BatchState.PENDING, reason=f"begun again, attempt {attempt}")
        return attempt

    def require_pending(self, number: BatchId, attempt: int | None = None) -> None:
        """Return if the batch is PENDING, in that attempt if one is named.

        Raises:
            BatchFailedError: the run has failed.
            TransitionError: the batch has not begun or has ended, or is in another attempt.
        """
        self.require_healthy(number)
        self.require_attempt(number, attempt)
        if not self.is_pending(number):
            raise TransitionError(f"batch {number} is not open: {self.describe(number)}")

    def require_attempt(self, number: BatchId, attempt: int | None) -> None:
        """Return if ``attempt`` is the latest one of the batch, or None.

        Raises:
            TransitionError: it is not; the call comes from the past.
        """
        batch = self._batches.get(number)
        if attempt is None or batch is None or batch.attempt == attempt:
            return
        raise TransitionError(
            f"attempt {attempt} of batch {number} is over, it is at attempt {batch.attempt}; this is too late"
        )

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
            BatchFailedError: it or the run failed.
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
        self._recorder.decide(Kind.COMMITTED, durable=True, batch=number, reason=reason)
        batch = self._batches.pop(number)
        batch.enter_state(BatchState.COMMITTED, reason=reason)
        self._batches[number] = batch
        self._committed.append(number)
        self._forget()

    def fail(self, number: BatchId, *, reason: str, attempt: int | None = None) -> None:
        """Fail the batch and the run, unless the run has failed before.

        A batch that never began is failed too: its begin may have been lost on the way, and
        somebody may wait for it.

        Raises:
            TransitionError: the batch was committed, is too old to tell, or is in another attempt.
        """
        if self.knows_committed(number) or self._is_forgotten(number):
            raise TransitionError(f"batch {number} can't fail ({reason}): {self.describe(number)}")
        if self.failure is not None:
            return
        self.require_attempt(number, attempt)
        batch = self._batches.get(number)
        if attempt is not None and batch is not None and batch.state is BatchState.FAILED:
            return  # a late repeat: this attempt has failed, and the run was resumed since
        self._recorder.decide(Kind.FAILED, durable=True, batch=number, reason=reason)
        self.failure = PastFailure(batch=number, reason=reason)
        if batch is None:
            batch = self._batches[number] = Batch(number, emit=self._emit, clock=self._clock)
        if batch.state is BatchState.PENDING:
            batch.enter_state(BatchState.FAILED, reason=reason)
        self._fail_pending(f"batch {number} failed: {reason}")

    def abandon(self, reason: str) -> None:
        """Fail what is PENDING, as nobody works on it any more; the run may go on."""
        self._fail_pending(reason)

    def resume(self) -> None:
        """Forget the failure; failed batches may begin again."""
        self.failure = None

    def describe(self, number: BatchId) -> str:
        """Return the batch's present state in words."""
        batch = self._batches.get(number)
        if batch is not None:
            return f"it is {batch.state} since {self._clock() - batch.entered_s:.1f} s"
        if self._is_forgotten(number):
            return f"it is older than the last {self._limit} committed batches and no longer known"
        return "it has not begun"

    def tell(self, history: History) -> None:
        """Put all that is known into ``history``."""
        history.failure = self.failure
        history.highest_forgotten = self._highest_forgotten
        history.batches = {
            number: PastBatch(state=batch.state, reason=batch.reason, attempt=batch.attempt)
            for number, batch in self._batches.items()
        }

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches.values())

    def _fail_pending(self, reason: str) -> None:
        for batch in self._batches.values():
            if batch.state is BatchState.PENDING:
                batch.enter_state(BatchState.FAILED, reason=reason)

    def _is_forgotten(self, number: BatchId) -> bool:
        return number <= self._highest_forgotten and number not in self._batches

    def _forget(self) -> None:
        while len(self._committed) > self._limit:
            oldest = self._committed.popleft()
            del self._batches[oldest]
            self._highest_forgotten = max(self._highest_forgotten, oldest)
