"""Placement groups on the connected Ray cluster: from a plan to probed bundles, and back.

The job's start has the groups of :func:`pools_for` created, calls :func:`probe_pools`, gives the probes to
``rolecall.placement.binding.bind``, and calls :func:`remove_pools` on its way down, also when
probing or binding failed; :func:`pools_of` does all of that as one block. Every call blocks: from
an event loop, use a thread.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from attrs import frozen
from ray.util.placement_group import PlacementGroup

from rolecall.cluster.pool_groups import PoolGroups
from rolecall.cluster.ray_groups import RayGroups, WallClock
from rolecall.placement.binding import bind
from rolecall.placement.bound import BoundPlan, BundleProbe
from rolecall.placement.group_port import BlockingClock, GroupPort
from rolecall.placement.plan import PlacementPlan

CREATE_TIMEOUT_S = 60.0
PROBE_TIMEOUT_S = 60.0
REMOVE_TIMEOUT_S = 30.0

NOTHING_BORROWED: Mapping[str, PlacementGroup] = {}


def pools_for(
    plan: PlacementPlan,
    *,
    job: str,
    borrowed: Mapping[str, PlacementGroup] = NOTHING_BORROWED,
    port: GroupPort | None = None,
    clock: BlockingClock | None = None,
) -> PoolGroups:
    """Return the owner of a plan's placement groups; none is asked for before its ``create``."""
    return PoolGroups(
        plan.pools, job=job, borrowed=borrowed, port=port or RayGroups(), clock=clock or WallClock()
    )


def create_pools(
    plan: PlacementPlan,
    *,
    job: str,
    timeout_s: float = CREATE_TIMEOUT_S,
    borrowed: Mapping[str, PlacementGroup] = NOTHING_BORROWED,
    port: GroupPort | None = None,
    clock: BlockingClock | None = None,
) -> PoolGroups:
    """Create a placement group for each pool of ``plan`` and wait until all are ready.

    ``borrowed`` gives groups that somebody else owns, by pool id: they are used and never
    removed. The groups' names contain the job and the pool.

    Raises:
        ClusterError: the cluster could not give them in time; says what was asked and what is
            there. No group is left, also after any other error or Ctrl-C.
        PlacementRefused: a borrowed group is not made of bundles of one device.
        CleanupPendingError: creation failed, and a group could not be proved removed.
    """
    groups = pools_for(plan, job=job, borrowed=borrowed, port=port, clock=clock)
    groups.create(timeout_s)
    return groups


def probe_pools(groups: PoolGroups, *, timeout_s: float = PROBE_TIMEOUT_S) -> tuple[BundleProbe, ...]:
    """Look from inside every bundle, all at the same time, at the node and device it is on.

    Removes nothing: on an error the caller still owns the groups.

    Raises:
        ClusterError: bundles did not answer in time; names them.
    """
    return groups.probe(timeout_s)


def remove_pools(groups: PoolGroups, *, timeout_s: float = REMOVE_TIMEOUT_S) -> None:
    """Remove the groups that were created here; borrowed ones stay. Repeats do nothing.

    Raises:
        CleanupPendingError: a removal is not confirmed; calling again tries it again.
    """
    groups.remove(timeout_s)


@frozen(kw_only=True)
class BoundPools:
    """A plan bound to the bundles of live placement groups."""

    bound: BoundPlan
    groups: PoolGroups


@contextmanager
def pools_of(
    plan: PlacementPlan,
    *,
    job: str,
    create_timeout_s: float = CREATE_TIMEOUT_S,
    probe_timeout_s: float = PROBE_TIMEOUT_S,
    remove_timeout_s: float = REMOVE_TIMEOUT_S,
    borrowed: Mapping[str, PlacementGroup] = NOTHING_BORROWED,
    port: GroupPort | None = None,
    clock: BlockingClock | None = None,
) -> Generator[BoundPools]:
    """Create, probe and bind for the length of a block; the owned groups are gone when it ends.

    Raises:
        PlacementRefused: the bundles are not what the plan needs.
        ClusterError: as in the single steps.
        CleanupPendingError: a removal is not confirmed, at the end or after an error (then its
            cause).
    """
    groups = create_pools(
        plan, job=job, timeout_s=create_timeout_s, borrowed=borrowed, port=port, clock=clock
    )
    try:
        bound = bind(plan, probe_pools(groups, timeout_s=probe_timeout_s))
        yield BoundPools(bound=bound, groups=groups)
    except BaseException as error:
        groups.remove_after(error)
        raise
    remove_pools(groups, timeout_s=remove_timeout_s)
