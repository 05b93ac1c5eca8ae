"""What a lifecycle command achieved, replica by replica."""

from __future__ import annotations

from attrs import frozen

from rolecall.engines.replica_state import ReplicaState
from rolecall.ids import EngineId, RoleName


@frozen(kw_only=True)
class ReplicaOutcome:
    """One replica's share. ``confirmed`` false means the remote result is unknown or bad."""

    engine: EngineId
    state: ReplicaState
    confirmed: bool
    detail: str = ""


Outcomes = tuple[ReplicaOutcome, ...]
"""What a command achieved with a model's replicas."""


@frozen(kw_only=True)
class LifecycleResult:
    """Outcome of one onload, offload, start or shutdown of a role."""

    role: RoleName
    outcomes: Outcomes

    @property
    def confirmed(self) -> bool:
        return all(outcome.confirmed for outcome in self.outcomes)

    @property
    def problem(self) -> str:
        """The unconfirmed replicas with their details, for a message; empty if there are none."""
        return "; ".join(f"{o.engine} is {o.state}: {o.detail}" for o in self.outcomes if not o.confirmed)
