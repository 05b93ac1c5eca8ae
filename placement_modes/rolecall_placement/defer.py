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
    hookimpl,
    place_role,
    stop_of_role,
)

from .room import pool_missing, pool_too_small
from .shared_pool import POOL_ID, shared_nodes, shared_pool, trainer, trainer_devices, training_phases


class Defer:
    name: ClassVar[str] = "defer"
    api_version: ClassVar[int] = 1
    arrangement: ClassVar[Arrangement] = Arrangement.IN_TURN

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        def fits(nodes: Nodes) -> bool:
            return not _too_large(job, nodes)

        nodes = shared_nodes(job)
        if nodes is None:
            return (pool_missing(self.name, job, fits),)
        too_large = _too_large(job, nodes)
        if too_large:
            message = (
                f'in mode "{self.name}" every role must fit into the shared pool of {nodes.devices} on its'
                f" own; too large: {', '.join(f'{role} {devices}' for role, devices in too_large.items())}"
            )
            needed = max(too_large.values())
            return (pool_too_small(job, nodes, message=message, needed=needed, fits=fits),)
        slices = [place_role(role, pool_id=POOL_ID, start=0, nodes=nodes) for role in job.roles]
        return PlacementPlan(
            mode=self.name,
            pools=(shared_pool(job, nodes),),
            replicas=tuple(replica for laid in slices if laid is not None for replica in laid.replicas),
            training=trainer(job).placements,
            phases=(
                *(Phase(name=role.role, roles=(role.role,)) for role in job.roles),
                *training_phases(job),
            ),
        )


def _too_large(job: PlacementJob, nodes: Nodes) -> dict[str, int]:
    """Return who doesn't fit from bundle 0 on, with the devices it asks for."""
    found = {
        str(role.role): role.needed for role in job.roles if stop_of_role(role, start=0, nodes=nodes) is None
    }
    training = trainer_devices(job)
    return found | ({"the trainer": training} if training > (nodes.devices or 0) else {})


@hookimpl
def rolecall_placement_mode() -> type[PlacementMode]:
    return Defer
