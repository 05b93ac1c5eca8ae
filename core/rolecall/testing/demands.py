"""What a job demands of a placement, in the few words that tests of layouts need."""

from __future__ import annotations

from rolecall.ids import ModelId, RoleName
from rolecall.placement.nodes import Nodes
from rolecall.placement.plan import ModelDemand, PlacementJob, RoleDemand, TrainingDemand


def role_demand(name: str, *engines: tuple[int, int], deferrable: bool = True) -> RoleDemand:
    """Return a role with a model ``m0``, ``m1``, … for each (replicas, devices per engine)."""
    return RoleDemand(
        role=RoleName(name),
        deferrable=deferrable,
        models=tuple(
            ModelDemand(
                model=ModelId(f"m{index}"),
                replicas=replicas,
                devices_per_engine=devices,
                tensor_parallel=devices,
                pipeline_parallel=1,
            )
            for index, (replicas, devices) in enumerate(engines)
        ),
    )


def placement_job(
    *roles: RoleDemand,
    devices: int | None = None,
    per_node: int = 8,
    resource: str = "GPU",
    training: tuple[TrainingDemand, ...] = (),
) -> PlacementJob:
    """Return a job on equal nodes; without ``devices`` as many as anybody wants."""
    nodes = Nodes.endless(per_node) if devices is None else Nodes.equal(devices, per_node=per_node)
    return PlacementJob(resource=resource, nodes=nodes, roles=roles, training=training, per_node=per_node)
