"""A plan as JSON, for scripts. ``plan.schema.json`` beside this file is its schema. Pure.

Stable: fields are only added within one ``schema_version``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rolecall.placement.occupancy import Occupancy
from rolecall.placement.plan import PlacementPlan, Pool

if TYPE_CHECKING:
    from rolecall.placement.plan_diff import PlanDiff, Seat

PLAN_SCHEMA_VERSION = 2
"""Raised when a field changes its meaning or goes away."""


def plan_to_json(plan: PlacementPlan, diff: PlanDiff | None = None) -> dict[str, Any]:
    """Return the plan as JSON values, with what it changes against another plan if that is given.

    ``reservation`` is the share of its first bundle's device that each of a replica's actors reserves;
    ``conflicts`` names, for each role, those that must sleep while it is awake.
    """
    tenants = Occupancy.of(plan)
    sharing = tenants.sharing_roles()
    document: dict[str, Any] = {
        "schema_version": PLAN_SCHEMA_VERSION,
        "mode": plan.mode,
        "pools": [_pool_to_json(pool) for pool in plan.pools],
        "phases": _phases_to_json(plan),
        "replicas": [
            {
                "role": replica.role,
                "model": replica.model,
                "engine": replica.engine,
                "pool_id": replica.pool_id,
                "bundles": list(replica.bundles),
                "reservation": tenants.share(replica.pool_id, replica.bundles[0]),
            }
            for replica in plan.replicas
        ],
        "training": [
            {
                "role": placement.role,
                "process": placement.process,
                "pool_id": placement.pool_id,
                "bundles": list(placement.bundles),
                "reservation": tenants.share(placement.pool_id, placement.bundles[0]),
            }
            for placement in plan.training
        ],
        "conflicts": {role: sorted(sharing.get(role, ())) for role in tenants.order},
    }
    if diff:
        document["diff"] = _diff_to_json(diff)
    return document


def _diff_to_json(diff: PlanDiff) -> dict[str, Any]:
    return {
        "mode": {"before": diff.before.mode, "after": diff.after.mode},
        "phases": {"before": _phases_to_json(diff.before), "after": _phases_to_json(diff.after)},
        "pools": [
            {
                "pool_id": pool.pool_id,
                "before": pool.before and _pool_to_json(pool.before),
                "after": pool.after and _pool_to_json(pool.after),
            }
            for pool in diff.pools
        ],
        "roles": [
            {
                "role": role.role,
                "unchanged": role.unchanged,
                "changes": [
                    {
                        "change": tenant.change.value,
                        "model": tenant.model,
                        "engine": tenant.engine,
                        "before": tenant.before and _seat_to_json(tenant.before),
                        "after": tenant.after and _seat_to_json(tenant.after),
                    }
                    for tenant in role.changes
                ],
                "conflicts": {"before": list(role.conflicts_before), "after": list(role.conflicts_after)},
            }
            for role in diff.roles
        ],
    }


def _seat_to_json(seat: Seat) -> dict[str, Any]:
    return {"pool_id": seat.pool_id, "bundles": list(seat.bundles)}


def _pool_to_json(pool: Pool) -> dict[str, Any]:
    return {
        "pool_id": pool.pool_id,
        "resource": pool.resource,
        "devices": pool.devices,
        "nodes": [{"count": run.count, "devices": run.devices} for run in pool.nodes.runs],
    }


def _phases_to_json(plan: PlacementPlan) -> list[dict[str, Any]]:
    return [{"name": phase.name, "roles": list(phase.roles)} for phase in plan.phases]
