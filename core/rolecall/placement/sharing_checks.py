"""Refusals about roles that share devices: who may, in which phase, and what it takes.

Pure; the plan has passed ``contract_checks``. Roles that share a bundle take turns on it: each
sleeps while another is awake. So they must never be in one phase, each role's plugin must allow
it and have something to do in a batch, and each engine must be able to sleep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TypeVar

from attrs import field, frozen

from rolecall.config.source import key_text
from rolecall.errors import Fix, Refusal
from rolecall.ids import ModelId, RoleName
from rolecall.placement.contract_checks import MODE_KEY
from rolecall.placement.demand import JobFacts
from rolecall.placement.demand_checks import model_key
from rolecall.placement.occupancy import Occupancy
from rolecall.placement.plan import (
    REFERENCE_RESERVATION,
    PlacementJob,
    PlacementPlan,
    ReplicaPlacement,
    RoleDemand,
    TrainingDemand,
    actors,
    reservation_share,
)
from rolecall.placement.wording import bundle_runs, either, quoted

_Demand = TypeVar("_Demand", RoleDemand, TrainingDemand)


@frozen(kw_only=True)
class SharedCoResident(Refusal):
    """Two replicas on one bundle in the same phase; a lower memory fraction does not get around it."""

    code: str = field(default="shared-co-resident", init=False)
    roles: tuple[RoleName, RoleName]
    phases: tuple[str, ...]


def refuse_co_residents(plan: PlacementPlan, occupancy: Occupancy) -> Iterator[SharedCoResident]:
    """No bundle has two awake replicas in one phase."""
    for (one, other), crowds in occupancy.shared_by().items():
        phases = tuple(phase.name for phase in plan.phases if one in phase.roles and other in phase.roles)
        if not phases:
            continue
        places = chain.from_iterable(crowd.places for crowd in crowds)
        who = f'two replicas of role "{one}"' if one == other else f'roles "{one}" and "{other}"'
        yield SharedCoResident(
            key=MODE_KEY,
            message=f"{who} are on {_bundles(places)} in the same phase"
            f" ({', '.join(phases)}); only roles in different phases may share devices",
            fix="choose a mode that lets them take turns or gives each devices of its own; lowering"
            " a memory fraction does not help",
            roles=(one, other),
            phases=phases,
        )


@frozen(kw_only=True)
class RoleNotDeferrable(Refusal):
    """A role that shares devices although its plugin does not allow it."""

    code: str = field(default="role-not-deferrable", init=False)
    role: RoleName
    others: tuple[RoleName, ...]


def refuse_not_deferrable(
    job: PlacementJob, plan: PlacementPlan, occupancy: Occupancy
) -> Iterator[RoleNotDeferrable]:
    """Only roles whose plugin allows it share devices."""
    for role, others in _sharing(job.roles, occupancy):
        if role.deferrable:
            continue
        yield RoleNotDeferrable(
            key=MODE_KEY,
            message=f'mode "{plan.mode}" lets role "{role.role}" take turns with {quoted(others)}, but its'
            " plugin does not allow it to be put to sleep",
            fix=f'choose a mode that gives role "{role.role}" devices of its own',
            role=role.role,
            others=others,
        )


@frozen(kw_only=True)
class RoleNeverAwake(Refusal):
    """A role that shares devices and does nothing in a batch, so that nobody would ever wake it."""

    code: str = field(default="role-never-awake", init=False)
    role: RoleName
    others: tuple[RoleName, ...]


def refuse_never_awake(
    job: PlacementJob, plan: PlacementPlan, occupancy: Occupancy, facts: JobFacts
) -> Iterator[RoleNeverAwake]:
    """Roles that share devices are woken for their part of a batch, so they must have one."""
    for role, others in _sharing(job.roles, occupancy):
        if role.role not in facts.idle_roles:
            continue
        yield RoleNeverAwake(
            key=key_text(("roles", role.role)),
            message=f'mode "{plan.mode}" lets role "{role.role}" take turns with {quoted(others)}, but the'
            " role neither makes samples nor scores them: nobody would ever wake it",
            fix=either(
                f"a reward whose adapter asks {role.role}",
                "a mode that gives the role devices of its own",
                "a job without it",
            ),
            role=role.role,
            others=others,
        )


@frozen(kw_only=True)
class TrainingNotOffloaded(Refusal):
    """A training role that shares devices with inference and keeps its memory meanwhile."""

    code: str = field(default="training-not-offloaded", init=False)
    role: RoleName
    others: tuple[RoleName, ...]


def refuse_not_offloaded(job: PlacementJob, occupancy: Occupancy) -> Iterator[TrainingNotOffloaded]:
    """A training role on shared devices gives its memory up."""
    for role, others in _sharing(job.training, occupancy):
        if role.offload or role.on is not None:
            continue
        key = key_text(("training", role.role, "offload"))
        fix = Fix(((key, True),))
        yield TrainingNotOffloaded(
            key=key,
            message=f'training role "{role.role}" shares devices with {quoted(others)} and keeps its memory'
            " while they are awake; on shared devices both sides have to give theirs up",
            fix=either(fix, "a mode that gives it devices of its own"),
            fixes=(fix,),
            role=role.role,
            others=others,
        )


@frozen(kw_only=True)
class EngineCannotSleep(Refusal):
    """A model on shared devices whose backend can't release its memory and get its weights back."""

    code: str = field(default="engine-cannot-sleep", init=False)
    role: RoleName
    model: ModelId
    backend: str


