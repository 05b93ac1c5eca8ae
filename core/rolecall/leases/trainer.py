"""The trainer's part in the leases: its processes take turns on shared devices like the inference roles.

Rolecall starts none of the trainer's processes and can't look into them. So a training role's word counts
as proof: it asks for its turn before it uses its devices, and gives the turn back once their memory is free.
Everything else is the ledger's: no inference role that shares those devices is woken meanwhile, and the turn
is not granted while one is awake or fenced. Training roles in one process are one holder, named after it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rolecall.engines.proof import Proof
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult, ReplicaOutcome
from rolecall.ids import EngineId, FencingToken, RoleName
from rolecall.leases.lease_state import LeaseState, OpeningLease
from rolecall.placement.plan import PlacementPlan


class TrainersWord:
    """Implements :class:`~rolecall.leases.port.RoleLifecycle` for a training role."""

    def __init__(self, role: RoleName) -> None:
        self._role = role

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        """The trainer has asked: it uses its devices from now on."""
        del token, timeout_s
        return self._says(ReplicaState.READY)

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        """The trainer has asked: its devices' memory is free."""
        del token, timeout_s
        return self._says(ReplicaState.SLEEPING)

    async def prepare(self, timeout_s: float) -> None:
        """Nothing: the trainer prepares itself."""
        del timeout_s

    async def account(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        """Nobody can look into the trainer; the ledger goes by what it has said."""
        del token, timeout_s
        return self._says(ReplicaState.READY, why_not="the trainer was not asked")

    async def vacate(self, token: FencingToken, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        """Nobody but the trainer knows, and nobody has asked it."""
        del token, timeout_s, proof
        return self._says(
            ReplicaState.READY, why_not="the trainer itself gives its turn back, or ends the job"
        )

    async def lift_fences(self, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        """It has none."""
        del timeout_s, proof
        return LifecycleResult(role=self._role, outcomes=())

    def _says(self, state: ReplicaState, *, why_not: str = "") -> LifecycleResult:
        outcome = ReplicaOutcome(
            engine=EngineId(self._role), state=state, confirmed=not why_not, detail=why_not
        )
        return LifecycleResult(role=self._role, outcomes=(outcome,))


def trainer_processes(plan: PlacementPlan) -> tuple[RoleName, ...]:
    """Return the training roles that have processes of their own, in the plan's order."""
    return tuple(placement.role for placement in plan.training if placement.process == placement.role)


def lease_conflicts(plan: PlacementPlan, roles: Iterable[RoleName]) -> dict[RoleName, frozenset[RoleName]]:
    """Return, for each of ``roles`` and each process of the trainer, whom it shares a bundle with."""
    process = {placement.role: placement.process for placement in plan.training}
    return {
        holder: frozenset(process.get(other, other) for other in plan.conflicts(holder))
        for holder in (*roles, *trainer_processes(plan))
    }


def trainers_opening_lease(*, shared: bool) -> OpeningLease:
    """Return the lease that a process of the trainer starts with: it is not there yet."""
    if shared:
        return OpeningLease(state=LeaseState.SLEEPING, reason="start: the trainer had no turn yet")
    return OpeningLease(state=LeaseState.ACTIVE, reason="start: the trainer shares no device")
