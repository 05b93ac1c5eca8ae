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

from attrs import evolve

from rolecall.errors import PlacementRefused, Refusal
from rolecall.placement import binding_checks as checks
from rolecall.placement.binding_checks import Part
from rolecall.placement.bound import (
    BoundDevice,
    BoundPlan,
    BoundReplica,
    BoundTraining,
    BoundWorker,
    BundleProbe,
)
from rolecall.placement.nodes import Nodes
from rolecall.placement.occupancy import Occupancy
from rolecall.placement.plan import PlacementPlan, ReplicaPlacement, TrainingPlacement

Layout = Mapping[int, BundleProbe]
"""What was found for each planned bundle of a pool."""


def bind(plan: PlacementPlan, probes: Iterable[BundleProbe]) -> BoundPlan:
    """Bind every replica and training role of ``plan`` to probed bundles, which may come in any order.

    Raises:
        PlacementRefused: the bundles are not what the plan needs; carries every reason.
    """
    found = list(probes)
    refusals: list[Refusal] = [
        *checks.refuse_unknown_pools(plan, found),
        *checks.refuse_unknown_bundles(plan, found),
        *checks.refuse_duplicate_bundles(plan, found),
        *checks.refuse_missing_bundles(plan, found),
        *checks.refuse_wrong_device_count(plan, found),
    ]
    if refusals:
        # Which device is which can't be said from wrong reports.
        raise PlacementRefused(refusals)
    named, unnamed = _number_unnamed_devices(plan, found)
    refusals += [
        *checks.refuse_device_twice(named, named=True),
        *checks.refuse_device_twice(unnamed, named=False),
    ]
    layout = _layout(plan, [*named, *unnamed])
    occupancy = Occupancy.of(plan)
    nodes = {pool.pool_id: pool.nodes for pool in plan.pools}
    replicas: list[BoundReplica] = []
    for placement in plan.replicas:
        parts = _parts(placement, nodes[placement.pool_id], layout[placement.pool_id], occupancy)
        problems = [
            *checks.refuse_split_worker(placement, parts),
            *checks.refuse_scattered_devices(placement, parts),
            *checks.refuse_node_twice(placement, parts),
        ]
        refusals += problems
        if not problems:
            replicas.append(_bound(placement, parts))
    if refusals:
        raise PlacementRefused(refusals)
    training = (
        _bound_training(placement, layout[placement.pool_id], occupancy) for placement in plan.training
    )
    spare = (
        probe
        for pool_id, devices in layout.items()
        for bundle, probe in devices.items()
        if (pool_id, bundle) not in occupancy.tenants
    )
    return BoundPlan(plan=plan, replicas=tuple(replicas), training=tuple(training), spare=tuple(spare))


# --- the devices ------------------------------------------------------------------------


def _number_unnamed_devices(
    plan: PlacementPlan, probes: Sequence[BundleProbe]
) -> tuple[list[BundleProbe], list[BundleProbe]]:
    """Return the probes of named devices, and the others with the numbers their devices get."""
    pool_order = {pool.pool_id: index for index, pool in enumerate(plan.pools)}
    next_number: Counter[str] = Counter()
    named: list[BundleProbe] = []
    numbered: list[BundleProbe] = []
    for probe in sorted(probes, key=lambda probe: (pool_order[probe.pool_id], probe.bundle)):
        if probe.device_ids:
            named.append(probe)
            continue
        numbered.append(evolve(probe, device_ids=(str(next_number[probe.node_id]),)))
        next_number[probe.node_id] += 1
    return named, numbered


def _layout(plan: PlacementPlan, probes: Sequence[BundleProbe]) -> dict[str, Layout]:
    """Say of each pool which bundle was found for each planned one."""
    of_pool: dict[str, list[BundleProbe]] = {pool.pool_id: [] for pool in plan.pools}
    for probe in probes:
        of_pool[probe.pool_id].append(probe)
    return {
        pool.pool_id: _on_planned_nodes(pool.nodes, _node_by_node(of_pool[pool.pool_id]))
        for pool in plan.pools
    }


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
    planned = sorted(nodes.divide(range(nodes.devices or 0)).values(), key=len, reverse=True)
    return dict(zip((bundle for node in planned for bundle in node), ordered, strict=True))


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    """Sort key that puts 10 after 9, also inside addresses."""
    return tuple(
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text) if part
    )


# --- the tenants ------------------------------------------------------------------------


def _parts(
    placement: ReplicaPlacement,
    nodes: Nodes,
    layout: Layout,
    occupancy: Occupancy,
) -> list[Part]:
    planned: dict[int, list[int]] = {}
    for bundle in placement.bundles:
        planned.setdefault(nodes.node_of(bundle)[0], []).append(bundle)
    return [
        Part(
            found=tuple(layout[bundle] for bundle in bundles),
            reservation=occupancy.share(placement.pool_id, bundles[0]),
        )
        for bundles in planned.values()
    ]


def _bound(placement: ReplicaPlacement, parts: Sequence[Part]) -> BoundReplica:
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


def _bound_training(placement: TrainingPlacement, layout: Layout, occupancy: Occupancy) -> BoundTraining:
    return BoundTraining(
        placement=placement,
        devices=tuple(
            BoundDevice(
                node_id=layout[bundle].node_id,
                node_ip=layout[bundle].node_ip,
                bundle=layout[bundle].bundle,
                device_id=layout[bundle].device_ids[0],
                reservation=occupancy.share(placement.pool_id, bundle),
            )
            for bundle in placement.bundles
        ),
    )
