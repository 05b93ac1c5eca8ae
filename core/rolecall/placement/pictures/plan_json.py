"""A plan as JSON, for scripts. ``plan.schema.json`` beside this file is its schema. Pure.

Stable: fields are only added within one ``schema_version``.
"""

from __future__ import annotations

from typing import Any

from rolecall.placement.nodes import Nodes
from rolecall.placement.occupancy import Occupancy
from rolecall.placement.plan import PlacementPlan, Pool

PLAN_SCHEMA_VERSION = 2
"""Raised when a field changes its meaning or goes away."""


def plan_to_json(plan: PlacementPlan) -> dict[str, Any]:
    """Return the plan as JSON values.

    ``reservation`` is the share of its first bundle's device that each of a replica's actors reserves;
    ``conflicts`` names, for each role, those that must sleep while it is awake.
    """
    tenants = Occupancy.of(plan)
    sharing = tenants.sharing_roles()
    return {
        "schema_version": PLAN_SCHEMA_VERSION,
        "mode": plan.mode,
        "pools": [pool_to_json(pool) for pool in plan.pools],
        "phases": phases_to_json(plan),
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


def pool_to_json(pool: Pool) -> dict[str, Any]:
    """Return one pool as JSON values."""
    return {
        "pool_id": pool.pool_id,
        "resource": pool.resource,
        "devices": pool.devices,
        "nodes": _nodes_to_json(pool.nodes),
    }


def _nodes_to_json(nodes: Nodes) -> list[dict[str, Any]]:
    return [{"count": run.count, "devices": run.devices} for run in nodes.runs]


def phases_to_json(plan: PlacementPlan) -> list[dict[str, Any]]:
    """Return the phases as JSON values."""
    return [{"name": phase.name, "roles": list(phase.roles)} for phase in plan.phases]
