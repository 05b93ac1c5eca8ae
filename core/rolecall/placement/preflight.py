"""The logical preflight: a job on paper, before any Ray, device or network is touched.

``rolecall plan`` and the start of every job call :func:`plan_job`. It asks the job's placement
mode for a layout and checks both what goes in and what comes out; nothing is started from a plan
that did not come from here. Pure: same job, same plan. All refusals are raised at once: where an engine
can't lie on the job's nodes, or the mode finds no room, the mode is asked as if that had been mended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rolecall.errors import PlacementRefused, PluginContractError, Refusal
from rolecall.placement import contract_checks, deferral_checks, demand_checks, sharing_checks
from rolecall.placement.demand import JobFacts, job_facts, placement_job
from rolecall.placement.enough import with_room
from rolecall.placement.occupancy import Occupancy
from rolecall.placement.plan import PlacementJob, PlacementPlan

if TYPE_CHECKING:
    from rolecall.config.resolved import ResolvedJob
    from rolecall.interfaces.placement_mode import PlacementMode

NO_FACTS = JobFacts()


def plan_job(job: ResolvedJob) -> PlacementPlan:
    """Return the job's layout.

    Raises:
        PlacementRefused: it can't be placed; carries every reason.
        PluginContractError: the placement mode raised, or answered with something else.
    """
    return plan_placement(placement_job(job), job.mode, job_facts(job))


def plan_placement(job: PlacementJob, mode: PlacementMode, facts: JobFacts = NO_FACTS) -> PlacementPlan:
    """Return the layout of bare demands; raises like :func:`plan_job`.

    What ``facts`` leaves out is not checked. Without demands no mode is asked: the layout is empty.
    """
    if not job.roles and not job.training:
        return PlacementPlan(mode=mode.name, pools=(), replicas=(), phases=())
    refusals: list[Refusal] = [
        *demand_checks.refuse_parallel_product(job, facts),
        *demand_checks.refuse_partial_nodes(job, facts),
        *demand_checks.refuse_several_nodes(job, facts),
        *demand_checks.refuse_attention_groups(job, facts),
        *demand_checks.refuse_budget(job),
        *demand_checks.refuse_resource(job, facts),
        *demand_checks.refuse_unfit_stages(facts),
    ]
    job = demand_checks.on_whole_nodes(job)
    answer = _ask(mode, job)
    if not isinstance(answer, PlacementPlan):
        refusals += answer
        roomier = with_room(job, answer)
        if roomier is not None:
            job, answer = roomier, _ask(mode, roomier)
    if isinstance(answer, PlacementPlan):
        refusals += check_plan(job, answer, facts)
        if not refusals:
            return answer
    raise PlacementRefused(refusals)


def check_plan(job: PlacementJob, plan: PlacementPlan, facts: JobFacts = NO_FACTS) -> list[Refusal]:
    """Return every reason not to start ``plan``; empty if it is a sound layout of ``job``."""
    breaches = contract_checks.contract_breaches(job, plan)
    if breaches:
        return breaches
    occupancy = Occupancy.of(plan)
    return [
        *sharing_checks.refuse_co_residents(plan, occupancy),
        *sharing_checks.refuse_not_deferrable(job, plan, occupancy),
        *sharing_checks.refuse_never_awake(job, plan, occupancy, facts),
        *sharing_checks.refuse_not_offloaded(job, occupancy),
        *sharing_checks.refuse_sleepless(plan, occupancy, facts),
        *sharing_checks.refuse_reservations(occupancy),
        *deferral_checks.refuse_undeferred_rewards(plan, facts),
        *deferral_checks.refuse_undeferred_loop(plan, facts),
        *deferral_checks.refuse_overlapped_training(plan, occupancy, facts),
    ]


def _ask(mode: PlacementMode, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
    try:
        answer = cast(object, mode.plan(job))
    except Exception as error:  # a plugin's defect of any kind: named, and passed on as the cause
        raise PluginContractError(
            f'placement mode "{mode.name}" raised {type(error).__name__} while it planned: {error}'
        ) from error
    if isinstance(answer, PlacementPlan):
        return answer
    refusals = cast(tuple[object, ...], answer) if isinstance(answer, tuple) else ()
    if refusals and all(isinstance(item, Refusal) for item in refusals):
        return cast(tuple[Refusal, ...], refusals)
    raise PluginContractError(
        f'placement mode "{mode.name}" answered {answer!r}; allowed are a PlacementPlan or a tuple of'
        " at least one Refusal"
    )
