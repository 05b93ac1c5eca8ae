"""Whether a placement mode's answer is a layout of the job at all.

Modes are plugins, so nothing in a returned plan is taken on trust: every replica of the job
stands in it exactly once, on as many bundles as it needs, inside a pool made of the job's
devices, and every role has a phase. A breach is the mode's defect, not the user's; the fix says
so. Pure; ``preflight`` looks at sharing and phases only after these checks have passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from rolecall.errors import Refusal
from rolecall.ids import EngineId, RoleName, engine_id
from rolecall.placement.plan import PlacementJob, PlacementPlan, ReplicaPlacement
from rolecall.placement.wording import bundle_runs, counted

MODE_KEY = "placement.mode"


def refuse_broken_pools(job: PlacementJob, plan: PlacementPlan) -> Iterator[Refusal]:
    """Pools have different names and consist of the job's devices."""
    for pool_id, count in Counter(pool.pool_id for pool in plan.pools).items():
        if count > 1:
            yield _breach(plan, f'pool "{pool_id}" is listed {count} times')
    for pool in plan.pools:
        if pool.devices < 1:
            yield _breach(plan, f'pool "{pool.pool_id}" has {counted(pool.devices, "device")}')
        if (pool.resource, pool.devices_per_node) != (job.resource, job.devices_per_node):
            yield _breach(
                plan,
                f'pool "{pool.pool_id}" has {pool.devices_per_node} "{pool.resource}" a node;'
                f' the job has {job.devices_per_node} "{job.resource}" a node',
            )


def refuse_missing_replicas(job: PlacementJob, plan: PlacementPlan) -> Iterator[Refusal]:
    """Every replica of the job is placed once, and nothing else is."""
    wanted = {
        (role.role, engine_id(model.model, index)): model
        for role in job.roles
        for model in role.models
        for index in range(model.replicas)
    }
    placed = Counter((replica.role, replica.engine) for replica in plan.replicas)
    for role, engine in wanted:
        if placed[role, engine] != 1:
            yield _breach(plan, f"{_named(role, engine)} is placed {placed[role, engine]} times, not once")
    for role, engine in placed:
        if (role, engine) not in wanted:
            yield _breach(plan, f"{_named(role, engine)} is placed, but the job has no such replica")
    for replica in plan.replicas:
        model = wanted.get((replica.role, replica.engine))
        if model is None:
            continue
        if replica.model != model.model:
            yield _breach(plan, f'{_name(replica)} is placed as a replica of model "{replica.model}"')
        if len(replica.bundles) != model.devices_per_engine:
            yield _breach(
                plan,
                f"{_name(replica)} got {counted(len(replica.bundles), 'bundle')},"
                f" devices_per_engine is {model.devices_per_engine}",
            )


def refuse_bundles_outside_pool(plan: PlacementPlan) -> Iterator[Refusal]:
    """A replica's bundles are ascending, different, and inside its pool."""
    sizes = {pool.pool_id: pool.devices for pool in plan.pools}
    for replica in plan.replicas:
        size = sizes.get(replica.pool_id)
        if size is None:
            yield _breach(plan, f'{_name(replica)} is in pool "{replica.pool_id}", which is not in the plan')
            continue
        if any(later <= earlier for earlier, later in pairwise(replica.bundles)):
            yield _breach(plan, f"{_name(replica)} has bundles {replica.bundles}; they must ascend")
        outside = [bundle for bundle in replica.bundles if not 0 <= bundle < size]
        if outside:
            yield Refusal(
                code="bundle-outside-pool",
                key=MODE_KEY,
                message=f'mode "{plan.mode}" put {_name(replica)} on bundle {bundle_runs(outside)} of pool'
                f' "{replica.pool_id}", which has bundles 0-{size - 1}',
                fix=_report(plan),
            )


def refuse_straddling_engines(job: PlacementJob, plan: PlacementPlan) -> Iterator[Refusal]:
    """An engine that fits a node lies on one; a larger one takes whole nodes, one after another."""
    per_node = job.devices_per_node
    for replica in plan.replicas:
        first, last = replica.bundles[0], replica.bundles[-1]
        if last - first + 1 != len(replica.bundles):
            problem = "they must follow one another"
        elif first // per_node != last // per_node and (first % per_node or (last + 1) % per_node):
            problem = f"nodes have {per_node}; an engine lies on one node or on whole nodes"
        else:
            continue
        yield Refusal(
            code="engine-straddles-nodes",
            key=MODE_KEY,
            message=f'mode "{plan.mode}" put {_name(replica)} on bundles {bundle_runs(replica.bundles)};'
            f" {problem}",
            fix=_report(plan),
        )


def refuse_broken_phases(job: PlacementJob, plan: PlacementPlan) -> Iterator[Refusal]:
    """Phases have different names and know the job's roles; every role is in one."""
    known = {role.role for role in job.roles}
    for name, count in Counter(phase.name for phase in plan.phases).items():
        if count > 1:
            yield _breach(plan, f'phase "{name}" is listed {count} times')
    in_phases = {role for phase in plan.phases for role in phase.roles}
    for role in sorted(in_phases - known):
        yield _breach(plan, f'a phase has role "{role}", which the job has not')
    for demand in job.roles:
        if demand.role not in in_phases:
            yield _breach(plan, f'role "{demand.role}" is in no phase: it could never be awake')


def contract_breaches(job: PlacementJob, plan: PlacementPlan) -> list[Refusal]:
    """Return everything that makes ``plan`` no layout of ``job``; empty if it is one."""
    breaches = [
        *refuse_broken_pools(job, plan),
        *refuse_missing_replicas(job, plan),
        *refuse_bundles_outside_pool(plan),
        *refuse_broken_phases(job, plan),
    ]
    # Where an engine lies only means something once its bundles are known to be right.
    return breaches or list(refuse_straddling_engines(job, plan))


def _breach(plan: PlacementPlan, problem: str) -> Refusal:
    return Refusal(
        code="mode-contract",
        key=MODE_KEY,
        message=f'mode "{plan.mode}" returned a layout that breaks its contract: {problem}',
        fix=_report(plan),
    )


def _report(plan: PlacementPlan) -> str:
    return f'tell the authors of mode "{plan.mode}"; until it is repaired, choose another mode'


def _name(replica: ReplicaPlacement) -> str:
    return _named(replica.role, replica.engine)


def _named(role: RoleName, engine: EngineId) -> str:
    return f"{role}'s {engine}"
