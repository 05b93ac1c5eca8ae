"""Ray's placement groups behind :class:`~rolecall.placement.group_port.GroupPort`.

The only place that speaks Ray's placement-group API. Ray's errors become
:class:`~rolecall.errors.ClusterError` here, with their cause. Groups are not detached: Ray removes
them when the process that made them ends, however it ends.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any

import ray
from ray._private.state import available_resources_per_node  # Ray has no public name for it
from ray.exceptions import RayError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from rolecall.cluster.scheduling import in_bundle
from rolecall.errors import ClusterError
from rolecall.placement.bound import NAMED_DEVICES, BundleProbe
from rolecall.placement.group_port import NodeOffer, PoolGroup, ResourceOffer
from rolecall.placement.wording import bundle_runs

PROBE_SHARE = 0.0001
"""Ray's smallest share: a probe fits beside whatever tenants a borrowed bundle already has."""


NODE_LABEL = "ray.io/node-id"
"""Label that Ray itself puts on every node."""


class RayGroups:
    """Placement groups of the Ray cluster that this process is connected to."""

    def create(
        self, name: str, bundles: Sequence[Mapping[str, float]], nodes: Sequence[str] | None
    ) -> PlacementGroup:
        with _translated(f"placement group {name} could not be created"):
            pinned = None if nodes is None else [{NODE_LABEL: node} for node in nodes]
            return placement_group(
                [dict(bundle) for bundle in bundles],
                strategy="PACK",
                name=name,
                bundle_label_selector=pinned,  # pyright: ignore[reportArgumentType]  None is Ray's own default
            )

    def find(self, name: str) -> PlacementGroup | None:
        with _translated(f"placement group {name} could not be looked up"):
            try:
                return get_placement_group(name)
            except ValueError:  # how Ray says that there is none
                return None

    def wait_ready(self, group: PlacementGroup, timeout_s: float) -> bool:
        with _translated("a placement group could not be waited for"):
            # Whole seconds only: Ray cuts the rest off, and 0 would never see a group ready.
            return group.wait(ceil(timeout_s)) if timeout_s > 0 else self._state(group) == "CREATED"

    def bundles(self, group: PlacementGroup) -> tuple[Mapping[str, float], ...]:
        with _translated("a placement group's bundles could not be read"):
            return tuple(group.bundle_specs)

    def probe(self, groups: Sequence[PoolGroup], timeout_s: float) -> tuple[BundleProbe, ...]:
        with _translated("bundles could not be probed"):
            asked: dict[Any, tuple[PoolGroup, int]] = {}
            try:
                for group in groups:
                    for bundle in range(group.bundles):
                        options = in_bundle(group.handle, bundle, group.resource, PROBE_SHARE)
                        report = _look_around.options(**options).remote(group.resource)
                        asked[report] = (group, bundle)
                answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s)
                if silent:
                    raise ClusterError(_silent([asked[report] for report in silent], timeout_s))
                reports = dict(zip(answered, ray.get(answered), strict=True))
            except BaseException:
                for report in asked:
                    ray.cancel(report, force=True)
                raise
        return tuple(
            BundleProbe(
                pool_id=group.pool_id,
                bundle=bundle,
                node_id=reports[report][0],
                node_ip=reports[report][1],
                device_ids=reports[report][2],
            )
            for report, (group, bundle) in asked.items()
        )

    def remove(self, group: PlacementGroup) -> None:
        with _translated("a placement group's removal could not be asked for"):
            remove_placement_group(group)

    def is_removed(self, group: PlacementGroup) -> bool:
        with _translated("a placement group's state could not be read"):
            # A group that the table has never heard of, or has forgotten, has no state.
            return self._state(group) in ("REMOVED", None)

    def offer(self, resource: str) -> ResourceOffer:
        with _translated("the cluster's resources could not be read"):
            # What nodes report comes late; what groups have reserved is known at once.
            free = available_resources_per_node()
            reserved = _reserved(resource)
            nodes: list[NodeOffer] = []
            for node in ray.nodes():
                if not node["Alive"] or resource not in node["Resources"]:
                    continue
                node_id, total = node["NodeID"], float(node["Resources"][resource])
                nodes.append(
                    NodeOffer(
                        node_id=node_id,
                        name=f"node {node['NodeManagerAddress']}/{node_id[:8]}",
                        total=total,
                        free=min(float(free.get(node_id, {}).get(resource, 0.0)), total - reserved[node_id]),
                    )
                )
            return ResourceOffer(nodes=tuple(nodes))

    def _state(self, group: PlacementGroup) -> str | None:
        return placement_group_table(group).get("state")


class WallClock:
    """The machine's own monotonic time."""

    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@ray.remote(num_cpus=0, max_retries=0)
def _look_around(resource: str) -> tuple[str, str, tuple[str, ...]]:
    """Node id, node address and device ids, as Ray shows them inside one bundle."""
    devices = tuple(str(device) for device in ray.get_gpu_ids()) if resource == NAMED_DEVICES else ()
    return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), devices


def _reserved(resource: str) -> Mapping[str, float]:
    """What live placement groups have reserved of a resource, by node id."""
    reserved: defaultdict[str, float] = defaultdict(float)
    for group in placement_group_table().values():
        if group["state"] != "REMOVED":
            for bundle, node_id in group["bundles_to_node_id"].items():
                reserved[node_id] += group["bundles"][bundle].get(resource, 0)
    return reserved


def _silent(silent: Sequence[tuple[PoolGroup, int]], timeout_s: float) -> str:
    bundles: dict[str, list[int]] = {}
    for group, bundle in silent:
        bundles.setdefault(group.pool_id, []).append(bundle)
    where = " and ".join(f'bundle {bundle_runs(found)} of pool "{pool}"' for pool, found in bundles.items())
    return (
        f"no answer within {timeout_s:g} s from inside {where}: the node may be lost, or can't start Ray"
        " workers; `ray status` and the logs of that node's raylet say more"
    )


@contextmanager
def _translated(what: str) -> Generator[None]:
    """Turn Ray's errors into ours. A lost connection shows as the built-in kinds."""
    try:
        yield
    except (RayError, ConnectionError, RuntimeError, TimeoutError) as error:
        raise ClusterError(f"{what}: {error}") from error
