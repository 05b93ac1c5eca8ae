"""``defer``: all roles reuse the same bundles, one role after the other.

Every role starts at bundle 0 of the shared pool and has a phase of its own, named after it, in the order
of the job file; a trainer's phase comes last. Who is awake is decided by leases at run time; the plan only
says who must never be awake together.
"""

from __future__ import annotations

from typing import ClassVar

from rolecall.api import (
    Arrangement,
    Nodes,
    Phase,
    PlacementJob,
    PlacementMode,
    PlacementPlan,
    Refusal,
    ReplicaPlacement,
    RoleDemand,
    hookimpl,
    place_role,
)

from .shared_pool import (
    POOL_ID,
    pool_missing,
    shared_nodes,
    shared_pool,
    trainer,
    training_phases,
)


class Defer:
    name: ClassVar[str] = "defer"
    api_version: ClassVar[int] = 1
    arrangement: ClassVar[Arrangement] = Arrangement.IN_TURN

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        nodes = shared_nodes(job)
        if nodes is None:
            return (pool_missing(self.name, max(_needs(job).values())),)
        replicas: list[ReplicaPlacement] = []
        too_large: list[str] = []
        for role in job.roles:
            laid = place_role(role, pool_id=POOL_ID, start=0, nodes=nodes)
            if laid is None:
                too_large.append(role.role)
            else:
                replicas += laid.replicas
        training = trainer(job).stop
        if too_large or training > (nodes.devices or 0):
            needs = _needs(job) | ({"the trainer": training} if training else {})
            what = [
                f"{name} {needs[name]}"
                for name in needs
                if name in too_large or needs[name] > (nodes.devices or 0)
            ]
            largest = max(needs.values())
            return (
                Refusal(
                    code="pool-too-small",
                    key="placement.devices",
                    message=f'in mode "{self.name}" every role must fit into the shared pool of'
                    f" {nodes.devices} on its own; too large: {', '.join(what)}",
                    fix=f"placement.devices = {largest}, or fewer replicas",
                ),
            )
        return PlacementPlan(
            mode=self.name,
            pools=(shared_pool(job, nodes),),
            replicas=tuple(replicas),
            training=trainer(job).placements,
            phases=(
                *(Phase(name=role.role, roles=(role.role,)) for role in job.roles),
                *training_phases(job),
            ),
        )


def _needs(job: PlacementJob) -> dict[str, int]:
    """Devices that each role needs from bundle 0 on."""
    return {role.role: _devices(role, job.nodes.largest) for role in job.roles}


def _devices(role: RoleDemand, per_node: int) -> int:
    laid = place_role(role, pool_id=POOL_ID, start=0, nodes=Nodes.endless(per_node))
    return role.needed if laid is None else laid.stop


@hookimpl
def rolecall_placement_mode() -> type[PlacementMode]:
    return Defer
