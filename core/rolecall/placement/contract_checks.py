"""Whether a placement mode's answer is a layout of the job at all.

Modes are plugins, so nothing in a returned plan is taken on trust: every replica of the job
stands in it exactly once, on as many bundles as it needs, inside a pool made of the job's
devices, and every role has a phase. A breach is the mode's defect, not the user's; the fix says
so. Pure; ``preflight`` looks at sharing and phases only after these checks have passed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from attrs import field, frozen

from rolecall.errors import Refusal
from rolecall.ids import EngineId, RoleName, engine_id
from rolecall.placement.nodes import Nodes
from rolecall.placement.plan import PlacementJob, PlacementPlan, Tenant, TrainingPlacement
from rolecall.placement.wording import bundle_runs, counted

MODE_KEY = "placement.mode"


@frozen(kw_only=True)
class ModeContract(Refusal):
    """A plan that is no layout of the job: with a replica missing, placed twice or on too few bundles, with a
    role in no phase, or the like."""

    code: str = field(default="mode-contract", init=False)
    mode: str


@frozen(kw_only=True)
class BundleOutsidePool(Refusal):
    """A plan with a bundle that its pool does not have."""

    code: str = field(default="bundle-outside-pool", init=False)
    mode: str
    pool_id: str
    bundles: tuple[int, ...]


@frozen(kw_only=True)
class EngineStraddlesNodes(Refusal):
    """A plan with an engine over a node boundary that does not fill whole nodes, or with gaps."""

    code: str = field(default="engine-straddles-nodes", init=False)
    mode: str
    engine: EngineId
    bundles: tuple[int, ...]


def refuse_broken_pools(job: PlacementJob, plan: PlacementPlan) -> Iterator[Refusal]:
    """Pools have different names and consist of the job's devices."""
    for pool_id, count in Counter(pool.pool_id for pool in plan.pools).items():
        if count > 1:
            yield _breach(plan, f'pool "{pool_id}" is listed {count} times')
    for pool in plan.pools:
        if pool.devices < 1:
            yield _breach(plan, f'pool "{pool.pool_id}" has {counted(pool.devices, "device")}')
        elif pool.resource != job.resource:
            yield _breach(
                plan, f'pool "{pool.pool_id}" is made of "{pool.resource}", the job has "{job.resource}"'
            )
    total = sum(pool.devices for pool in plan.pools)
    if job.nodes.devices is not None and total > job.nodes.devices:
        yield _breach(plan, f"its pools have {total} devices; the job has {job.nodes.devices}")


