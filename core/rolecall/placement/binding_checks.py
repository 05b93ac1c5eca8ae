"""Refusals about real bundles: reports that do not fit the plan, devices where no engine may lie.

Pure; one small function a rule, which yields a refusal of that rule's class for every breach. ``binding``
calls them; nothing is started where one of them found something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from attrs import field, frozen

from rolecall.config.source import key_text
from rolecall.errors import Refusal
from rolecall.placement.bound import NAMED_DEVICES, BundleProbe
from rolecall.placement.plan import PlacementPlan, Pool, ReplicaPlacement, Tenant
from rolecall.placement.wording import bundle_runs, counted

GROUP_KEY = "placement"
NODES_FIX = (
    "set placement.devices_per_node, or placement.nodes, to what the nodes really have free, or free whole"
    " nodes"
)

_GROUP_FIX = (
    "give the job a placement group that was made for this plan: one bundle of one device for every planned"
    " bundle"
)

# --- the reports ------------------------------------------------------------------------


@frozen(kw_only=True)
class UnknownPool(Refusal):
    """A report for a pool that is not planned."""

    code: str = field(default="unknown-pool", init=False)
    pool_id: str


def refuse_unknown_pools(plan: PlacementPlan, probes: Sequence[BundleProbe]) -> Iterator[UnknownPool]:
    """Every report is for a pool of the plan."""
    known = {pool.pool_id for pool in plan.pools}
    for pool_id, bundle in Counter((probe.pool_id, probe.bundle) for probe in probes):
        if pool_id not in known:
            yield UnknownPool(
                key=GROUP_KEY,
                message=f'bundle {bundle} reported for pool "{pool_id}", which is not planned',
                fix=_GROUP_FIX,
                pool_id=pool_id,
            )


@frozen(kw_only=True)
class UnknownBundle(Refusal):
    """A bundle index that the pool does not have."""

    code: str = field(default="unknown-bundle", init=False)
    pool_id: str
    bundle: int
    bundles: int


def refuse_unknown_bundles(plan: PlacementPlan, probes: Sequence[BundleProbe]) -> Iterator[UnknownBundle]:
    """Every index is one of its pool's."""
    sizes = {pool.pool_id: pool.devices for pool in plan.pools}
    for pool_id, bundle in Counter((probe.pool_id, probe.bundle) for probe in probes):
        size = sizes.get(pool_id)
        if size is not None and not 0 <= bundle < size:
            yield UnknownBundle(
                key=GROUP_KEY,
                message=f'bundle {bundle} reported in pool "{pool_id}", which is planned with'
                f" {counted(size, 'bundle')} (0-{size - 1})",
                fix=_GROUP_FIX,
                pool_id=pool_id,
                bundle=bundle,
                bundles=size,
            )


@frozen(kw_only=True)
class DuplicateBundle(Refusal):
    """A bundle reported twice."""

    code: str = field(default="duplicate-bundle", init=False)
    pool_id: str
    bundle: int
    reports: int


def refuse_duplicate_bundles(plan: PlacementPlan, probes: Sequence[BundleProbe]) -> Iterator[DuplicateBundle]:
    """Every bundle of a planned pool reports once."""
    sizes = {pool.pool_id: pool.devices for pool in plan.pools}
    for (pool_id, bundle), count in Counter((probe.pool_id, probe.bundle) for probe in probes).items():
        if count > 1 and 0 <= bundle < sizes.get(pool_id, 0):
            yield DuplicateBundle(
                key=GROUP_KEY,
                message=f'bundle {bundle} of pool "{pool_id}" reported {count} times',
                fix=_GROUP_FIX,
                pool_id=pool_id,
                bundle=bundle,
                reports=count,
            )


@frozen(kw_only=True)
class SliceOutsideGroup(Refusal):
    """A placement group smaller than the plan; names the replicas and training roles outside."""

    code: str = field(default="slice-outside-group", init=False)
    pool_id: str
    bundles: int
    found: int


