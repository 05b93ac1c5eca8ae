"""What the modes refuse: too little room, or none that they know of."""

from __future__ import annotations

from collections.abc import Callable

from attrs import field, frozen

from rolecall.api import Nodes, PlacementJob, Refusal, enough_devices


@frozen(kw_only=True)
class PoolMissing(Refusal):
    """A mode with one shared pool whose size is not given and follows from no training role."""

    code: str = field(default="pool-missing", init=False)


@frozen(kw_only=True)
class PoolTooSmall(Refusal):
    """Devices into which the layout does not fit.

    needed: devices that are asked for; not more than ``devices`` if only the borders of nodes are in the way.
    """

    code: str = field(default="pool-too-small", init=False)
    needed: int
    devices: int


def pool_missing(mode: str, job: PlacementJob, fits: Callable[[Nodes], bool]) -> PoolMissing:
    """Say that ``mode`` does not know how large the shared pool is; ``fits`` says whether nodes would do."""
    fix = enough_devices(job, fits)
    least = "" if fix is None else f" (at least {fix.assignments[0][1]})"
    return PoolMissing(
        key="placement.devices",
        message=f'mode "{mode}" lays all roles out in one shared pool and needs its size{least};'
        " placement.devices is not set",
        fix=str(fix or "engines that fit the nodes"),
        fixes=() if fix is None else (fix,),
    )


def pool_too_small(
    job: PlacementJob, nodes: Nodes, *, message: str, needed: int, fits: Callable[[Nodes], bool]
) -> PoolTooSmall:
    """Say that ``nodes`` have too little room; ``fits`` says whether others would do."""
    fix = enough_devices(job, fits)
    devices = nodes.devices or 0
    borders = "" if needed > devices else ", as no engine may straddle two nodes"
    return PoolTooSmall(
        key="placement.devices" if job.per_node is not None else "placement.nodes",
        message=message + borders,
        fix="fewer replicas, or engines of another size" if fix is None else f"{fix}, or fewer replicas",
        fixes=() if fix is None else (fix,),
        needed=needed,
        devices=devices,
    )


def demands(job: PlacementJob, *, training: bool) -> dict[str, int]:
    """Return the devices that each role asks for, by what it is called."""
    found = {role.role: role.needed for role in job.roles}
    if training:
        found |= {role.role: role.devices for role in job.processes}
    return {str(role): devices for role, devices in found.items()}
