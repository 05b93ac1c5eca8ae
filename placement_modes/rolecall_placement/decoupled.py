"""``decoupled``: a pool, and so a placement group, for each role; everything overlaps.

Every role, of training and of inference, has a pool of its own that carries its name and is as large as it
needs. There is one phase with all roles, and nobody shares a device. Where the job file says which devices
there are, the pools have to fit on them: first the trainer's, then the roles' in the order of the file,
each engine on the first node that has room for it.
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
    Pool,
    Refusal,
    ReplicaPlacement,
    TrainingPlacement,
    hookimpl,
    place_role,
)

from .free_nodes import FreeNodes
from .room import PoolTooSmall, demands, pool_too_small

PHASE = "all together"


class Decoupled:
    name: ClassVar[str] = "decoupled"
    api_version: ClassVar[int] = 1
    arrangement: ClassVar[Arrangement] = Arrangement.APART

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        pools = _unlimited(job) if job.devices is None else _within(job, job.nodes)
        if pools is None:
            return (self._too_small(job),)
        return PlacementPlan(
            mode=self.name,
            pools=tuple(
                Pool(pool_id=name, resource=job.resource, nodes=nodes) for name, (nodes, _) in pools.items()
            ),
            replicas=tuple(replica for _, replicas in pools.values() for replica in replicas),
            training=tuple(
                TrainingPlacement(
                    role=demand.role,
                    process=demand.process,
                    pool_id=demand.process,
                    bundles=tuple(range(demand.devices)),
                )
                for demand in job.training
            ),
            phases=(Phase(name=PHASE, roles=tuple(demand.role for demand in (*job.roles, *job.training))),),
        )

    def _too_small(self, job: PlacementJob) -> PoolTooSmall:
        needs = demands(job, training=True)
        needed = sum(needs.values())
        sums = " + ".join(f"{role} {devices}" for role, devices in needs.items())
        return pool_too_small(
            job,
            job.nodes,
            message=f'mode "{self.name}" gives each role devices of its own ({sums} = {needed}); the job has'
            f" {job.devices}",
            needed=needed,
            fits=lambda nodes: needed <= (nodes.devices or 0) and _fit(job, nodes),
        )


_Pools = dict[str, tuple[Nodes, tuple[ReplicaPlacement, ...]]]
"""The nodes of each role's pool, and its replicas there."""


def _unlimited(job: PlacementJob) -> _Pools | None:
    """Give each role nodes that nobody else is on."""
    pools: _Pools = {}
    for role in job.roles:
        laid = place_role(role, pool_id=role.role, start=0, nodes=job.nodes)
        if laid is None:
            return None
        pools[role.role] = (job.nodes.parts(range(laid.stop)), laid.replicas)
    for demand in job.processes:
        pools[demand.role] = (job.nodes.parts(range(demand.devices)), ())
    return pools


def _within(job: PlacementJob, nodes: Nodes) -> _Pools | None:
    """Give each role a part of the nodes."""
    free = FreeNodes(nodes)
    pools: _Pools = {}
    for demand in job.processes:
        taken = free.take(demand.devices)
        if taken is None:
            return None
        pools[demand.role] = (taken, ())
    for role in job.roles:
        laid = free.take_role(role)
        if laid is None:
            return None
        pools[role.role] = laid
    return pools


def _fit(job: PlacementJob, nodes: Nodes) -> bool:
    """Whether :func:`_within` has room, without laying anything out."""
    free = FreeNodes(nodes)
    return all(free.take(demand.devices) is not None for demand in job.processes) and all(
        span is not None for role in job.roles for span, _ in free.take_engines(role)
    )


@hookimpl
def rolecall_placement_mode() -> type[PlacementMode]:
    return Decoupled