def refuse_missing_bundles(plan: PlacementPlan, probes: Sequence[BundleProbe]) -> Iterator[SliceOutsideGroup]:
    """Every bundle of every pool reports."""
    reported = {(probe.pool_id, probe.bundle) for probe in probes}
    for pool in plan.pools:
        missing = [bundle for bundle in range(pool.devices) if (pool.pool_id, bundle) not in reported]
        if not missing:
            continue
        found = pool.devices - len(missing)
        lost = ", ".join(
            f"{_who(tenant)} (bundle {bundle_runs(tenant.bundles)})" for tenant in _from(plan, pool, found)
        )
        yield SliceOutsideGroup(
            key=GROUP_KEY,
            message=f'pool "{pool.pool_id}" is planned with {counted(pool.devices, "bundle")}, but its'
            f" placement group shows {found}, without bundle {bundle_runs(missing)}"
            + (f"; outside it: {lost}" if lost else ""),
            fix=_GROUP_FIX,
            pool_id=pool.pool_id,
            bundles=pool.devices,
            found=found,
        )


def _from(plan: PlacementPlan, pool: Pool, first: int) -> Iterator[Tenant]:
    """Tenants of a pool that reach beyond its first bundles."""
    return (
        tenant for tenant in plan.everybody if tenant.pool_id == pool.pool_id and tenant.bundles[-1] >= first
    )


def _who(tenant: Tenant) -> str:
    if isinstance(tenant, ReplicaPlacement):
        return f"{tenant.role}'s {tenant.engine}"
    return f"training role {tenant.role}"


@frozen(kw_only=True)
class BundleDeviceCount(Refusal):
    """A bundle that does not hold exactly one device."""

    code: str = field(default="bundle-device-count", init=False)
    pool_id: str
    bundle: int
    device_ids: tuple[str, ...]


def refuse_wrong_device_count(
    plan: PlacementPlan, probes: Sequence[BundleProbe]
) -> Iterator[BundleDeviceCount]:
    """A bundle holds exactly one device; only where Ray names none may it report none."""
    named = {pool.pool_id for pool in plan.pools if pool.resource == NAMED_DEVICES}
    for probe in probes:
        expected = 1 if probe.pool_id in named or probe.device_ids else 0
        if len(probe.device_ids) != expected:
            yield BundleDeviceCount(
                key=GROUP_KEY,
                message=f'bundle {probe.bundle} of pool "{probe.pool_id}" on {node_name(probe)} must hold'
                f" exactly one device, it reports: {', '.join(probe.device_ids) or 'none'}",
                fix=_GROUP_FIX,
                pool_id=probe.pool_id,
                bundle=probe.bundle,
                device_ids=probe.device_ids,
            )


@frozen(kw_only=True)
class BorrowedBundleSize(Refusal):
    """A borrowed placement group whose bundles do not have one device each."""

    code: str = field(default="borrowed-bundle-size", init=False)
    pool_id: str
    bundles: tuple[int, ...]
    sizes: tuple[float, ...]


def refuse_borrowed_sizes(pool: Pool, sizes: Sequence[float]) -> Iterator[BorrowedBundleSize]:
    """A lent group has one device in each bundle; ``sizes`` are what its bundles have."""
    wrong = tuple(index for index, size in enumerate(sizes) if size != 1.0)
    if wrong:
        yield BorrowedBundleSize(
            key="placement.resource",
            message=f'the placement group lent for pool "{pool.pool_id}" must have one {pool.resource}'
            f" in each bundle; bundle {bundle_runs(wrong)} has"
            f" {', '.join(f'{sizes[index]:g}' for index in wrong)}",
            fix=f'lend a group of bundles {{"{pool.resource}": 1}}',
            pool_id=pool.pool_id,
            bundles=wrong,
            sizes=tuple(sizes[index] for index in wrong),
        )


# --- the devices ------------------------------------------------------------------------


@frozen(kw_only=True)
class DeviceTwice(Refusal):
    """Two bundles, also of two pools or two Ray nodes of one machine, on one device."""

    code: str = field(default="device-twice", init=False)
    device_id: str
    bundles: tuple[tuple[str, int], ...]


