"""How many devices, or which nodes, would be enough: the fix of a job that does not fit.

Pure. Placement modes call it (through ``rolecall.api``) when they refuse a job for want of room: they say
what fits, and get what to write into the job file. Of unequal nodes more of the largest are taken, where that
is of no use more of another size, or of all; never larger ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

from attrs import evolve

from rolecall.errors import Fix, Refusal
from rolecall.placement.nodes import Nodes
from rolecall.placement.plan import PlacementJob

_DEVICES, _NODES = "placement.devices", "placement.nodes"


def enough_devices(job: PlacementJob, fits: Callable[[Nodes], bool]) -> Fix | None:
    """Return the smallest number of devices, or of further nodes, with which the job fits.

    ``fits`` lays the job out on nodes and says whether there was room; more room never makes it say no.

    Returns:
        what to write in the job file; None if no number of nodes would do.
    """
    if job.per_node is not None or job.nodes.devices is None:
        per_node = job.largest_node
        found = _first(lambda devices: fits(Nodes.equal(devices, per_node=per_node)), _plenty(job, per_node))
        return None if found is None else Fix(((_DEVICES, found),))
    sizes = list(job.nodes.sizes())
    kinds = sorted(set(sizes), reverse=True)
    for added in (*([size] for size in kinds), kinds):
        found = _first(
            lambda more, added=added: fits(Nodes.of(_with(sizes, added * more))),
            -(-_plenty(job, min(added)) // min(added)),
        )
        if found is not None:
            return Fix(((_NODES, _with(sizes, added * found)),))
    return None


def _with(sizes: list[int], added: list[int]) -> list[int]:
    return sorted([*sizes, *added], reverse=True)


def with_room(job: PlacementJob, refusals: Iterable[Refusal]) -> PlacementJob | None:
    """Return the job with the devices that the refusals' first fixes give it; None if they give none."""
    for refusal in refusals:
        for key, value in refusal.fixes[0].assignments if refusal.fixes else ():
            if key == _DEVICES and value:
                return evolve(job, nodes=Nodes.equal(value, per_node=job.largest_node))
            if key == _NODES and value:
                return evolve(job, nodes=Nodes.of(sorted(value, reverse=True)))
    return None


def _first(enough: Callable[[int], bool], plenty: int) -> int | None:
    """Return the smallest number from 1 on that is enough."""
    if not enough(plenty):
        return None
    return bisect_left(range(1, plenty), True, key=enough) + 1


def _plenty(job: PlacementJob, per_node: int) -> int:
    """Devices with which each engine could have nodes of its own."""
    engines = sum(
        model.replicas * -(-model.devices_per_engine // per_node) * per_node
        for role in job.roles
        for model in role.models
    )
    return engines + sum(demand.devices for demand in job.processes) + per_node
