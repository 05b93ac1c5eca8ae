"""Where a role's engines come to lie in a pool: the one rule of alignment for all modes.

Pure arithmetic over :class:`~rolecall.placement.nodes.Nodes`. Bundles skipped so that no engine straddles
nodes stay unused. Placement modes call it (through ``rolecall.api``); it never refuses: whether there has
to be room is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from attrs import frozen

from rolecall.ids import RoleName, engine_id
from rolecall.placement.nodes import Nodes
from rolecall.placement.plan import ReplicaPlacement, RoleDemand, TrainingDemand, TrainingPlacement


@frozen(kw_only=True)
class RoleSlice:
    """A role's replicas in a pool, inside the bundles ``range(start, stop)``."""

    replicas: tuple[ReplicaPlacement, ...]
    start: int
    stop: int


def place_role(role: RoleDemand, *, pool_id: str, start: int, nodes: Nodes) -> RoleSlice | None:
    """Lay a role's engines out from bundle ``start`` on: models as in the job file, then replicas.

    Returns:
        ``start`` is the given one and ``stop`` the bundle after the last engine's, so that slices laid one
        after the other never overlap. None if there is no room on ``nodes``.
    """
    replicas: list[ReplicaPlacement] = []
    stop = start
    for model in role.models:
        devices = model.devices_per_engine
        starts = nodes.room(stop, devices, model.replicas)
        if starts is None:
            return None
        replicas += (
            ReplicaPlacement(
                engine=engine_id(model.model, index),
                role=role.role,
                model=model.model,
                pool_id=pool_id,
                bundles=tuple(range(first, first + devices)),
            )
            for index, first in enumerate(chain.from_iterable(starts))
        )
        stop = starts[-1][-1] + devices
    return RoleSlice(replicas=tuple(replicas), start=start, stop=stop)


def stop_of_role(role: RoleDemand, *, start: int, nodes: Nodes) -> int | None:
    """Return the ``stop`` of :func:`place_role` without laying anything out; None if there is no room."""
    stop = start
    for model in role.models:
        starts = nodes.room(stop, model.devices_per_engine, model.replicas)
        if starts is None:
            return None
        stop = starts[-1][-1] + model.devices_per_engine
    return stop


@frozen(kw_only=True)
class TrainingSlice:
    """The trainer's processes in a pool, inside the bundles ``range(start, stop)``."""

    placements: tuple[TrainingPlacement, ...]
    start: int
    stop: int


def place_training(demands: Sequence[TrainingDemand], *, pool_id: str, start: int) -> TrainingSlice:
    """Lay the trainer's processes side by side from bundle ``start`` on, in the file's order.

    They may straddle nodes. A role that is on another's processes has the first of their bundles.
    """
    starts: dict[RoleName, int] = {}
    stop = start
    for demand in demands:
        if demand.on is None:
            starts[demand.role] = stop
            stop += demand.devices
    placements = tuple(
        TrainingPlacement(
            role=demand.role,
            process=demand.process,
            pool_id=pool_id,
            bundles=tuple(range(starts[demand.process], starts[demand.process] + demand.devices)),
        )
        for demand in demands
    )
    return TrainingSlice(placements=placements, start=start, stop=stop)
