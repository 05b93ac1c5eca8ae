"""The placement groups of one job's pools: created, probed, and always removed again.

Owner of the groups it creates; a *borrowed* group belongs to somebody else and is never removed.
Whatever goes wrong while groups are created, also Ctrl-C, those already created are removed
before the error goes on. A removal is done when the cluster confirms it; until then the group
stays pending here and every further :meth:`PoolGroups.remove` tries it again.

Works on a :class:`~rolecall.placement.group_port.GroupPort`; imports no Ray.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence

from attrs import define

from rolecall.errors import CleanupPendingError, ClusterError, PlacementRefused, Refusal
from rolecall.placement.binding_checks import refuse_borrowed_sizes
from rolecall.placement.bound import BundleProbe
from rolecall.placement.group_port import BlockingClock, GroupHandle, GroupPort, PoolGroup, ResourceOffer
from rolecall.placement.node_choice import choose_nodes
from rolecall.placement.plan import Pool
from rolecall.placement.wording import counted

LOOK_AGAIN_S = 0.05
"""Pause between two looks at whether a group is gone, or whether there is room for one."""

SETTLE_S = 3.0
"""How long the cluster may take to show what was just given back, and to make a group that it can make."""

INTERRUPTIBLE_S = 1.0
"""Longest single wait for a group: Ray's wait does not see Ctrl-C before it returns."""

CLEAN_UP_S = 30.0
"""How long removal may take when creation failed."""


@define
class _Owned:
    """A group of ours, from the moment before it is asked for. ``handle`` is None until then."""

    name: str
    asked_s: float = 0.0
    handle: GroupHandle | None = None
    ready: bool = False