def refuse_uncut_pools(job: PlacementJob, plan: PlacementPlan) -> Iterator[Refusal]:
    """The nodes of a pool are, or are parts of, different nodes of the job.

    Counted for each size, which is quick and sees nodes taken for equal; whether all pieces of all pools
    fit together is a puzzle that takes too long to solve for a large job.
    """
    pools = [pool for pool in plan.pools if pool.devices]  # one without end has been refused
    for size in sorted({run.devices for pool in pools for run in pool.nodes.runs}, reverse=True):
        pieces = {pool.pool_id: int(_count(pool.nodes, size)) for pool in pools}
        hosts = _count(job.nodes, size)
        room = sum(_without_end(run.count) * (run.devices // size) for run in job.nodes.runs)
        for pool_id, count in pieces.items():
            if count > hosts:
                yield _breach(
                    plan,
                    f'pool "{pool_id}" has {counted(count, "node")} of {size} or more; the job has {hosts}',
                )
                return
        if sum(pieces.values()) > room:
            yield _breach(
                plan,
                f"its pools have {sum(pieces.values())} nodes of {size} or more, there is room for {room}",
            )
            return


def _count(nodes: Nodes, size: int) -> float:
    """How many of the nodes have at least so many devices."""
    return sum(_without_end(run.count) for run in nodes.runs if run.devices >= size)


def _without_end(count: int | None) -> float:
    return math.inf if count is None else count


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


def refuse_wrong_training(job: PlacementJob, plan: PlacementPlan) -> Iterator[Refusal]:
    """Every training role is placed once, on as many devices as it asked for and on those of its process."""
    wanted = {demand.role: demand for demand in job.training}
    placed = {placement.role: placement for placement in plan.training}
    for role, count in Counter(placement.role for placement in plan.training).items():
        if role not in wanted:
            yield _breach(plan, f'training role "{role}" is placed, but the job has none of that name')
        elif count > 1:
            yield _breach(plan, f'training role "{role}" is placed {count} times, not once')
    for role, demand in wanted.items():
        placement = placed.get(role)
        if placement is None:
            yield _breach(plan, f'training role "{role}" is not placed')
            continue
        if len(placement.bundles) != demand.devices:
            yield _breach(
                plan,
                f'training role "{role}" got {counted(len(placement.bundles), "bundle")}, its devices are'
                f" {demand.devices}",
            )
        host = placed.get(demand.process)
        inside = (
            host is not None and host.pool_id == placement.pool_id and {*placement.bundles} <= {*host.bundles}
        )
        if placement.process != demand.process or not inside:
            yield _breach(plan, f'training role "{role}" is not on the devices of "{demand.process}"')


def refuse_bundles_outside_pool(plan: PlacementPlan) -> Iterator[Refusal]:
    """A tenant's bundles are ascending, different, and inside its pool."""
    sizes = {pool.pool_id: pool.devices for pool in plan.pools}
    for replica in plan.everybody:
        size = sizes.get(replica.pool_id)
        if size is None:
            yield _breach(plan, f'{_name(replica)} is in pool "{replica.pool_id}", which is not in the plan')
            continue
        if _in_a_row(replica.bundles) and replica.bundles[0] >= 0 and replica.bundles[-1] < size:
            continue
        if any(later <= earlier for earlier, later in pairwise(replica.bundles)):
            yield _breach(plan, f"{_name(replica)} has bundles {replica.bundles}; they must ascend")
        outside = [bundle for bundle in replica.bundles if not 0 <= bundle < size]
        if outside:
            yield BundleOutsidePool(
                key=MODE_KEY,
                message=f'mode "{plan.mode}" put {_name(replica)} on bundle {bundle_runs(outside)} of pool'
                f' "{replica.pool_id}", which has bundles 0-{size - 1}',
                fix=_report(plan),
                mode=plan.mode,
                pool_id=replica.pool_id,
                bundles=tuple(outside),
            )


def refuse_straddling_engines(plan: PlacementPlan) -> Iterator[Refusal]:
    """An engine that fits a node lies on one; a larger one takes whole nodes, one after another."""
    nodes = {pool.pool_id: pool.nodes for pool in plan.pools}
    right: set[tuple[str, int, int]] = set()  # many a role has an engine at the same place
    for replica in plan.replicas:
        first, last = replica.bundles[0], replica.bundles[-1]
        if not _in_a_row(replica.bundles):
            problem = "they must follow one another"
        elif (place := (replica.pool_id, first, last)) in right:
            continue
        elif nodes[replica.pool_id].whole(range(first, last + 1)):
            right.add(place)
            continue
        else:
            problem = "an engine lies on one node, or on whole nodes of one size"
        yield EngineStraddlesNodes(
            key=MODE_KEY,
            message=f'mode "{plan.mode}" put {_name(replica)} on bundles {bundle_runs(replica.bundles)};'
            f" {problem}",
            fix=_report(plan),
            mode=plan.mode,
            engine=replica.engine,
            bundles=replica.bundles,
        )


def refuse_broken_phases(job: PlacementJob, plan: PlacementPlan) -> Iterator[Refusal]:
    """Phases have different names and know the job's roles; every role is in one."""
    known = {role.role for role in (*job.roles, *job.training)}
    for name, count in Counter(phase.name for phase in plan.phases).items():
        if count > 1:
            yield _breach(plan, f'phase "{name}" is listed {count} times')
    in_phases = {role for phase in plan.phases for role in phase.roles}
    for role in sorted(in_phases - known):
        yield _breach(plan, f'a phase has role "{role}", which the job has not')
    for demand in (*job.roles, *job.training):
        if demand.role not in in_phases:
            yield _breach(plan, f'role "{demand.role}" is in no phase: it could never be awake')


def contract_breaches(job: PlacementJob, plan: PlacementPlan) -> list[Refusal]:
    """Return everything that makes ``plan`` no layout of ``job``; empty if it is one."""
    breaches = [
        *refuse_broken_pools(job, plan),
        *refuse_uncut_pools(job, plan),
        *refuse_missing_replicas(job, plan),
        *refuse_wrong_training(job, plan),
        *refuse_bundles_outside_pool(plan),
        *refuse_broken_phases(job, plan),
    ]
    # Where an engine lies only means something once its bundles are known to be right.
    return breaches or list(refuse_straddling_engines(plan))


def _in_a_row(bundles: tuple[int, ...]) -> bool:
    return bool(bundles) and bundles == tuple(range(bundles[0], bundles[0] + len(bundles)))


def _breach(plan: PlacementPlan, problem: str) -> ModeContract:
    return ModeContract(
        key=MODE_KEY,
        message=f'mode "{plan.mode}" returned a layout that breaks its contract: {problem}',
        fix=_report(plan),
        mode=plan.mode,
    )


def _report(plan: PlacementPlan) -> str:
    return f'tell the authors of mode "{plan.mode}"; until it is repaired, choose another mode'


def _name(tenant: Tenant) -> str:
    if isinstance(tenant, TrainingPlacement):
        return f'training role "{tenant.role}"'
    return _named(tenant.role, tenant.engine)


def _named(role: RoleName, engine: EngineId) -> str:
    return f"{role}'s {engine}"
