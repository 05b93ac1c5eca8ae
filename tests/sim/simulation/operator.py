"""Who puts things right after a failure, as the guides say: gives leases back, reconciles fences, resumes."""

from __future__ import annotations

from typing import Any

from rolecall.engines.proof import Proof
from rolecall.errors import RolecallError
from rolecall.ids import BatchId, OperationId, RoleName
from rolecall.leases.lease_state import LeaseState
from rolecall.leases.reconciliation import Claim
from simulation.actors import CoordinatorLink
from simulation.world import World

_CLAIM = Claim(proof=Proof.PROCESS_GONE, by="operator@host")


class Operator:
    """One round of putting right; several may be needed."""

    def __init__(self, world: World, coordinator: CoordinatorLink) -> None:
        self._world = world
        self._coordinator = coordinator
        self._asked = 0

    async def put_right(self) -> int | None:
        """Return the batch to go on with; None if something still stands in the way."""
        try:
            status = await self._coordinator.status()
            for role, lease in status["leases"].items():
                await self._free(RoleName(role), lease)
            for batch in status["batches"]:
                if batch["state"] == "PENDING":
                    await self._coordinator.fail_batch(BatchId(batch["batch"]), "its driver is gone")
            return await self._coordinator.resume(self._operation())
        except RolecallError as error:
            self._world.note("operator", f"not yet: {error}")
            return None

    async def _free(self, role: RoleName, lease: dict[str, Any]) -> None:
        state = lease["state"]
        if state == LeaseState.BLOCKED.value:
            await self._coordinator.reconcile(role, self._operation(), claim=_CLAIM)
        elif not lease["resident"] and state != LeaseState.SLEEPING.value:
            await self._coordinator.deactivate(lease["batch"], role, self._operation())

    def _operation(self) -> OperationId:
        self._asked += 1
        return OperationId(f"operator/{self._world.loop.time():.3f}/{self._asked}")