class PoolGroups:
    """The groups of a plan's pools. Used by one thread at a time, but for ``give_up``; every call blocks."""

    def __init__(
        self,
        pools: Sequence[Pool],
        *,
        job: str,
        borrowed: Mapping[str, GroupHandle],
        port: GroupPort,
        clock: BlockingClock,
    ) -> None:
        self._pools = {pool.pool_id: pool for pool in pools}
        self._borrowed = dict(borrowed)
        self._port = port
        self._clock = clock
        self._given_up = threading.Event()
        # The random part keeps the names of two jobs of one name apart: a group found under one
        # of these names is ours, and may be removed.
        mark = secrets.token_hex(4)
        self._owned = {
            pool_id: _Owned(f"rolecall-{job}-{pool_id}-{mark}")
            for pool_id in self._pools
            if pool_id not in self._borrowed
        }

    @property
    def handles(self) -> dict[str, GroupHandle]:
        """The cluster's own handle of each pool's group, by pool id."""
        owned = {pool_id: group.handle for pool_id, group in self._owned.items() if group.handle is not None}
        return {**owned, **self._borrowed}

    @property
    def names(self) -> dict[str, str]:
        """Names of the groups that are created here, by pool id."""
        return {pool_id: group.name for pool_id, group in self._owned.items()}

    @property
    def owned_names(self) -> tuple[str, ...]:
        """Names of the groups that are still to be removed."""
        return tuple(group.name for group in self._owned.values())

    def create(self, timeout_s: float) -> None:
        """Create every group that is not borrowed and wait until all are ready.

        Raises:
            ClusterError: the cluster could not give them within ``timeout_s``; none is left.
            PlacementRefused: a borrowed group is not made of bundles of one device.
            CleanupPendingError: creation failed, and so did removal; ``remove`` may be repeated.
        """
        try:
            self._check_borrowed()
            nodes = self._choose_nodes()
            for pool_id, group in self._owned.items():
                pool = self._pools[pool_id]
                group.asked_s = self._clock.now_s()
                group.handle = self._port.create(
                    group.name, [{pool.resource: 1.0}] * pool.devices, nodes.get(pool_id)
                )
            self._await_ready(timeout_s)
        except BaseException as error:
            self.remove_after(error)
            raise

    def give_up(self) -> None:
        """Let a ``create`` that waits in another thread fail soon, as it does when its time is over."""
        self._given_up.set()

    def probe(self, timeout_s: float) -> tuple[BundleProbe, ...]:
        """Return a report from inside every bundle of every group, in any order.

        Raises:
            ClusterError: some bundles did not answer within ``timeout_s``; names them.
        """
        handles = self.handles
        return self._port.probe(
            [
                PoolGroup(
                    pool_id=pool.pool_id,
                    resource=pool.resource,
                    bundles=len(self._port.bundles(handles[pool.pool_id])),
                    handle=handles[pool.pool_id],
                )
                for pool in self._pools.values()
            ],
            timeout_s,
        )

    def remove(self, timeout_s: float) -> None:
        """Remove the groups that this job created, and return when the cluster confirms it.

        Borrowed groups stay. What is gone already is not asked for again, so repeats do nothing.

        Raises:
            CleanupPendingError: not confirmed within ``timeout_s``; the unconfirmed stay pending.
        """
        faults: dict[str, ClusterError] = {}
        ends_s = self._clock.now_s() + timeout_s
        for group in self._owned.values():
            try:
                if group.handle is None:
                    # Creation may have failed on its way back, after the cluster had heard of it.
                    group.handle = self._port.find(group.name)
                if group.handle is not None:
                    self._let_settle(group)
                    self._port.remove(group.handle)
            except ClusterError as fault:  # the others are still to be removed; reported below
                faults[group.name] = fault
        while True:
            for pool_id, group in list(self._owned.items()):
                if group.name in faults:
                    continue
                try:
                    if group.handle is None or self._port.is_removed(group.handle):
                        del self._owned[pool_id]
                except ClusterError as fault:
                    faults[group.name] = fault
            if all(group.name in faults for group in self._owned.values()):
                break
            if self._clock.now_s() >= ends_s:
                break
            self._clock.sleep(LOOK_AGAIN_S)
        if self._owned:
            raise _pending([group.name for group in self._owned.values()], faults, timeout_s)

    def _let_settle(self, group: _Owned) -> None:
        """Give a group that is just being made the time to become ready.

        Ray loses devices for good if a group is removed while it reserves them (ray-project/ray#64693).
        """
        while not group.ready and (left_s := group.asked_s + SETTLE_S - self._clock.now_s()) > 0:
            try:
                group.ready = self._port.wait_ready(group.handle, min(INTERRUPTIBLE_S, left_s))
            except ClusterError:
                return  # the removal is to be tried all the same, and says what is wrong

    def remove_after(self, error: BaseException) -> None:
        """Remove the groups because of ``error``, which the caller goes on raising.

        Raises:
            CleanupPendingError: from ``error``, if a removal is not confirmed.
        """
        try:
            self.remove(CLEAN_UP_S)
        except CleanupPendingError as pending:
            raise pending from error

    def _check_borrowed(self) -> None:
        refusals: list[Refusal] = []
        for pool_id, handle in self._borrowed.items():
            pool = self._pools.get(pool_id)
            if pool is None:
                raise ClusterError(
                    f'a placement group was lent for pool "{pool_id}", which the plan has not; its pools:'
                    f" {', '.join(self._pools)}"
                )
            sizes = [bundle.get(pool.resource, 0.0) for bundle in self._port.bundles(handle)]
            refusals += refuse_borrowed_sizes(pool, sizes)
        if refusals:
            raise PlacementRefused(refusals)

    def _choose_nodes(self) -> dict[str, tuple[str, ...]]:
        """Return the nodes of each pool's bundles; none for pools whose nodes the cluster has to find."""
        chosen: dict[str, tuple[str, ...]] = {}
        pools = [self._pools[pool_id] for pool_id in self._owned]
        for resource in dict.fromkeys(pool.resource for pool in pools):
            chosen |= self._nodes_of([pool for pool in pools if pool.resource == resource], resource)
        return chosen

    def _nodes_of(self, pools: Sequence[Pool], resource: str) -> dict[str, tuple[str, ...]]:
        ends_s = self._clock.now_s() + SETTLE_S
        while True:
            offered = self._port.offer(resource).nodes
            chosen = choose_nodes(pools, {node.node_id: int(node.free) for node in offered})
            possible = choose_nodes(pools, {node.node_id: int(node.total) for node in offered})
            if chosen is not None or possible is None or self._clock.now_s() >= ends_s:
                return chosen or {}
            self._clock.sleep(LOOK_AGAIN_S)

    def _await_ready(self, timeout_s: float) -> None:
        ends_s = self._clock.now_s() + timeout_s
        waiting = self.handles
        while waiting:
            pool_id, handle = next(iter(waiting.items()))
            left_s = ends_s - self._clock.now_s()
            if self._port.wait_ready(handle, max(0.0, min(INTERRUPTIBLE_S, left_s))):
                del waiting[pool_id]
                if pool_id in self._owned:
                    self._owned[pool_id].ready = True
            elif self._given_up.is_set():
                raise ClusterError(f'waiting for pool "{pool_id}" was given up')
            elif left_s <= 0:
                not_ready = [self._pools[pool_id] for pool_id in waiting]
                raise ClusterError(_not_ready(not_ready, self._port, timeout_s))


def _not_ready(pools: Sequence[Pool], port: GroupPort, timeout_s: float) -> str:
    asked = ", ".join(
        f'pool "{pool.pool_id}" asked for {counted(pool.devices, "bundle")} of 1 {pool.resource}'
        for pool in pools
    )
    offers = "; ".join(
        _offered(resource, port.offer(resource))
        for resource in dict.fromkeys(pool.resource for pool in pools)
    )
    return (
        f"placement groups were not ready within {timeout_s:g} s: {asked}. {offers}."
        " Free devices, add nodes, or ask for fewer devices in the job file"
    )


def _offered(resource: str, offer: ResourceOffer) -> str:
    if not offer.nodes:
        return f"The cluster has no {resource}"
    nodes = ", ".join(f"{node.name}: {node.total:g}" for node in offer.nodes)
    return f"The cluster has {offer.total:g} {resource} ({nodes}), {offer.free:g} of them free"


def _pending(
    names: Sequence[str], faults: Mapping[str, ClusterError], timeout_s: float
) -> CleanupPendingError:
    details = "; ".join(f"{name}: {faults.get(name, f'still there after {timeout_s:g} s')}" for name in names)
    return CleanupPendingError(
        f"{counted(len(names), 'placement group')} could not be proved removed ({details}); the removal may"
        " be repeated, and the cluster removes them itself when this process has ended"
    )
