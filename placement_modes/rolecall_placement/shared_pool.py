"""What the modes with one shared pool have in common: the pool, and the trainer's place in it."""

from __future__ import annotations

from collections.abc import Sequence

from rolecall.api import Nodes, Phase, PlacementJob, Pool, TrainingSlice, place_training

POOL_ID = "shared"


def shared_nodes(job: PlacementJob) -> Nodes | None:
    """Return the nodes of the pool: the job's, or as many as the trainer needs; None if nobody says."""
    if job.nodes.devices is not None:
        return job.nodes
    needed = trainer_devices(job)
    return Nodes.equal(needed, per_node=job.nodes.largest) if needed else None


def shared_pool(job: PlacementJob, nodes: Nodes) -> Pool:
    """Return the pool that all roles of the job use."""
    return Pool(pool_id=POOL_ID, resource=job.resource, nodes=nodes)


def trainer(job: PlacementJob) -> TrainingSlice:
    """Lay the trainer out from bundle 0 on."""
    return place_training(job.training, pool_id=POOL_ID, start=0)


def trainer_devices(job: PlacementJob) -> int:
    """Return how many devices the trainer's processes have side by side."""
    return sum(role.devices for role in job.processes)


def training_phases(job: PlacementJob) -> Sequence[Phase]:
    """Return the trainer's own phase, which comes last, if there is a trainer."""
    return [Phase(name="training", roles=tuple(role.role for role in job.training))] if job.training else []
