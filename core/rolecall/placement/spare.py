"""Devices for a replica that comes while the job runs: found among those that the plan left over.

Pure. The rules are those of the plan: a replica lies on one node, on devices that follow one another, or on
whole nodes. ``rolecall.cluster.spare_devices`` owns what is found here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from rolecall.errors import ScaleRefused
from rolecall.ids import EngineId, ModelId, RoleName
from rolecall.placement.bound import BoundReplica, BoundWorker, BundleProbe
from rolecall.placement.nodes import Nodes
from rolecall.placement.plan import REFERENCE_RESERVATION, ReplicaPlacement
from rolecall.placement.wording import counted


@frozen(kw_only=True)
class SpareAsk:
    """What one replica needs. ``nodes`` are the parts of nodes that it would lie on."""

    role: RoleName
    model: ModelId
    engine: EngineId
    nodes: Nodes

    @property
    def devices(self) -> int:
        return self.nodes.devices or 0


def refuse_no_spare(ask: SpareAsk, *, resource: str, in_pools: int, elsewhere: str) -> ScaleRefused:
    """Return the refusal of a replica for which neither the pools nor the cluster have devices."""
    return ScaleRefused(
        f"{ask.role} {ask.engine} needs {counted(ask.devices, 'device')} ({resource}) side by side that"
        f" nobody uses; the job's pools have {in_pools} left over, and {elsewhere}. Scale something in, free"
        " devices of the cluster, let placement.devices be more than the roles need, or add an engine that"
        " runs elsewhere by its URL"
    )


def find_spare(ask: SpareAsk, spare: Sequence[BundleProbe]) -> BoundReplica | None:
    """Return a replica bound to spare bundles, all of one pool; None if there is no place for it."""
    for pool_id in dict.fromkeys(probe.pool_id for probe in spare):
        parts = _parts(ask.nodes, [probe for probe in spare if probe.pool_id == pool_id])
        if parts is not None:
            placement = ReplicaPlacement(
                engine=ask.engine,
                role=ask.role,
                model=ask.model,
                pool_id=pool_id,
                bundles=tuple(sorted(probe.bundle for part in parts for probe in part)),
            )
            return BoundReplica(placement=placement, workers=tuple(map(_worker, parts)))
    return None


def _parts(nodes: Nodes, spare: Sequence[BundleProbe]) -> list[tuple[BundleProbe, ...]] | None:
    by_node: dict[str, list[BundleProbe]] = {}
    for probe in spare:
        by_node.setdefault(probe.node_id, []).append(probe)
    # The node with the least room that will do: what is left over stays as large as it can.
    waiting = sorted(by_node.values(), key=len)
    parts: list[tuple[BundleProbe, ...]] = []
    for size in nodes.sizes():
        for number, probes in enumerate(waiting):
            if (run := next(_runs(probes, size), None)) is not None:
                parts.append(run)
                del waiting[number]
                break
        else:
            return None
    return parts


def _runs(probes: Sequence[BundleProbe], size: int) -> Iterator[tuple[BundleProbe, ...]]:
    """Yield devices of one node that follow one another; ids that are no numbers have no order."""
    ids = [probe.device_ids[0] for probe in probes]
    if not all(device.isdecimal() for device in ids):
        if len(probes) >= size:
            yield tuple(probes[:size])
        return
    ordered = sorted(probes, key=lambda probe: int(probe.device_ids[0]))
    for start in range(len(ordered) - size + 1):
        run = ordered[start : start + size]
        if int(run[-1].device_ids[0]) - int(run[0].device_ids[0]) == size - 1:
            yield tuple(run)


def _worker(part: Sequence[BundleProbe]) -> BoundWorker:
    return BoundWorker(
        node_id=part[0].node_id,
        node_ip=part[0].node_ip,
        bundles=tuple(probe.bundle for probe in part),
        device_ids=tuple(probe.device_ids[0] for probe in part),
        reservation=REFERENCE_RESERVATION,
    )
