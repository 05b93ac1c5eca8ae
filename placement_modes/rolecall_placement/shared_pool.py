"""What the modes with one shared pool have in common: the pool, and its absence."""

from __future__ import annotations

from rolecall.api import PlacementJob, Pool, Refusal

POOL_ID = "shared"


def shared_pool(job: PlacementJob, devices: int) -> Pool:
    """Return the pool that all roles of the job use."""
    return Pool(
        pool_id=POOL_ID,
        resource=job.resource,
        devices=devices,
        devices_per_node=job.devices_per_node,
    )


def pool_missing(mode: str, needed: int) -> Refusal:
    """Say that ``mode`` has no pool to lay ``needed`` devices out in."""
    return Refusal(
        code="pool-missing",
        key="placement.devices",
        message=f'mode "{mode}" lays all roles out in one shared pool and needs its size'
        f" (at least {needed}); placement.devices is not set",
        fix=f"placement.devices = {needed}",
    )
