"""The plan bound to the devices that the cluster really gave.

Pure: plan and probe reports in, bound plan or refusals out. The job's start calls :func:`bind`
once every bundle of every placement group has been probed; nothing is started from a plan that
did not pass. Never assumed: that bundles are in any order, that nodes are equal, that device ids
start at 0.

Planned bundle numbers are mapped by identity. The devices of a pool are ordered node by node
(nodes with more devices first, then by address) and by device id within a node; the planned bundles,
larger nodes first, are given the devices in that order, whatever indices their bundles have in the
placement group.

Ray names the device only of a GPU bundle. For any other resource the bundles of a node are
numbered 0, 1, 2 … in the order (pool, bundle index), over all pools of the job, and that number
is the device's id; from there on the code is the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve, frozen

from rolecall.errors import PlacementRefused, Refusal
from rolecall.ids import RoleName
from rolecall.placement.nodes import Nodes
from rolecall.placement.occupancy import Occupancy
from rolecall.placement.plan import PlacementPlan, ReplicaPlacement
from rolecall.placement.wording import bundle_runs, counted

NAMED_DEVICES = "GPU"
"""The Ray resource whose devices Ray gives ids; all others are numbered here."""


@frozen(kw_only=True)
class BundleProbe:
    """What was found in one bundle of a pool's placement group.

    ``bundle`` is the group's own index. ``device_ids`` are physical ids as text, exactly one;
    empty where Ray knows no ids for the resource.
    """

    pool_id: str
    bundle: int
    node_id: str
    node_ip: str
    device_ids: tuple[str, ...]


@frozen(kw_only=True)
class BoundWorker:
    """A replica's part on one node.

    ``bundles`` are indices of the real placement group, the i-th holding device
    ``device_ids[i]``; the worker's actor belongs in the first. ``reservation`` is the share of
    that bundle's device that the actor reserves.
    """

    node_id: str
    node_ip: str
    bundles: tuple[int, ...]
    device_ids: tuple[str, ...]
    reservation: float


@frozen(kw_only=True)
class BoundReplica:
    """A replica on real devices; workers in node-rank order, the first is the head."""

    placement: ReplicaPlacement
    workers: tuple[BoundWorker, ...]


@frozen(kw_only=True)
class BoundPlan:
    """A plan with every replica bound, in the plan's order."""

    plan: PlacementPlan
    replicas: tuple[BoundReplica, ...]

    def replicas_of(self, role: RoleName) -> tuple[BoundReplica, ...]:
        return tuple(replica for replica in self.replicas if replica.placement.role == role)


def bind(plan: PlacementPlan, probes: Iterable[BundleProbe]) -> BoundPlan:
    """Bind every replica of ``plan`` to probed bundles; the probes may come in any order.

    Raises:
        PlacementRefused: the bundles are not what the plan needs; carries every reason.
    """
    found = list(probes)
    refusals = [*_refuse_wrong_bundles(plan, found), *_refuse_wrong_device_count(plan, found)]
    if refusals:
        # Which device is which can't be said from wrong reports.
        raise PlacementRefused(refusals)
    found = _number_unnamed_devices(plan, found)
    refusals += _refuse_device_twice(found)
    nodes = {pool.pool_id: pool.nodes for pool in plan.pools}
    of_pool: dict[str, list[BundleProbe]] = {pool.pool_id: [] for pool in plan.pools}
    for probe in found:
        of_pool[probe.pool_id].append(probe)
    layout = {pool: _on_planned_nodes(nodes[pool], _node_by_node(probes)) for pool, probes in of_pool.items()}
    occupancy = Occupancy.of(plan)
    replicas: list[BoundReplica] = []
    for placement in plan.replicas:
        parts = _parts(placement, nodes[placement.pool_id], layout[placement.pool_id], occupancy)
        problems = [
            *_refuse_split_worker(placement, parts),
            *_refuse_scattered_devices(placement, parts),
            *_refuse_node_twice(placement, parts),
        ]
        refusals += problems
        if not problems:
            replicas.append(_bound(placement, parts))
    if refusals:
        raise PlacementRefused(refusals)
    return BoundPlan(plan=plan, replicas=tuple(replicas))


# --- the reports ------------------------------------------------------------------------


