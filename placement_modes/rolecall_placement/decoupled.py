"""``decoupled``: a pool, and so a placement group, for each role; everything overlaps.

Every role starts at bundle 0 of a pool of its own that carries the role's name and is as large
as the role needs. There is one phase with all roles, nobody shares a device, and the job file
must not size a shared pool.
"""

from __future__ import annotations

from typing import ClassVar

from rolecall.api import (
    Phase,
    PlacementJob,
    PlacementMode,
    PlacementPlan,
    Pool,
    Refusal,
    hookimpl,
    place_role,
)


class Decoupled:
    name: ClassVar[str] = "decoupled"
    api_version: ClassVar[int] = 1

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        if job.pool_devices is not None:
            needs = ", ".join(f"{role.role} {role.needed}" for role in job.roles)
            return (
                Refusal(
                    code="pool-not-used",
                    key="placement.devices",
                    message=f'mode "{self.name}" gives each role a pool of its own ({needs}); it has no use'
                    f" for a shared pool of {job.pool_devices}",
                    fix='remove placement.devices, or choose mode "split" or "defer"',
                ),
            )
        slices = {
            role.role: place_role(role, pool_id=role.role, start=0, devices_per_node=job.devices_per_node)
            for role in job.roles
        }
        return PlacementPlan(
            mode=self.name,
            pools=tuple(
                Pool(
                    pool_id=role,
                    resource=job.resource,
                    devices=laid.stop,
                    devices_per_node=job.devices_per_node,
                )
                for role, laid in slices.items()
            ),
            replicas=tuple(replica for laid in slices.values() for replica in laid.replicas),
            phases=(Phase(name="inference", roles=tuple(slices)),),
        )


@hookimpl
def rolecall_placement_mode() -> type[PlacementMode]:
    return Decoupled
