"""``split``: the inference roles take disjoint slices of one shared pool; they overlap.

Slices follow one another in the order of the job file. A bundle between two slices stays free only where
an engine would straddle nodes. A trainer uses the same pool in a phase of its own.
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
    RoleSlice,
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


class Split:
    name: ClassVar[str] = "split"
    api_version: ClassVar[int] = 1
    arrangement: ClassVar[Arrangement] = Arrangement.SIDE_BY_SIDE

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        nodes = shared_nodes(job)
        slices = None if nodes is None else _slices(job, nodes)
        if nodes is None or slices is None or trainer(job).stop > (nodes.devices or 0):
            return (self._no_room(job, nodes),)
        return PlacementPlan(
            mode=self.name,
            pools=(shared_pool(job, nodes),),
            replicas=tuple(replica for laid in slices for replica in laid.replicas),
            training=trainer(job).placements,
            phases=(
                Phase(name="inference", roles=tuple(role.role for role in job.roles)),
                *training_phases(job),
            ),
        )

    def _no_room(self, job: PlacementJob, nodes: Nodes | None) -> Refusal:
        needed = sum(role.needed for role in job.roles)
        laid = _slices(job, Nodes.endless(job.nodes.largest))
        slices = laid[-1].stop if laid else needed
        stop = max(slices, trainer(job).stop)
        if nodes is None:
            return pool_missing(self.name, stop)
        needs = " + ".join(f"{role.role} {role.needed}" for role in job.roles)
        gaps = slices - needed
        unused = f", and {gaps} left free so that no engine straddles two nodes" if gaps else ""
        return Refusal(
            code="pool-too-small",
            key="placement.devices",
            message=f'mode "{self.name}" needs {stop} devices side by side ({needs}{unused}), but the shared'
            f" pool has {nodes.devices}",
            fix=f"placement.devices = {stop}, or fewer replicas",
        )


def _slices(job: PlacementJob, nodes: Nodes) -> list[RoleSlice] | None:
    slices: list[RoleSlice] = []
    stop = 0
    for role in job.roles:
        laid = place_role(role, pool_id=POOL_ID, start=stop, nodes=nodes)
        if laid is None:
            return None
        slices.append(laid)
        stop = laid.stop
    return slices


@hookimpl
def rolecall_placement_mode() -> type[PlacementMode]:
    return Split
