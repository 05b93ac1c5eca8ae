"""``split``: the roles take disjoint slices of one shared pool; inference roles overlap.

Slices follow one another in the order of the job file. A bundle between two slices stays free
only where an engine would straddle two nodes.
"""

from __future__ import annotations

from typing import ClassVar

from rolecall.api import (
    Phase,
    PlacementJob,
    PlacementMode,
    PlacementPlan,
    Refusal,
    RoleSlice,
    hookimpl,
    place_role,
)

from .shared_pool import POOL_ID, pool_missing, shared_pool


class Split:
    name: ClassVar[str] = "split"
    api_version: ClassVar[int] = 1

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        slices: list[RoleSlice] = []
        stop = 0
        for role in job.roles:
            slices.append(
                place_role(role, pool_id=POOL_ID, start=stop, devices_per_node=job.devices_per_node)
            )
            stop = slices[-1].stop
        if job.pool_devices is None:
            return (pool_missing(self.name, stop),)
        if stop > job.pool_devices:
            return (self._too_small(job, stop),)
        return PlacementPlan(
            mode=self.name,
            pools=(shared_pool(job, job.pool_devices),),
            replicas=tuple(replica for laid in slices for replica in laid.replicas),
            phases=(Phase(name="inference", roles=tuple(role.role for role in job.roles)),),
        )

    def _too_small(self, job: PlacementJob, stop: int) -> Refusal:
        needs = " + ".join(f"{role.role} {role.needed}" for role in job.roles)
        needed = sum(role.needed for role in job.roles)
        gaps = stop - needed
        unused = f", and {gaps} left free so that no engine straddles two nodes" if gaps else ""
        return Refusal(
            code="pool-too-small",
            key="placement.devices",
            message=f'mode "{self.name}" needs {stop} devices side by side ({needs}{unused}), but the shared'
            f" pool has {job.pool_devices}",
            fix=f"placement.devices = {stop}, or fewer replicas",
        )


@hookimpl
def rolecall_placement_mode() -> type[PlacementMode]:
    return Split
