"""Refusals about roles that share devices: who may, in which phase, and what it takes.

Pure; the plan has passed ``contract_checks``. Roles that share a bundle take turns on it: each
sleeps while another is awake. So they must never be in one phase, each role's plugin must allow
it, each engine must be able to sleep, and whatever scores a sample must accept that generation
has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rolecall.errors import Refusal
from rolecall.placement.contract_checks import MODE_KEY
from rolecall.placement.demand import JobFacts
from rolecall.placement.demand_checks import model_key
from rolecall.placement.occupancy import Occupancy
from rolecall.placement.plan import (
    REFERENCE_RESERVATION,
    PlacementJob,
    PlacementPlan,
    ReplicaPlacement,
    actors,
    reservation_share,
)
from rolecall.placement.wording import bundle_runs


def refuse_co_residents(plan: PlacementPlan, occupancy: Occupancy) -> Iterator[Refusal]:
    """No bundle has two awake replicas in one phase."""
    for (one, other), places in occupancy.shared_by().items():
        phases = [phase.name for phase in plan.phases if one in phase.roles and other in phase.roles]
        if not phases:
            continue
        who = f'two replicas of role "{one}"' if one == other else f'roles "{one}" and "{other}"'
        yield Refusal(
            code="shared-co-resident",
            key=MODE_KEY,
            message=f"{who} are on {_bundles(places)} in the same phase"
            f" ({', '.join(phases)}); only roles in different phases may share devices",
            fix="choose a mode that lets them take turns or gives each devices of its own; lowering"
            " a memory fraction does not help",
        )


def refuse_not_deferrable(job: PlacementJob, plan: PlacementPlan, occupancy: Occupancy) -> Iterator[Refusal]:
    """Only roles whose plugin allows it share devices."""
    sharing = occupancy.sharing_roles()
    for role in job.roles:
        if role.deferrable or role.role not in sharing:
            continue
        yield Refusal(
            code="role-not-deferrable",
            key=MODE_KEY,
            message=f'mode "{plan.mode}" lets role "{role.role}" take turns with'
            f" {_roles(sharing[role.role])}, but its plugin does not allow it to be put to sleep",
            fix=f'choose a mode that gives role "{role.role}" devices of its own',
        )


def refuse_not_offloaded(job: PlacementJob, occupancy: Occupancy) -> Iterator[Refusal]:
    """A training role on shared devices gives its memory up."""
    sharing = occupancy.sharing_roles()
    for role in job.training:
        if role.offload or role.on is not None or role.role not in sharing:
            continue
        yield Refusal(
            code="training-not-offloaded",
            key=f"training.{role.role}.offload",
            message=f'training role "{role.role}" shares devices with {_roles(sharing[role.role])} and'
            " keeps its memory while they are awake; on shared devices both sides have to give theirs up",
            fix=f"training.{role.role}.offload = true, or a mode that gives it devices of its own",
        )


def refuse_sleepless(plan: PlacementPlan, occupancy: Occupancy, facts: JobFacts) -> Iterator[Refusal]:
    """Every model on shared devices can give its memory back and get its weights again."""
    shared_with: dict[tuple[str, str], set[str]] = {}
    for tenants in occupancy.tenants.values():
        roles = {tenant.role for tenant in tenants}
        if len(roles) > 1:
            for tenant in tenants:
                if isinstance(tenant, ReplicaPlacement):
                    shared_with.setdefault((tenant.role, tenant.model), set()).update(roles - {tenant.role})
    for engine in facts.engines:
        others = shared_with.get((engine.role, engine.model))
        if engine.can_sleep or others is None:
            continue
        because = f": {engine.no_sleep_because}" if engine.no_sleep_because else ""
        yield Refusal(
            code="engine-cannot-sleep",
            key=f"{model_key(engine.role, engine.model)}.engine",
            message=f'mode "{plan.mode}" lets the model share devices with {_roles(others)}, but engine'
            f' "{engine.backend}" can\'t release its memory and get the weights back{because}',
            fix="choose an engine that can sleep, or a mode that gives the model devices of its own",
        )


def refuse_undeferred_rewards(plan: PlacementPlan, facts: JobFacts) -> Iterator[Refusal]:
    """In a job whose roles take turns, rewards are computed after generation has ended."""
    if inference_phases(plan) < 2:
        return
    for reward in facts.rewards:
        if reward.supports_deferred:
            continue
        yield Refusal(
            code="reward-not-deferred",
            key=f"rewards.{reward.reward}.adapter",
            message=f'mode "{plan.mode}" scores samples after generation has ended, but adapter'
            f' "{reward.adapter}" does not declare supports_deferred',
            fix="choose an adapter that declares supports_deferred, or a mode in which all roles are awake"
            " together",
        )


def refuse_reservations(occupancy: Occupancy) -> Iterator[Refusal]:
    """The device shares reserved on a bundle are positive and sum to at most 1."""
    crowded: dict[int, list[tuple[str, int]]] = {}
    for place, sharing in occupancy.tenants.items():
        tenants = actors(sharing)
        share = reservation_share(tenants)
        # Counted in Ray's own unit, a ten-thousandth: a sum of floats can end above 1.
        if share <= 0 or round(share * 10_000) * tenants > round(REFERENCE_RESERVATION * 10_000):
            crowded.setdefault(tenants, []).append(place)
    for tenants, places in crowded.items():
        yield Refusal(
            code="reservation-exceeded",
            key=MODE_KEY,
            message=f"{tenants} actors share {_bundles(places)}; their Ray reservations of"
            f" {reservation_share(tenants)} each can't be kept within {REFERENCE_RESERVATION}",
            fix="let fewer replicas share a device",
        )


def inference_phases(plan: PlacementPlan) -> int:
    """Return in how many phases some inference role is awake; several: the job is deferred."""
    inference = {replica.role for replica in plan.replicas}
    return sum(1 for phase in plan.phases if not inference.isdisjoint(phase.roles))


def _roles(roles: Iterable[str]) -> str:
    return ", ".join(f'"{role}"' for role in sorted(roles))


def _bundles(places: Iterable[tuple[str, int]]) -> str:
    by_pool: dict[str, list[int]] = {}
    for pool_id, bundle in places:
        by_pool.setdefault(pool_id, []).append(bundle)
    return " and ".join(
        f'bundle {bundle_runs(bundles)} of pool "{pool}"' for pool, bundles in by_pool.items()
    )