def _refuse_wrong_bundles(plan: PlacementPlan, probes: Sequence[BundleProbe]) -> list[Refusal]:
    """Every bundle of every pool reported once, and nothing else did."""
    refusals: list[Refusal] = []
    pools = {pool.pool_id: pool for pool in plan.pools}
    reported = Counter((probe.pool_id, probe.bundle) for probe in probes)
    for (pool_id, bundle), count in reported.items():
        pool = pools.get(pool_id)
        if pool is None:
            refusals.append(
                _group_refusal(
                    "unknown-pool", f'bundle {bundle} reported for pool "{pool_id}", which is not planned'
                )
            )
        elif not 0 <= bundle < pool.devices:
            refusals.append(
                _group_refusal(
                    "unknown-bundle",
                    f'bundle {bundle} reported in pool "{pool_id}", which is planned with'
                    f" {counted(pool.devices, 'bundle')} (0-{pool.devices - 1})",
                )
            )
        elif count > 1:
            refusals.append(
                _group_refusal(
                    "duplicate-bundle", f'bundle {bundle} of pool "{pool_id}" reported {count} times'
                )
            )
    for pool in plan.pools:
        missing = [bundle for bundle in range(pool.devices) if (pool.pool_id, bundle) not in reported]
        if not missing:
            continue
        lost = [
            f"{replica.role}'s {replica.engine} (bundle {bundle_runs(replica.bundles)})"
            for replica in plan.replicas
            if replica.pool_id == pool.pool_id and replica.bundles[-1] >= pool.devices - len(missing)
        ]
        hits = f"; outside it: {', '.join(lost)}" if lost else ""
        refusals.append(
            _group_refusal(
                "slice-outside-group",
                f'pool "{pool.pool_id}" is planned with {counted(pool.devices, "bundle")}, but its'
                f" placement group shows {pool.devices - len(missing)}, without bundle"
                f" {bundle_runs(missing)}{hits}",
            )
        )
    return refusals


def _refuse_wrong_device_count(plan: PlacementPlan, probes: Sequence[BundleProbe]) -> list[Refusal]:
    """A bundle holds exactly one device; only where Ray names none may it report none."""
    named = {pool.pool_id for pool in plan.pools if pool.resource == NAMED_DEVICES}
    refusals: list[Refusal] = []
    for probe in probes:
        expected = 1 if probe.pool_id in named or probe.device_ids else 0
        if len(probe.device_ids) != expected:
            ids = ", ".join(probe.device_ids) or "none"
            refusals.append(
                _group_refusal(
                    "bundle-device-count",
                    f'bundle {probe.bundle} of pool "{probe.pool_id}" on {_node(probe)} must hold'
                    f" exactly one device, it reports: {ids}",
                )
            )
    return refusals


def _group_refusal(code: str, message: str) -> Refusal:
    return Refusal(
        code=code,
        key="placement",
        message=message,
        fix="give the job a placement group that was made for this plan: one bundle of one device for"
        " every planned bundle",
    )


# --- the devices ------------------------------------------------------------------------


def _number_unnamed_devices(plan: PlacementPlan, probes: Sequence[BundleProbe]) -> list[BundleProbe]:
    pool_order = {pool.pool_id: index for index, pool in enumerate(plan.pools)}
    next_number: Counter[str] = Counter()
    numbered: list[BundleProbe] = []
    for probe in sorted(probes, key=lambda probe: (pool_order[probe.pool_id], probe.bundle)):
        if probe.device_ids:
            numbered.append(probe)
            continue
        numbered.append(evolve(probe, device_ids=(str(next_number[probe.node_id]),)))
        next_number[probe.node_id] += 1
    return numbered


def _refuse_device_twice(probes: Sequence[BundleProbe]) -> list[Refusal]:
    """No two bundles of the job, of whatever pools, are on one device."""
    holders: dict[tuple[str, str], list[BundleProbe]] = {}
    for probe in probes:
        holders.setdefault((probe.node_id, probe.device_ids[0]), []).append(probe)
    return [
        Refusal(
            code="device-twice",
            key="placement.resource",
            message=f"device {device} of {_node(sharing[0])} is in several bundles: "
            + ", ".join(f'{probe.bundle} of pool "{probe.pool_id}"' for probe in sharing),
            fix="let the node offer each device once: check its CUDA_VISIBLE_DEVICES and the count it was"
            " started with",
        )
        for (_, device), sharing in holders.items()
        if len(sharing) > 1
    ]


def _node_by_node(probes: Sequence[BundleProbe]) -> list[BundleProbe]:
    """Order a pool's devices as the plan counts them; see the module's contract."""
    on_node = Counter(probe.node_id for probe in probes)
    return sorted(
        probes,
        key=lambda probe: (
            -on_node[probe.node_id],
            _natural(probe.node_ip),
            probe.node_id,
            _natural(probe.device_ids[0]),
        ),
    )


