"""What differs between two plans: which engines moved, appeared, vanished or changed their size.

Pure values. An engine is the same one in both plans when its role and its id are; the trainer's processes
of one role are one thing. ``rolecall plan --diff`` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from attrs import frozen

from rolecall.ids import EngineId, ModelId, RoleName
from rolecall.placement.occupancy import Occupancy
from rolecall.placement.plan import PlacementPlan, Pool, ReplicaPlacement


class Change(Enum):
    """What became of an engine, or of a training role's processes."""

    MOVED = "moved"
    RESIZED = "resized"
    APPEARED = "appeared"
    VANISHED = "vanished"


@frozen(kw_only=True)
class Seat:
    """Some bundles of a pool."""

    pool_id: str
    bundles: tuple[int, ...]


@frozen(kw_only=True)
class TenantChange:
    """One engine (or, where ``engine`` and ``model`` are None, a training role's processes), which has
    another seat; None: it is not in that plan."""

    engine: EngineId | None
    model: ModelId | None
    before: Seat | None
    after: Seat | None

    @property
    def change(self) -> Change:
        if self.before is None:
            return Change.APPEARED
        if self.after is None:
            return Change.VANISHED
        same_size = len(self.before.bundles) == len(self.after.bundles)
        return Change.MOVED if same_size else Change.RESIZED


@frozen(kw_only=True)
class RoleDiff:
    """One role: what changed, how many of its tenants did not, and whom it conflicts with."""

    role: RoleName
    changes: tuple[TenantChange, ...]
    unchanged: int
    conflicts_before: tuple[RoleName, ...]
    conflicts_after: tuple[RoleName, ...]

    @property
    def there_before(self) -> bool:
        return self.unchanged > 0 or any(change.before for change in self.changes)

    @property
    def there_after(self) -> bool:
        return self.unchanged > 0 or any(change.after for change in self.changes)


@frozen(kw_only=True)
class PoolDiff:
    """A pool that is in one plan only, or another one in each."""

    pool_id: str
    before: Pool | None
    after: Pool | None


@frozen(kw_only=True)
class PlanDiff:
    """All roles of both plans, those of ``after`` first; of the pools only those that differ."""

    before: PlacementPlan
    after: PlacementPlan
    pools: tuple[PoolDiff, ...]
    roles: tuple[RoleDiff, ...]

    @property
    def empty(self) -> bool:
        """Whether both plans are the same layout."""
        return (
            self.before.mode == self.after.mode
            and self.before.phases == self.after.phases
            and not self.pools
            and not any(role.changes for role in self.roles)
        )


def diff_plans(before: PlacementPlan, after: PlacementPlan) -> PlanDiff:
    """Return what differs."""
    old, new = _seats(before), _seats(after)
    old_conflicts, new_conflicts = (Occupancy.of(plan).sharing_roles() for plan in (before, after))
    changes: dict[RoleName, list[TenantChange]] = {}
    unchanged: dict[RoleName, int] = {}
    for key in dict.fromkeys((*new, *old)):
        role, engine, model = key
        changed = changes.setdefault(role, [])
        if old.get(key) == new.get(key):
            unchanged[role] = unchanged.get(role, 0) + 1
        else:
            changed.append(TenantChange(engine=engine, model=model, before=old.get(key), after=new.get(key)))
    pools_before = {pool.pool_id: pool for pool in before.pools}
    pools_after = {pool.pool_id: pool for pool in after.pools}
    return PlanDiff(
        before=before,
        after=after,
        pools=tuple(
            PoolDiff(pool_id=pool_id, before=pools_before.get(pool_id), after=pools_after.get(pool_id))
            for pool_id in dict.fromkeys((*pools_after, *pools_before))
            if pools_before.get(pool_id) != pools_after.get(pool_id)
        ),
        roles=tuple(
            RoleDiff(
                role=role,
                changes=tuple(changed),
                unchanged=unchanged.get(role, 0),
                conflicts_before=tuple(sorted(old_conflicts.get(role, ()))),
                conflicts_after=tuple(sorted(new_conflicts.get(role, ()))),
            )
            for role, changed in changes.items()
        ),
    )


_Key = tuple[RoleName, EngineId | None, ModelId | None]


def _seats(plan: PlacementPlan) -> Mapping[_Key, Seat]:
    return {
        (tenant.role, tenant.engine, tenant.model)
        if isinstance(tenant, ReplicaPlacement)
        else (tenant.role, None, None): Seat(pool_id=tenant.pool_id, bundles=tenant.bundles)
        for tenant in plan.everybody
    }
