"""Who occupies each bundle of a plan, looked up once instead of searched again and again.

``PlacementPlan``'s own look-ups walk all replicas; checks over every bundle of a large plan use
this index, which is linear in the plan's size. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from attrs import frozen

from rolecall.ids import RoleName
from rolecall.placement.plan import PlacementPlan, ReplicaPlacement


@frozen(kw_only=True)
class Occupancy:
    """Replicas by (pool, bundle), in the plan's order; free bundles have no entry.

    ``order`` is each role's place in the plan.
    """

    tenants: Mapping[tuple[str, int], tuple[ReplicaPlacement, ...]]
    order: Mapping[RoleName, int]

    @classmethod
    def of(cls, plan: PlacementPlan) -> Occupancy:
        tenants: dict[tuple[str, int], list[ReplicaPlacement]] = {}
        for replica in plan.replicas:
            for bundle in replica.bundles:
                tenants.setdefault((replica.pool_id, bundle), []).append(replica)
        roles = dict.fromkeys(replica.role for replica in plan.replicas)
        return cls(
            tenants={place: tuple(replicas) for place, replicas in tenants.items()},
            order={role: index for index, role in enumerate(roles)},
        )

    def shared_by(self) -> dict[tuple[RoleName, RoleName], list[tuple[str, int]]]:
        """Pairs of roles with the bundles they share, in the plan's order.

        A role stands with itself when two of its own replicas lie on one bundle.
        """
        same_roles: dict[tuple[RoleName, ...], list[tuple[str, int]]] = {}
        for place, replicas in self.tenants.items():
            if len(replicas) > 1:
                roles = sorted((replica.role for replica in replicas), key=self.order.__getitem__)
                same_roles.setdefault(tuple(roles), []).append(place)
        shared: dict[tuple[RoleName, RoleName], list[tuple[str, int]]] = {}
        for roles, places in same_roles.items():
            for pair in dict.fromkeys(combinations(roles, 2)):
                shared.setdefault(pair, []).extend(places)
        return shared

    def sharing_roles(self) -> dict[RoleName, set[RoleName]]:
        """Roles that share a bundle with another role, each with those others."""
        sharing: dict[RoleName, set[RoleName]] = {}
        for one, other in self.shared_by():
            if one != other:
                sharing.setdefault(one, set()).add(other)
                sharing.setdefault(other, set()).add(one)
        return sharing
