"""States of a logical replica and the only allowed changes between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from rolecall.transitions import require_transition


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


_LOST = "not confirmed: an error, no answer in time, a failed proof, or a dead worker"

_BROKEN = "found broken or silent by a look, or its worker died"

TRANSITIONS: Mapping[ReplicaState, Mapping[ReplicaState, str]] = {
    ReplicaState.STARTING: {
        ReplicaState.READY: "started, verified, and with the model's current weights",
        ReplicaState.ONLOADING: "started, but it lacks the current weights, or is to sleep next",
        ReplicaState.FAILED: f"start {_LOST}; stopped or vacated before it had ended",
    },
    ReplicaState.READY: {
        ReplicaState.DRAINING: "offload, vacated, or its onload is taken back",
        ReplicaState.ONLOADING: "its weights are changed, or it joins or leaves a group for that",
        ReplicaState.FAILED: f"{_BROKEN}; static ones to take an onload back, or if vacated and unable "
        "to sleep",
        ReplicaState.STOPPING: "stopped for good",
    },
    ReplicaState.DRAINING: {
        ReplicaState.SLEEPING: "its release is proved",
        ReplicaState.ONLOADING: "it was to leave the model, and stays after all",
        ReplicaState.STOPPING: "it leaves the model, and works on no request any more",
        ReplicaState.FAILED: f"sleep {_LOST}; stopped before it had ended",
    },
    ReplicaState.SLEEPING: {
        ReplicaState.ONLOADING: "onload",
        ReplicaState.FAILED: f"{_BROKEN}; or it did not prove its sleep again when vacated",
        ReplicaState.STOPPING: "stopped for good",
    },
    ReplicaState.ONLOADING: {
        ReplicaState.READY: "awake, verified, and with the model's current weights",
        ReplicaState.DRAINING: "offload, vacated, or its onload is taken back",
        ReplicaState.FAILED: f"wake or change of weights {_LOST}; stopped or vacated before it had ended",
    },
    ReplicaState.FAILED: {
        ReplicaState.STARTING: "rebuilt, with evidence that nothing of its old engine is left",
        ReplicaState.STOPPING: "stopped for good",
    },
    ReplicaState.STOPPING: {},
}

STARTS: Mapping[ReplicaState, str] = {ReplicaState.STARTING: "created"}


def next_state(replica: str, current: ReplicaState, wanted: ReplicaState) -> ReplicaState:
    """Return ``wanted`` if the table allows the change of the named replica.

    Raises:
        TransitionError: the change is not in the table; names what is allowed.
    """
    require_transition(replica, TRANSITIONS, current, wanted)
    return wanted
