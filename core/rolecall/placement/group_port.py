"""The port to the cluster's placement groups, and to time that blocks.

Behind it stands Ray (``rolecall.cluster.ray_groups``) or a fake (``rolecall.testing.fake_groups``); the same
contract tests run against both. A *group handle* is opaque here. All calls block, and raise
:class:`~rolecall.errors.ClusterError` when the cluster does not answer as it should.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen

from rolecall.placement.bound import BundleProbe

GroupHandle = Any


@frozen(kw_only=True)
class NodeOffer:
    """What one live node has of a resource. ``node_id`` is the cluster's name of it, ``name`` people's."""

    node_id: str
    name: str
    total: float
    free: float


@frozen(kw_only=True)
class ResourceOffer:
    """What the cluster has of one resource; only nodes that have some of it."""

    nodes: tuple[NodeOffer, ...] = ()

    @property
    def total(self) -> float:
        return sum(node.total for node in self.nodes)

    @property
    def free(self) -> float:
        return sum(node.free for node in self.nodes)


@frozen(kw_only=True)
class PoolGroup:
    """A pool's placement group: what to probe."""

    pool_id: str
    resource: str
    bundles: int
    handle: GroupHandle


class GroupPort(Protocol):
    """Placement groups of one cluster."""

    def create(
        self, name: str, bundles: Sequence[Mapping[str, float]], nodes: Sequence[str] | None
    ) -> GroupHandle:
        """Ask for a group; returns before it is ready.

        ``nodes`` are the ids of the nodes that the bundles have to be on; None leaves it to the cluster,
        which packs them on as few nodes as it can.
        """
        ...

    def find(self, name: str) -> GroupHandle | None:
        """Return the group of that name, or None if there is none."""
        ...

    def wait_ready(self, group: GroupHandle, timeout_s: float) -> bool:
        """Return True once every bundle is reserved, False after ``timeout_s``."""
        ...

    def bundles(self, group: GroupHandle) -> tuple[Mapping[str, float], ...]:
        """Return what each bundle of a group reserves."""
        ...

    def probe(self, groups: Sequence[PoolGroup], timeout_s: float) -> tuple[BundleProbe, ...]:
        """Look, from inside every bundle at the same time, at the node and device it is on."""
        ...

    def remove(self, group: GroupHandle) -> None:
        """Ask for a group's removal; one that is gone is no error."""
        ...

    def is_removed(self, group: GroupHandle) -> bool:
        """Whether the cluster itself says that the group is gone."""
        ...

    def offer(self, resource: str) -> ResourceOffer:
        """Return what the cluster has of a resource."""
        ...


class BlockingClock(Protocol):
    """Monotonic time, and a wait that blocks the thread."""

    def now_s(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...
