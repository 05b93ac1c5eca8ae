"""Placement groups without Ray, for tests; kept true by the contract test of the port.

:class:`FakeGroups` is a cluster of nodes with devices, :class:`FaultyGroups` wraps any port and
raises at a chosen call, :class:`TurnedClock` is time that moves only when it is slept through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field

from rolecall.errors import ClusterError
from rolecall.placement.bound import NAMED_DEVICES, BundleProbe
from rolecall.placement.group_port import GroupPort, NodeOffer, PoolGroup, ResourceOffer


@define
class TurnedClock:
    """A :class:`~rolecall.placement.group_port.BlockingClock` turned by its own ``sleep``."""

    time_s: float = 0.0

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds


@define(eq=False)
class FakeGroup:
    """``places`` is each bundle's (node, device), None while the group waits for room."""

    name: str
    resource: str
    bundles: tuple[Mapping[str, float], ...]
    nodes: tuple[str, ...] | None = None
    places: list[tuple[str, int]] | None = None
    removed: bool = False


@define
class FakeGroups:
    """A cluster: devices on each node. Groups take free devices from the last node on, so that
    neither bundles nor devices come in the order a plan would like.

    Attributes:
        clock: moves on when something is waited for in vain.
        unremovable: names (or parts of names) of groups whose removal is never confirmed.
    """

    nodes: Mapping[str, int]
    resource: str = "device_slot"
    clock: TurnedClock = field(factory=TurnedClock)
    groups: list[FakeGroup] = field(factory=list)
    unremovable: set[str] = field(factory=set)

    @property
    def live_names(self) -> list[str]:
        return [group.name for group in self.groups if not group.removed]

    def create(
        self, name: str, bundles: Sequence[Mapping[str, float]], nodes: Sequence[str] | None = None
    ) -> FakeGroup:
        (resource,) = {key for bundle in bundles for key in bundle}
        wanted = None if nodes is None else tuple(nodes)
        group = FakeGroup(name=name, resource=resource, bundles=tuple(bundles), nodes=wanted)
        self.groups.append(group)
        return group

    def find(self, name: str) -> FakeGroup | None:
        return next((group for group in self.groups if group.name == name and not group.removed), None)

    def wait_ready(self, group: FakeGroup, timeout_s: float) -> bool:
        free = self._free() if group.resource == self.resource else []
        if group.places is None:
            group.places = _places(group, free[::-1])
        if group.places is None:
            self.clock.sleep(timeout_s)
        return group.places is not None

    def bundles(self, group: FakeGroup) -> tuple[Mapping[str, float], ...]:
        return group.bundles

    def probe(self, groups: Sequence[PoolGroup], timeout_s: float) -> tuple[BundleProbe, ...]:
        probes: list[BundleProbe] = []
        for group in groups:
            places = group.handle.places
            if places is None:
                self.clock.sleep(timeout_s)
                raise ClusterError(f'no answer within {timeout_s:g} s from inside pool "{group.pool_id}"')
            probes += [
                BundleProbe(
                    pool_id=group.pool_id,
                    bundle=bundle,
                    node_id=node,
                    node_ip=f"ip-of-{node}",
                    device_ids=(str(device),) if group.resource == NAMED_DEVICES else (),
                )
                for bundle, (node, device) in enumerate(places)
            ]
        return tuple(probes)

    def remove(self, group: FakeGroup) -> None:
        if not any(part in group.name for part in self.unremovable):
            group.removed = True

    def is_removed(self, group: FakeGroup) -> bool:
        return group.removed

    def offer(self, resource: str) -> ResourceOffer:
        if resource != self.resource:
            return ResourceOffer()
        free = Counter(node for node, _ in self._free())
        return ResourceOffer(
            nodes=tuple(
                NodeOffer(node_id=node, name=node, total=devices, free=free[node])
                for node, devices in self.nodes.items()
            )
        )

    def _free(self) -> list[tuple[str, int]]:
        taken = {place for group in self.groups if not group.removed for place in group.places or ()}
        devices = [(node, device) for node, count in self.nodes.items() for device in range(count)]
        return [place for place in devices if place not in taken]


def _places(group: FakeGroup, free: list[tuple[str, int]]) -> list[tuple[str, int]] | None:
    """Give each bundle the first free device on its node; None if one has none."""
    places: list[tuple[str, int]] = []
    for node in group.nodes or (None,) * len(group.bundles):
        place = next((place for place in free if node in (None, place[0])), None)
        if place is None:
            return None
        free.remove(place)
        places.append(place)
    return places


@define
class FaultyGroups:
    """Any port, but the ``at``-th call of ``method`` raises ``error``.

    ``after`` lets the call do its work first: the caller hears of the error, the cluster of the
    call.
    """

    port: GroupPort
    method: str
    error: BaseException
    at: int = 1
    after: bool = False
    calls: int = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.port, name)
        if name != self.method:
            return real

        def faulty(*args: Any) -> Any:
            self.calls += 1
            if self.calls != self.at:
                return real(*args)
            if self.after:
                real(*args)
            raise self.error

        return faulty
