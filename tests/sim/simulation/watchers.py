"""Those who only wait for a commit, beside the coordinator, and look at the clock."""

from __future__ import annotations

from rolecall.errors import BatchFailedError, CommitTimeoutError
from rolecall.ids import BatchId
from rolecall.leases.coordinator import LeaseCoordinator
from simulation.network import Endpoint
from simulation.world import World


async def watch(
    world: World, coordinator: LeaseCoordinator, life: Endpoint, batch: BatchId, timeout_s: float
) -> None:
    """Wait beside the coordinator: it ends with the commit, with the failure or in time, and at once."""
    evidence, now = world.evidence, world.loop.time
    began_s, mine = now(), object()
    evidence.waiting[mine] = began_s + timeout_s
    life.on_death.append(lambda: evidence.waiting.pop(mine, None))  # it waits for nothing any more
    failed_s = None
    try:
        await coordinator.wait_committed(batch, timeout_s)
        came_s = evidence.committed_s.get(batch)
    except BatchFailedError:
        came_s = failed_s = evidence.failed_s
    except CommitTimeoutError:
        came_s = began_s + timeout_s if evidence.failure is None else None
    if not life.alive:
        return
    evidence.waiting.pop(mine, None)
    if came_s is None:
        world.violate("who waits hears the truth", f"batch {batch} was told of, and nothing had happened")
    elif max(came_s, began_s) != now():
        kind = "the failure" if failed_s is not None else "the end"
        world.violate("who waits hears at once", f"{kind} of batch {batch} was at {came_s:.3f} s")
