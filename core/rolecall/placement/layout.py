"""Where a role's engines come to lie in a pool: the one rule of alignment for all modes.

Pure arithmetic. A pool's bundles are numbered node by node, ``devices_per_node`` to a node. An
engine that fits into one node never straddles two; an engine larger than a node starts on a
node's first bundle. Bundles skipped for that stay unused. Placement modes call it (through
``rolecall.api``); it knows no modes and never refuses: whether the slice is inside the pool is
for the caller to say.
"""

from __future__ import annotations

from attrs import frozen

from rolecall.ids import engine_id
from rolecall.placement.plan import ReplicaPlacement, RoleDemand


@frozen(kw_only=True)
class RoleSlice:
    """A role's replicas in a pool, inside the bundles ``range(start, stop)``."""

    replicas: tuple[ReplicaPlacement, ...]
    start: int
    stop: int


def aligned_start(free_from: int, devices: int, devices_per_node: int) -> int:
    """Return the first bundle at or after ``free_from`` where an engine may start.

    >>> aligned_start(6, 4, 8)  # bundles 6 to 9 would lie on two nodes
    8
    >>> aligned_start(4, 4, 8)
    4
    >>> aligned_start(1, 16, 8)  # two whole nodes
    8
    """
    left_on_node = -free_from % devices_per_node or devices_per_node
    if devices <= left_on_node or left_on_node == devices_per_node:
        return free_from
    return free_from + left_on_node


def place_role(role: RoleDemand, *, pool_id: str, start: int, devices_per_node: int) -> RoleSlice:
    """Lay a role's engines out from bundle ``start`` on: models as in the job file, then replicas.

    ``RoleSlice.start`` is the given ``start`` and ``stop`` the bundle after the last engine's,
    so that slices laid one after the other never overlap.
    """
    replicas: list[ReplicaPlacement] = []
    free_from = start
    for model in role.models:
        for index in range(model.replicas):
            first = aligned_start(free_from, model.devices_per_engine, devices_per_node)
            free_from = first + model.devices_per_engine
            replicas.append(
                ReplicaPlacement(
                    engine=engine_id(model.model, index),
                    role=role.role,
                    model=model.model,
                    pool_id=pool_id,
                    bundles=tuple(range(first, free_from)),
                )
            )
    return RoleSlice(replicas=tuple(replicas), start=start, stop=free_from)