def _on_planned_nodes(nodes: Nodes, ordered: Sequence[BundleProbe]) -> dict[int, BundleProbe]:
    """Give the planned bundles, larger nodes first, the devices in their order."""
    planned: list[range] = []
    start = 0
    for size in nodes.sizes():
        planned.append(range(start, start + size))
        start += size
    planned.sort(key=len, reverse=True)
    return dict(zip((bundle for node in planned for bundle in node), ordered, strict=True))


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    """Sort key that puts 10 after 9, also inside addresses."""
    return tuple(
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text) if part
    )


# --- the replicas -----------------------------------------------------------------------


@frozen(kw_only=True)
class _Part:
    """What the plan puts on one node: what was found for each of its bundles."""

    found: tuple[BundleProbe, ...]
    reservation: float

    @property
    def node_ids(self) -> list[str]:
        return list(dict.fromkeys(probe.node_id for probe in self.found))

    @property
    def where(self) -> str:
        nodes: dict[str, list[BundleProbe]] = {}
        for probe in self.found:
            nodes.setdefault(probe.node_id, []).append(probe)
        return " and ".join(
            f"{_node(on_node[0])} (device {', '.join(probe.device_ids[0] for probe in on_node)})"
            for on_node in nodes.values()
        )


def _parts(
    placement: ReplicaPlacement,
    nodes: Nodes,
    layout: Mapping[int, BundleProbe],
    occupancy: Occupancy,
) -> list[_Part]:
    planned: dict[int, list[int]] = {}
    for bundle in placement.bundles:
        planned.setdefault(nodes.node_of(bundle)[0], []).append(bundle)
    return [
        _Part(
            found=tuple(layout[bundle] for bundle in bundles),
            reservation=occupancy.share(placement.pool_id, bundles[0]),
        )
        for bundles in planned.values()
    ]


def _refuse_split_worker(placement: ReplicaPlacement, parts: Sequence[_Part]) -> list[Refusal]:
    """One worker's devices lie on one node."""
    return [
        Refusal(
            code="worker-split",
            key=_replica_key(placement),
            message=f"a worker of {placement.engine} was planned on one node, but its"
            f" {len(part.found)} devices are on {part.where}",
            fix="set placement.devices_per_node to what the nodes really have free, or free whole nodes",
        )
        for part in parts
        if len(part.node_ids) > 1
    ]


def _refuse_scattered_devices(placement: ReplicaPlacement, parts: Sequence[_Part]) -> list[Refusal]:
    """One worker's device ids follow one another. Ids that are no numbers have no order."""
    refusals: list[Refusal] = []
    for part in parts:
        ids = [probe.device_ids[0] for probe in part.found]
        if len(part.node_ids) > 1 or not all(device.isdecimal() for device in ids):
            continue
        first = int(ids[0])
        if [int(device) for device in ids] != list(range(first, first + len(ids))):
            refusals.append(
                Refusal(
                    code="devices-not-consecutive",
                    key=_replica_key(placement),
                    message=f"a worker of {placement.engine} got {part.where}; its device ids must follow"
                    " one another",
                    fix="free the devices in between, or use engines of fewer devices",
                )
            )
    return refusals


def _refuse_node_twice(placement: ReplicaPlacement, parts: Sequence[_Part]) -> list[Refusal]:
    """The workers of a replica are on different nodes."""
    nodes = Counter(part.node_ids[0] for part in parts if len(part.node_ids) == 1)
    names = {part.node_ids[0]: _node(part.found[0]) for part in parts}
    return [
        Refusal(
            code="node-twice",
            key=_replica_key(placement),
            message=f"{placement.engine} was planned over {len(parts)} nodes, but {count} of its workers"
            f" are on {names[node_id]}",
            fix="set placement.devices_per_node to what one node really has",
        )
        for node_id, count in nodes.items()
        if count > 1
    ]


def _bound(placement: ReplicaPlacement, parts: Sequence[_Part]) -> BoundReplica:
    return BoundReplica(
        placement=placement,
        workers=tuple(
            BoundWorker(
                node_id=part.found[0].node_id,
                node_ip=part.found[0].node_ip,
                bundles=tuple(probe.bundle for probe in part.found),
                device_ids=tuple(probe.device_ids[0] for probe in part.found),
                reservation=part.reservation,
            )
            for part in parts
        ),
    )


def _node(probe: BundleProbe) -> str:
    """Name a node for people; several Ray nodes can have one address."""
    return f"node {probe.node_ip}/{probe.node_id[:8]}"


def _replica_key(placement: ReplicaPlacement) -> str:
    return f"roles.{placement.role}.models.{placement.model}"
