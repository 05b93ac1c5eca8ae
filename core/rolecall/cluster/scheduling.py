"""Ray options that put an actor or task on one bundle with a share of its device."""

from __future__ import annotations

from typing import Any

from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


def in_bundle(group: PlacementGroup, bundle: int, resource: str, share: float) -> dict[str, Any]:
    """Return what to pass to ``.options(**...)``; ``share`` is the bound worker's reservation.

    Nothing but the device is reserved: bundles hold no CPU.
    """
    options: dict[str, Any] = {
        "num_cpus": 0,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            placement_group=group,
            placement_group_bundle_index=bundle,
            placement_group_capture_child_tasks=False,
        ),
    }
    match resource:
        case "GPU":
            options["num_gpus"] = share
        case "CPU":
            options["num_cpus"] = share
        case _:
            options["resources"] = {resource: share}
    return options