def refuse_sleepless(
    plan: PlacementPlan, occupancy: Occupancy, facts: JobFacts
) -> Iterator[EngineCannotSleep]:
    """Every model on shared devices can give its memory back and get its weights again."""
    shared_with: dict[tuple[RoleName, ModelId], set[RoleName]] = {}
    for crowd in occupancy.crowds:
        roles = {tenant.role for tenant in crowd.tenants}
        if len(roles) > 1:
            for tenant in crowd.tenants:
                if isinstance(tenant, ReplicaPlacement):
                    shared_with.setdefault((tenant.role, tenant.model), set()).update(roles - {tenant.role})
    for engine in facts.engines:
        others = shared_with.get((engine.role, engine.model))
        if engine.can_sleep or others is None:
            continue
        because = f": {engine.no_sleep_because}" if engine.no_sleep_because else ""
        options = model_key(engine.role, engine.model, "engine_options")
        fixes: tuple[Fix, ...] = ()
        if engine.sleep_options:
            fixes = (Fix(tuple((f"{options}.{key}", value) for key, value in engine.sleep_options)),)
        yield EngineCannotSleep(
            key=model_key(engine.role, engine.model, "engine"),
            message=f'mode "{plan.mode}" lets the model share devices with {quoted(others)}, but engine'
            f' "{engine.backend}" can\'t release its memory and get the weights back{because}',
            fix=either(*fixes, "an engine that can sleep", "a mode that gives the model devices of its own"),
            fixes=fixes,
            role=engine.role,
            model=engine.model,
            backend=engine.backend,
        )


@frozen(kw_only=True)
class ReservationExceeded(Refusal):
    """More actors on one device than Ray can tell shares apart (10,000)."""

    code: str = field(default="reservation-exceeded", init=False)
    actors: int


def refuse_reservations(occupancy: Occupancy) -> Iterator[ReservationExceeded]:
    """The device shares reserved on a bundle are positive and sum to at most 1."""
    crowded: dict[int, list[tuple[str, int]]] = {}
    for crowd in occupancy.crowds:
        tenants = actors(crowd.tenants)
        share = reservation_share(tenants)
        # Counted in Ray's own unit, a ten-thousandth: a sum of floats can end above 1.
        if share <= 0 or round(share * 10_000) * tenants > round(REFERENCE_RESERVATION * 10_000):
            crowded.setdefault(tenants, []).extend(crowd.places)
    for tenants, places in crowded.items():
        yield ReservationExceeded(
            key=MODE_KEY,
            message=f"{tenants} actors share {_bundles(places)}; their Ray reservations of"
            f" {reservation_share(tenants)} each can't be kept within {REFERENCE_RESERVATION}",
            fix="let fewer replicas share a device",
            actors=tenants,
        )


def _sharing(
    demands: Iterable[_Demand], occupancy: Occupancy
) -> Iterator[tuple[_Demand, tuple[RoleName, ...]]]:
    """Return those that share a bundle with other roles, and these."""
    sharing = occupancy.sharing_roles()
    for demand in demands:
        if demand.role in sharing:
            yield demand, tuple(sorted(sharing[demand.role]))


def _bundles(places: Iterable[tuple[str, int]]) -> str:
    by_pool: dict[str, list[int]] = {}
    for pool_id, bundle in places:
        by_pool.setdefault(pool_id, []).append(bundle)
    return " and ".join(
        f'bundle {bundle_runs(bundles)} of pool "{pool}"' for pool, bundles in by_pool.items()
    )
