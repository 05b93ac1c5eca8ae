"""Who occupies each bundle of a plan, looked up once instead of searched again and again.

``PlacementPlan``'s own look-ups walk all replicas; checks over every bundle of a large plan use
this index, which is linear in the plan's size. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import combinations, groupby, islice

from attrs import frozen

from rolecall.ids import RoleName
from rolecall.placement.plan import PlacementPlan, Tenant, TrainingPlacement, actors, reservation_share


@frozen(kw_only=True)
class Occupancy:
    """Tenants by (pool, bundle), replicas first, in the plan's order; free bundles have no entry.

    ``order`` is each role's place in the plan.
    """

    tenants: Mapping[tuple[str, int], tuple[Tenant, ...]]
    order: Mapping[RoleName, int]

    @classmethod
    def of(cls, plan: PlacementPlan) -> Occupancy:
        tenants: dict[tuple[str, int], list[Tenant]] = {}
        everybody: tuple[Tenant, ...] = (*plan.replicas, *plan.training)
        for tenant in everybody:
            for bundle in tenant.bundles:
                tenants.setdefault((tenant.pool_id, bundle), []).append(tenant)
        roles = dict.fromkeys(tenant.role for tenant in everybody)
        return cls(
            tenants={place: tuple(sharing) for place, sharing in tenants.items()},
            order={role: index for index, role in enumerate(roles)},
        )

    def share(self, pool_id: str, bundle: int) -> float:
        """Device share that each actor on a bundle reserves."""
        return reservation_share(actors(self.tenants[pool_id, bundle]))

    def shared_by(self) -> Mapping[tuple[RoleName, RoleName], list[tuple[str, int]]]:
        """Pairs of roles with the bundles they share, in the plan's order.

        A role stands with itself when two of its own replicas lie on one bundle. Training roles in one
        process are no pair.
        """
        return self._shared

    @cached_property
    def _shared(self) -> dict[tuple[RoleName, RoleName], list[tuple[str, int]]]:
        same_roles: dict[tuple[RoleName, ...], list[tuple[str, int]]] = {}
        process: dict[RoleName, RoleName] = {}
        for place, sharing in self.tenants.items():
            if len(sharing) > 1:
                roles = sorted((tenant.role for tenant in sharing), key=self.order.__getitem__)
                if len(roles) > 2:
                    # Of a role's own replicas two say as much as ten thousand.
                    roles = [role for role, same in groupby(roles) for _ in islice(same, 2)]
                same_roles.setdefault(tuple(roles), []).append(place)
                process.update((t.role, t.process) for t in sharing if isinstance(t, TrainingPlacement))
        shared: dict[tuple[RoleName, RoleName], list[tuple[str, int]]] = {}
        for roles, places in same_roles.items():
            for one, other in dict.fromkeys(combinations(roles, 2)):
                if one == other or process.get(one, one) != process.get(other, other):
                    shared.setdefault((one, other), []).extend(places)
        return shared

    def sharing_roles(self) -> dict[RoleName, set[RoleName]]:
        """Roles that share a bundle with another role, each with those others."""
        sharing: dict[RoleName, set[RoleName]] = {}
        for one, other in self.shared_by():
            if one != other:
                sharing.setdefault(one, set()).add(other)
                sharing.setdefault(other, set()).add(one)
        return sharing
