"""Who occupies each bundle of a plan, looked up once instead of searched again and again.

``PlacementPlan``'s own look-ups walk all replicas; checks over every bundle of a large plan use
this index, which is linear in the plan's size. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations, groupby, islice

from attrs import frozen

from rolecall.ids import RoleName
from rolecall.placement.plan import (
    PlacementPlan,
    ReplicaPlacement,
    Tenant,
    TrainingPlacement,
    actors,
    reservation_share,
)


@frozen(kw_only=True)
class Crowd:
    """Bundles whose tenants are of the same models and training roles, one by one; ``tenants`` are those of
    the first. A large plan has few of them."""

    tenants: tuple[Tenant, ...]
    places: list[tuple[str, int]]


@frozen(kw_only=True)
class Occupancy:
    """Tenants by (pool, bundle), replicas first, in the plan's order; free bundles have no entry.

    ``order`` is each role's place in the plan. ``crowds`` are the same bundles by what their tenants are.
    """

    tenants: Mapping[tuple[str, int], tuple[Tenant, ...]]
    order: Mapping[RoleName, int]
    crowds: tuple[Crowd, ...]

    @classmethod
    def of(cls, plan: PlacementPlan) -> Occupancy:
        everybody = plan.everybody
        numbers: dict[tuple[str, str], int] = {}
        pools: dict[str, dict[int, tuple[list[Tenant], list[int]]]] = {}
        for tenant in everybody:
            kind = (tenant.role, tenant.model if isinstance(tenant, ReplicaPlacement) else "")
            number = numbers.setdefault(kind, len(numbers))
            pool = pools.setdefault(tenant.pool_id, {})
            for bundle in tenant.bundles:
                here = pool.get(bundle)
                if here is None:
                    here = pool[bundle] = ([], [])
                here[0].append(tenant)
                here[1].append(number)
        tenants: dict[tuple[str, int], tuple[Tenant, ...]] = {}
        crowds: dict[tuple[int, ...], Crowd] = {}
        for pool_id, pool in pools.items():
            for bundle, (sharing, kinds) in pool.items():
                place = (pool_id, bundle)
                tenants[place] = tuple(sharing)
                crowd = crowds.get(key := tuple(kinds))
                if crowd is None:
                    crowd = crowds[key] = Crowd(tenants=tenants[place], places=[])
                crowd.places.append(place)
        roles = dict.fromkeys(tenant.role for tenant in everybody)
        return cls(
            tenants=tenants,
            order={role: index for index, role in enumerate(roles)},
            crowds=tuple(crowds.values()),
        )

    def share(self, pool_id: str, bundle: int) -> float:
        """Device share that each actor on a bundle reserves."""
        return reservation_share(actors(self.tenants[pool_id, bundle]))

    def shared_by(self) -> Mapping[tuple[RoleName, RoleName], Sequence[Crowd]]:
        """Pairs of roles with the bundles they share, in the plan's order.

        A role stands with itself when two of its own replicas lie on one bundle. Training roles in one
        process are no pair.
        """
        return self._shared

    @cached_property
    def _shared(self) -> dict[tuple[RoleName, RoleName], list[Crowd]]:
        shared: dict[tuple[RoleName, RoleName], list[Crowd]] = {}
        for crowd in self.crowds:
            process = {t.role: t.process for t in crowd.tenants if isinstance(t, TrainingPlacement)}
            roles = sorted((tenant.role for tenant in crowd.tenants), key=self.order.__getitem__)
            # Of a role's own replicas two say as much as ten thousand.
            roles = [role for role, same in groupby(roles) for _ in islice(same, 2)]
            for one, other in dict.fromkeys(combinations(roles, 2)):
                if one == other or process.get(one, one) != process.get(other, other):
                    shared.setdefault((one, other), []).append(crowd)
        return shared

    def sharing_roles(self) -> dict[RoleName, set[RoleName]]:
        """Roles that share a bundle with another role, each with those others."""
        sharing: dict[RoleName, set[RoleName]] = {}
        for one, other in self.shared_by():
            if one != other:
                sharing.setdefault(one, set()).add(other)
                sharing.setdefault(other, set()).add(one)
        return sharing
