"""A deferred batch as the coordinator sees it: a number that is pending, committed or failed.

A failed one may be tried again once its run has been resumed; attempts are counted, so that a call that
was meant for an earlier one is known.

It holds no samples and knows no lease; the two machines are never mixed. Owned by
:class:`~rolecall.leases.batch_book.BatchBook`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import StrEnum

from attrs import define

from rolecall.events.event import Emit
from rolecall.ids import BatchId
from rolecall.transitions import require_transition

logger = logging.getLogger(__name__)


class BatchState(StrEnum):
    """Consumers may read a batch in COMMITTED and in no other state."""

    PENDING = "PENDING"
    COMMITTED = "COMMITTED"
    FAILED = "FAILED"


TRANSITIONS: Mapping[BatchState, Mapping[BatchState, str]] = {
    BatchState.PENDING: {
        BatchState.COMMITTED: "the sink acknowledged the partition and every shared role is SLEEPING",
        BatchState.FAILED: "this batch failed, or another one did and the run with it",
    },
    BatchState.COMMITTED: {},
    BatchState.FAILED: {
        BatchState.PENDING: "begun again, as its next attempt, after the run was resumed",
    },
}

STARTS: Mapping[BatchState, str] = {BatchState.PENDING: "begun"}


@define(kw_only=True)
class PastBatch:
    """A batch as it was last."""

    state: BatchState
    reason: str
    attempt: int


class Batch:
    """One batch. Read by everyone, changed only through :meth:`enter_state`.

    ``past`` is how a former coordinator left it; there is no event of that.
    """

    def __init__(
        self, number: BatchId, *, emit: Emit, clock: Callable[[], float], past: PastBatch | None = None
    ) -> None:
        self.number = number
        self.attempt = 1
        self._emit = emit
        self._clock = clock
        if past is None:
            self._become(None, BatchState.PENDING, "begun")
            return
        self.state, self.reason, self.attempt = past.state, past.reason, past.attempt
        self.entered_s = clock()

    def enter_state(self, wanted: BatchState, *, reason: str) -> None:
        """Change the state, log it and emit ``batch.state``.

        Raises:
            TransitionError: the table does not allow the change; nothing has changed.
        """
        require_transition(f"batch {self.number}", TRANSITIONS, self.state, wanted)
        if wanted is BatchState.PENDING:
            self.attempt += 1
        self._become(self.state, wanted, reason)

    def _become(self, before: BatchState | None, after: BatchState, reason: str) -> None:
        self.state = after
        self.reason = reason
        self.entered_s = self._clock()
        level = logging.ERROR if after is BatchState.FAILED else logging.INFO
        logger.log(level, "batch %s: %s → %s: %s", self.number, before, after, reason)
        # "from" is a keyword, so the fields are given as a mapping; plain text, as they become JSON.
        change = {"from": before and before.value, "to": after.value}
        self._emit("batch.state", batch=self.number, **change, reason=reason)
