"""What a job demands of a placement, in the few words that tests of layouts need, and jobs by chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rolecall.ids import ModelId, RoleName
from rolecall.placement.nodes import Nodes
from rolecall.placement.plan import ModelDemand, PlacementJob, RoleDemand, TrainingDemand

Pick = Callable[[int], int]
"""Returns a number below the given one. The smaller the numbers, the simpler the job made with it."""

_Thing = TypeVar("_Thing")

_ROLES = ("writer", "judge", "scorer", "tagger")
_LARGEST_ENGINE = 16
_TRAINING = ("actor", "critic", "reference")


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


def any_job(pick: Pick) -> PlacementJob:
    """Return a job as the core hands it to a mode: on equal, unequal or endless nodes, with and without a
    trainer, every engine on one node or on whole ones. It may have too few devices.

    All of its roles, the trainer's too, give their devices up when they have to.
    """
    sizes = sorted({_one_of(pick, (8, 4, 2, 1, 3, 5, 6, 7)) for _ in range(_one_of(pick, (1, 1, 2, 3)))})
    whole = (nodes * size for nodes in (2, 3) for size in sizes if nodes * size <= _LARGEST_ENGINE)
    suitable = sorted({*range(1, sizes[-1] + 1), *whole})
    roles = tuple(
        role_demand(
            name,
            *(
                (_one_of(pick, (1, 2, 1, 3)), _one_of(pick, suitable))
                for _ in range(_one_of(pick, (1, 1, 2)))
            ),
        )
        for name in _some(pick, _ROLES, _one_of(pick, (1, 2, 1, 3)))
    )
    training = _trainer(pick, 2 * sizes[-1])
    needed = [role.needed for role in roles]
    trainer = sum(role.devices for role in training if role.on is None)
    everything = sum(needed) + trainer
    enough = _one_of(pick, (everything, sum(needed), everything, max(*needed, trainer), everything))
    devices = max(1, enough + _one_of(pick, (0, sizes[-1], 0, 2 * sizes[-1], 1, -1)))
    if len(sizes) > 1:
        nodes = list(sizes)
        while sum(nodes) < devices:
            nodes.append(_one_of(pick, sizes))
        return PlacementJob(
            resource="GPU", nodes=Nodes.of(sorted(nodes, reverse=True)), roles=roles, training=training
        )
    limit = None if pick(5) == 1 else devices
    return placement_job(*roles, devices=limit, per_node=sizes[0], training=training)


def _trainer(pick: Pick, most: int) -> tuple[TrainingDemand, ...]:
    demands: list[TrainingDemand] = []
    for name in _some(pick, _TRAINING, _one_of(pick, (0, 0, 1, 2, 3))):
        hosts = [demand for demand in demands if demand.on is None]
        host = _one_of(pick, hosts) if hosts and pick(2) else None
        demands.append(
            TrainingDemand(
                role=RoleName(name),
                devices=1 + pick(host.devices if host else most),
                offload=True,
                on=host.role if host else None,
            )
        )
    return tuple(demands)


def _some(pick: Pick, names: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Some of the names, by chance in another order."""
    first = pick(len(names))
    return (names[first:] + names[:first])[:count]


def _one_of(pick: Pick, things: Sequence[_Thing]) -> _Thing:
    return things[pick(len(things))]
