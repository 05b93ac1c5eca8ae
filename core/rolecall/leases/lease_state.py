"""A role's lease on its devices: the states, the allowed changes, the one door between them.

BLOCKED is a fence: nobody knows what the engines hold, so nothing that merely arrives late may
open it. The ways out of it are proofs that were asked for. :class:`Lease` is owned by the ledger; whether a
change is *justified* is the ledger's business, whether it is *possible* is decided here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Set
from enum import StrEnum

from attrs import define, frozen

from rolecall.errors import LeaseError
from rolecall.events.event import Emit
from rolecall.ids import BatchId, FencingToken, RoleName
from rolecall.transitions import require_transition

logger = logging.getLogger(__name__)


class LeaseState(StrEnum):
    """SLEEPING is the only state in which a role certainly holds no device memory."""

    SLEEPING = "SLEEPING"
    ONLOADING = "ONLOADING"
    ACTIVE = "ACTIVE"
    DRAINING = "DRAINING"
    BLOCKED = "BLOCKED"


TRANSITIONS: Mapping[LeaseState, Mapping[LeaseState, str]] = {
    LeaseState.SLEEPING: {
        LeaseState.ONLOADING: "granted to a batch, every conflicting role being SLEEPING",
    },
    LeaseState.ONLOADING: {
        LeaseState.ACTIVE: "the role confirmed that every replica is READY",
        LeaseState.BLOCKED: "not confirmed: no answer in time, an error, or an answer without proof",
    },
    LeaseState.ACTIVE: {
        LeaseState.DRAINING: "the batch that holds the lease gives it back",
    },
    LeaseState.DRAINING: {
        LeaseState.SLEEPING: "the role confirmed that every replica is SLEEPING",
        LeaseState.BLOCKED: "not confirmed: no answer in time, an error, or an answer without proof",
    },
    LeaseState.BLOCKED: {
        LeaseState.SLEEPING: "reconciled: every replica proved that it holds no device memory; "
        "or, after a restart of the coordinator, that it is SLEEPING",
        LeaseState.ACTIVE: "reconciled, of a resident role: every replica proved that it is READY; "
        "or so after a restart of the coordinator, of a role that its batch holds",
        LeaseState.BLOCKED: "a reconciliation, or the question after a restart, proved nothing; the reason "
        "says what is missing",
    },
}

SHARED_STARTS: Mapping[LeaseState, str] = {
    LeaseState.SLEEPING: "shared role, proved asleep; the trainer's, not there yet",
    LeaseState.BLOCKED: "start not confirmed, or the coordinator was restarted",
}
"""First states of a role that conflicts with another. Never ACTIVE: it has to be granted."""

RESIDENT_STARTS: Mapping[LeaseState, str] = {
    LeaseState.ACTIVE: "resident role, proved awake",
    LeaseState.BLOCKED: "start not confirmed",
}
"""First states of a role that conflicts with nobody and stays awake for the whole job."""


@define(kw_only=True)
class PastLease:
    """A lease as it was last, by the journal."""

    state: LeaseState
    reason: str
    token: int | None = None
    batch: int | None = None


@frozen(kw_only=True)
class OpeningLease:
    """The state a lease starts in, and what proved it (or why it is BLOCKED)."""

    state: LeaseState
    reason: str


class Lease:
    """One role's lease. Read by everyone, changed only through :meth:`enter_state`.

    Attributes:
        token: token of the last command sent to the role.
        batch: batch that holds the lease; stays set in BLOCKED, None in SLEEPING.
        entered_s: the clock's time of the last change.
    """

    def __init__(
        self,
        role: RoleName,
        opening: OpeningLease,
        *,
        token: FencingToken | None,
        emit: Emit,
        clock: Callable[[], float],
        batch: BatchId | None = None,
    ) -> None:
        self.role = role
        self._emit = emit
        self._clock = clock
        self._become(None, opening.state, opening.reason, token, batch)

    def enter_state(
        self, wanted: LeaseState, *, reason: str, token: FencingToken | None, batch: BatchId | None
    ) -> None:
        """Change the state, log it and emit ``lease.state``.

        Raises:
            TransitionError: the table does not allow the change; nothing has changed.
        """
        require_transition(f"lease of {self.role}", TRANSITIONS, self.state, wanted)
        self._become(self.state, wanted, reason, token, batch)

    def _become(
        self,
        before: LeaseState | None,
        after: LeaseState,
        reason: str,
        token: FencingToken | None,
        batch: BatchId | None,
    ) -> None:
        self.state = after
        self.reason = reason
        self.token = token
        self.batch = batch
        self.entered_s = self._clock()
        level = logging.ERROR if after is LeaseState.BLOCKED else logging.INFO
        logger.log(
            level,
            "lease of %s: %s → %s (token %s, batch %s): %s",
            self.role,
            before,
            after,
            token,
            batch,
            reason,
        )
        # "from" is a keyword, so the fields are given as a mapping; plain text, as they become JSON.
        change = {"from": before and before.value, "to": after.value}
        self._emit("lease.state", role=self.role, **change, reason=reason, token=token, batch=batch)

    def __str__(self) -> str:
        """One clause for a message: ``judge is ACTIVE (batch 3, token 8)``."""
        if self.state is LeaseState.BLOCKED:
            return f"{self.role} is BLOCKED (batch {self.batch}, token {self.token}: {self.reason})"
        if self.batch is None:
            return f"{self.role} is {self.state}"
        return f"{self.role} is {self.state} (batch {self.batch}, token {self.token})"


def check_setup(
    conflicts: Mapping[RoleName, Set[RoleName]], opening: Mapping[RoleName, OpeningLease]
) -> None:
    """Return if conflicts and first leases are of the same roles and fit each other.

    Raises:
        LeaseError: they don't.
    """
    if conflicts.keys() != opening.keys():
        raise LeaseError(
            f"conflicts name {sorted(conflicts)}, opening leases {sorted(opening)}; "
            "they must name the same roles"
        )
    for role, others in conflicts.items():
        for other in others:
            if other == role or role not in conflicts.get(other, ()):
                raise LeaseError(
                    f"{role!r} conflicts with {other!r} but not the other way round; "
                    "a conflict joins two different roles"
                )
        starts = SHARED_STARTS if others else RESIDENT_STARTS
        if opening[role].state not in starts:
            kind = "shares devices" if others else "shares no device"
            raise LeaseError(
                f"{role!r} {kind} and can't start {opening[role].state}; allowed: {', '.join(starts)}"
            )
