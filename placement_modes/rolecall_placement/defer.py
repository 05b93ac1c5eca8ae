"""``defer``: all roles reuse the same bundles, one role after the other.

Every role starts at bundle 0 of the shared pool and has a phase of its own, named after it, in
the order of the job file. Who is awake is decided by leases at run time; the plan only says who
must never be awake together.
"""

from __future__ import annotations

from typing import ClassVar

from rolecall.api import (
    Phase,
    PlacementJob,
    PlacementMode,
    PlacementPlan,
    Refusal,
    hookimpl,
    place_role,
)

from .shared_pool import POOL_ID, pool_missing, shared_pool


class Defer:
    name: ClassVar[str] = "defer"
    api_version: ClassVar[int] = 1

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        slices = {
            role.role: place_role(role, pool_id=POOL_ID, start=0, devices_per_node=job.devices_per_node)
            for role in job.roles
        }
        largest = max(laid.stop for laid in slices.values())
        if job.pool_devices is None:
            return (pool_missing(self.name, largest),)
        too_large = [f"{role} {laid.stop}" for role, laid in slices.items() if laid.stop > job.pool_devices]
        if too_large:
            return (
                Refusal(
                    code="pool-too-small",
                    key="placement.devices",
                    message=f'in mode "{self.name}" every role must fit into the shared pool of'
                    f" {job.pool_devices} on its own; too large: {', '.join(too_large)}",
                    fix=f"placement.devices = {largest}, or fewer replicas",
                ),
            )
        return PlacementPlan(
            mode=self.name,
            pools=(shared_pool(job, job.pool_devices),),
            replicas=tuple(replica for laid in slices.values() for replica in laid.replicas),
            phases=tuple(Phase(name=role, roles=(role,)) for role in slices),
        )


@hookimpl
def rolecall_placement_mode() -> type[PlacementMode]:
    return Defer
