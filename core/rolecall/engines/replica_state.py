"""States of a logical replica and the only allowed changes between them."""

from __future__ import annotations

from enum import StrEnum

from rolecall.errors import TransitionError


class ReplicaState(StrEnum):
    """Routable only in READY. FAILED means "not routable", never "device freed".

    ONLOADING is everything between being started or awake and being routable: memory that comes
    back, and weights that are brought to the model's current version or still wait for it.
    """

    STARTING = "STARTING"
    READY = "READY"
    DRAINING = "DRAINING"
    SLEEPING = "SLEEPING"
    ONLOADING = "ONLOADING"
    FAILED = "FAILED"
    STOPPING = "STOPPING"


TRANSITIONS: dict[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.STARTING: frozenset({ReplicaState.READY, ReplicaState.ONLOADING, ReplicaState.FAILED}),
    ReplicaState.READY: frozenset(
        {ReplicaState.DRAINING, ReplicaState.ONLOADING, ReplicaState.FAILED, ReplicaState.STOPPING}
    ),
    ReplicaState.DRAINING: frozenset({ReplicaState.SLEEPING, ReplicaState.FAILED}),
    ReplicaState.SLEEPING: frozenset({ReplicaState.ONLOADING, ReplicaState.FAILED, ReplicaState.STOPPING}),
    ReplicaState.ONLOADING: frozenset({ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.FAILED}),
    ReplicaState.FAILED: frozenset({ReplicaState.STARTING, ReplicaState.STOPPING}),
    ReplicaState.STOPPING: frozenset(),
}


def next_state(current: ReplicaState, wanted: ReplicaState) -> ReplicaState:
    """Return ``wanted`` if the table allows the change.

    Raises:
        TransitionError: the change is not in the table; names what is allowed.
    """
    if wanted not in TRANSITIONS[current]:
        allowed = ", ".join(sorted(TRANSITIONS[current])) or "nothing, it is final"
        raise TransitionError(f"replica state {current} → {wanted} is not allowed; from {current}: {allowed}")
    return wanted