def refuse_device_twice(probes: Sequence[BundleProbe], *, named: bool) -> Iterator[DeviceTwice]:
    """No two bundles of the job, of whatever pools, are on one device.

    ``named`` says that the ids are physical. A number is then one of its machine, whatever Ray node it was
    found on; any other name (a UUID) is unique everywhere.
    """
    holders: dict[tuple[str, str], list[BundleProbe]] = {}
    for probe in probes:
        device = probe.device_ids[0]
        place = probe.node_id if not named else probe.node_ip if device.isdecimal() else ""
        holders.setdefault((place, device), []).append(probe)
    for (_, device), sharing in holders.items():
        if len(sharing) < 2:
            continue
        nodes = " and ".join(dict.fromkeys(node_name(probe) for probe in sharing))
        yield DeviceTwice(
            key="placement.resource",
            message=f"device {device} of {nodes} is in several bundles: "
            + ", ".join(f'{probe.bundle} of pool "{probe.pool_id}"' for probe in sharing),
            fix="let each device be offered once: check the count and the CUDA_VISIBLE_DEVICES that Ray was"
            " started with on that machine; several Ray nodes of one machine need devices of their own",
            device_id=device,
            bundles=tuple((probe.pool_id, probe.bundle) for probe in sharing),
        )


# --- the replicas -----------------------------------------------------------------------


@frozen(kw_only=True)
class Part:
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
            f"{node_name(on_node[0])} (device {', '.join(probe.device_ids[0] for probe in on_node)})"
            for on_node in nodes.values()
        )


@frozen(kw_only=True)
class WorkerSplit(Refusal):
    """A worker whose devices lie on two nodes."""

    code: str = field(default="worker-split", init=False)
    devices: int
    nodes: int


def refuse_split_worker(placement: ReplicaPlacement, parts: Sequence[Part]) -> Iterator[WorkerSplit]:
    """One worker's devices lie on one node."""
    for part in parts:
        if len(part.node_ids) > 1:
            yield WorkerSplit(
                key=_replica_key(placement),
                message=f"a worker of {placement.engine} was planned on one node, but its"
                f" {len(part.found)} devices are on {part.where}",
                fix=NODES_FIX,
                devices=len(part.found),
                nodes=len(part.node_ids),
            )


@frozen(kw_only=True)
class DevicesNotConsecutive(Refusal):
    """A worker whose device ids do not follow one another; ids that are no whole numbers (UUIDs) have no
    order and are not judged."""

    code: str = field(default="devices-not-consecutive", init=False)
    device_ids: tuple[str, ...]


def refuse_scattered_devices(
    placement: ReplicaPlacement, parts: Sequence[Part]
) -> Iterator[DevicesNotConsecutive]:
    """One worker's device ids follow one another. Ids that are no numbers have no order."""
    for part in parts:
        ids = tuple(probe.device_ids[0] for probe in part.found)
        if len(part.node_ids) > 1 or not all(device.isdecimal() for device in ids):
            continue
        first = int(ids[0])
        if [int(device) for device in ids] != list(range(first, first + len(ids))):
            yield DevicesNotConsecutive(
                key=_replica_key(placement),
                message=f"a worker of {placement.engine} got {part.where}; its device ids must follow"
                " one another",
                fix="free the devices in between, or use engines of fewer devices",
                device_ids=ids,
            )


@frozen(kw_only=True)
class NodeTwice(Refusal):
    """An engine across nodes with two of its workers on one node."""

    code: str = field(default="node-twice", init=False)
    planned_nodes: int
    workers: int


def refuse_node_twice(placement: ReplicaPlacement, parts: Sequence[Part]) -> Iterator[NodeTwice]:
    """The workers of a replica are on different nodes."""
    nodes = Counter(part.node_ids[0] for part in parts if len(part.node_ids) == 1)
    names = {part.node_ids[0]: node_name(part.found[0]) for part in parts}
    for node_id, count in nodes.items():
        if count > 1:
            yield NodeTwice(
                key=_replica_key(placement),
                message=f"{placement.engine} was planned over {len(parts)} nodes, but {count} of its workers"
                f" are on {names[node_id]}",
                fix=NODES_FIX,
                planned_nodes=len(parts),
                workers=count,
            )


def node_name(probe: BundleProbe) -> str:
    """Name a node for people; several Ray nodes can have one address."""
    return f"node {probe.node_ip}/{probe.node_id[:8]}"


def _replica_key(placement: ReplicaPlacement) -> str:
    return key_text(("roles", placement.role, "models", placement.model))
