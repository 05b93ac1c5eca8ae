"""``split``: the inference roles take disjoint slices of one shared pool; they overlap.

Slices follow one another in the order of the job file. A bundle between two slices stays free only where
an engine would straddle nodes. A trainer uses the same pool in a phase of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    stop_of_role,
)

from .room import PoolTooSmall, demands, pool_missing, pool_too_small
from .shared_pool import POOL_ID, shared_nodes, shared_pool, trainer, trainer_devices, training_phases


class Split:
    name: ClassVar[str] = "split"
    api_version: ClassVar[int] = 1
    arrangement: ClassVar[Arrangement] = Arrangement.SIDE_BY_SIDE

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        def fits(nodes: Nodes) -> bool:
            return _roles_fit(job, nodes) and _trainer_fits(job, nodes)

        nodes = shared_nodes(job)
        if nodes is None:
            return (pool_missing(self.name, job, fits),)
        slices = _slices(job, nodes)
        if slices is None or not _trainer_fits(job, nodes):
            return (self._no_room(job, nodes, fits),)
        return PlacementPlan(
            mode=self.name,
            pools=(shared_pool(job, nodes),),
            replicas=tuple(replica for laid in slices for replica in laid.replicas),
            training=trainer(job).placements,
            phases=(*_inference(job), *training_phases(job)),
        )

    def _no_room(self, job: PlacementJob, nodes: Nodes, fits: Callable[[Nodes], bool]) -> PoolTooSmall:
        needs = demands(job, training=False)
        needed = sum(needs.values())
        message = (
            f'mode "{self.name}" lays the roles side by side'
            f" ({' + '.join(f'{role} {devices}' for role, devices in needs.items())} = {needed})"
        )
        if not _trainer_fits(job, nodes):
            needed = max(needed, trainer_devices(job))
            message += f" and the trainer below them ({trainer_devices(job)})"
        message += f" in a shared pool, which has {nodes.devices}"
        return pool_too_small(job, nodes, message=message, needed=needed, fits=fits)


def _roles_fit(job: PlacementJob, nodes: Nodes) -> bool:
    stop: int | None = 0
    for role in job.roles:
        stop = stop_of_role(role, start=stop, nodes=nodes)
        if stop is None:
            return False
    return True


def _trainer_fits(job: PlacementJob, nodes: Nodes) -> bool:
    return trainer_devices(job) <= (nodes.devices or 0)


def _inference(job: PlacementJob) -> Sequence[Phase]:
    return [Phase(name="inference", roles=tuple(role.role for role in job.roles))] if job.roles else []


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
