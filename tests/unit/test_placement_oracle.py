"""The planner against an oracle, on jobs by chance: where every engine lies, what is refused, what is sound.

What the documentation says about each first-party mode is written here a second time, the slow and obvious
way: sets of devices and a search over every place, with nothing of the planner's. For each job the mode has
to lay out exactly that, or refuse exactly where there is no such layout; and the core has to take a plan
exactly when the oracle of ``rolecall.testing.placement_oracle`` finds it sound. Then the plan is damaged,
and the two have to agree again.

``ROLECALL_ORACLE_JOBS=20000 pytest tests/unit/test_placement_oracle.py`` tries more jobs, others each time.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, TypeVar

from attrs import evolve, frozen
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from rolecall.api import (
    ROLECALL_API,
    Nodes,
    PlacementJob,
    PlacementMode,
    PlacementPlan,
    Pool,
    ReplicaPlacement,
    RoleName,
    TrainingPlacement,
)
from rolecall.api import Phase as Awake
from rolecall.errors import PlacementRefused
from rolecall.ids import EngineId, ModelId
from rolecall.placement.occupancy import Occupancy
from rolecall.placement.preflight import check_plan, plan_placement
from rolecall.testing import placement_oracle as oracle
from rolecall.testing.demands import Pick, any_job
from rolecall_placement.decoupled import Decoupled
from rolecall_placement.defer import Defer
from rolecall_placement.split import Split

Thing = TypeVar("Thing")

MORE = os.environ.get("ROLECALL_ORACLE_JOBS")
SETTINGS = settings(
    max_examples=int(MORE or 5_000),
    derandomize=MORE is None,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


# --- where it all has to lie ----------------------------------------------------------------


@frozen(kw_only=True)
class Layout:
    """What the documentation says: devices of each node of each pool, and who is on which bundles."""

    pools: dict[str, list[int]]
    engines: dict[tuple[str, str], tuple[str, list[int]]]
    training: dict[str, tuple[str, list[int]]]
    phases: list[tuple[str, list[str]]]


def side_by_side(job: PlacementJob) -> Layout | None:
    """``split``: all engines of all roles in the file's order, the trainer on the same pool afterwards."""
    trainer, stop = trainer_from_0(job)
    sizes = shared_nodes(job, stop)
    engines = [(role.role, engine) for role in job.roles for engine in oracle.engines(role)]
    laid = leftmost([devices for _, (_, _, devices) in engines], sizes)
    if laid is None or stop > sum(sizes):
        return None
    return Layout(
        pools={"shared": sizes},
        engines={
            (role, engine): ("shared", bundles)
            for (role, (engine, _, _)), bundles in zip(engines, laid, strict=True)
        },
        training={role: ("shared", bundles) for role, bundles in trainer.items()},
        phases=[("inference", [role.role for role in job.roles]), *training_phase(job)],
    )


def in_turn(job: PlacementJob) -> Layout | None:
    """``defer``: each role for itself from bundle 0, in a phase of its own, and the trainer in the last."""
    trainer, stop = trainer_from_0(job)
    sizes = shared_nodes(job, stop)
    engines: dict[tuple[str, str], tuple[str, list[int]]] = {}
    for role in job.roles:
        laid = leftmost([devices for _, _, devices in oracle.engines(role)], sizes)
        if laid is None or stop > sum(sizes):
            return None
        for (engine, _, _), bundles in zip(oracle.engines(role), laid, strict=True):
            engines[role.role, engine] = ("shared", bundles)
    return Layout(
        pools={"shared": sizes},
        engines=engines,
        training={role: ("shared", bundles) for role, bundles in trainer.items()},
        phases=[*((role.role, [role.role]) for role in job.roles), *training_phase(job)],
    )


def apart(job: PlacementJob) -> Layout | None:
    """``decoupled``: a pool for each process and role, out of the job's nodes or of as many as wanted."""
    processes = [role for role in job.training if role.on is None]
    pools: dict[str, list[int]] = {}
    engines: dict[tuple[str, str], tuple[str, list[int]]] = {}
    if job.devices is None:
        for role in job.roles:
            names, wanted = zip(*((name, devices) for name, _, devices in oracle.engines(role)), strict=True)
            sizes = oracle.node_sizes(job.nodes, at_least=room(job, wanted))
            laid = leftmost(wanted, sizes)
            if laid is None:
                return None
            pools[role.role] = covered(sizes, laid[-1][-1] + 1)
            engines |= {(role.role, name): (role.role, at) for name, at in zip(names, laid, strict=True)}
        for role in processes:
            pools[role.role] = covered(oracle.node_sizes(job.nodes, at_least=role.devices), role.devices)
    else:
        free = oracle.places(oracle.node_sizes(job.nodes))
        for role in processes:
            taken, free = free[: role.devices], free[role.devices :]
            if len(taken) < role.devices:
                return None
            pools[role.role] = sizes_of(taken)
        for role in job.roles:
            on: dict[str, list[tuple[int, int]]] = {}
            for name, _, devices in oracle.engines(role):
                found = first_room(free, oracle.node_sizes(job.nodes), devices)
                if found is None:
                    return None
                on[name] = found
                free = [place for place in free if place not in found]
            taken = sorted(place for places in on.values() for place in places)
            pools[role.role] = sizes_of(taken)
            for name, places in on.items():
                engines[role.role, name] = (role.role, [taken.index(place) for place in places])
    return Layout(
        pools=pools,
        engines=engines,
        training={role.role: (role.on or role.role, list(range(role.devices))) for role in job.training},
        phases=[("all together", [role.role for role in (*job.roles, *job.training)])],
    )


def leftmost(wanted: Sequence[int], sizes: Sequence[int]) -> list[list[int]] | None:
    """Of all ways to lay engines of so many devices on nodes, each to the right of the one before, the one
    in which each lies as far to the left as it can."""
    places = oracle.places(sizes)
    hopeless: set[tuple[int, int]] = set()

    def lay(index: int, free_from: int) -> list[list[int]] | None:
        if index == len(wanted):
            return []
        if (index, free_from) in hopeless:
            return None
        for first in range(free_from, len(places) - sum(wanted[index:]) + 1):
            stop = first + wanted[index]
            if oracle.holds_an_engine(places[first:stop], sizes):
                rest = lay(index + 1, stop)
                if rest is not None:
                    return [list(range(first, stop)), *rest]
        hopeless.add((index, free_from))
        return None

    return lay(0, 0)


def first_room(
    free: Sequence[tuple[int, int]], sizes: Sequence[int], devices: int
) -> list[tuple[int, int]] | None:
    """The first node with so many free devices, or from which on whole free ones make an engine."""
    everywhere = oracle.places(sizes)
    for node in range(len(sizes)):
        here = [place for place in free if place[0] == node]
        if len(here) >= devices:
            return here[:devices]
        if len(here) < sizes[node]:
            continue
        onward = [place for place in everywhere if place[0] >= node][:devices]
        if len(onward) == devices and set(onward) <= set(free) and oracle.holds_an_engine(onward, sizes):
            return onward
    return None


def trainer_from_0(job: PlacementJob) -> tuple[dict[str, list[int]], int]:
    """The bundles of the trainer's roles in a shared pool, and the bundle after the last."""
    bundles: dict[str, list[int]] = {}
    stop = 0
    for role in job.training:
        if role.on is None:
            bundles[role.role] = list(range(stop, stop + role.devices))
            stop += role.devices
    for role in job.training:
        if role.on is not None:
            bundles[role.role] = bundles[role.on][: role.devices]
    return bundles, stop


def training_phase(job: PlacementJob) -> list[tuple[str, list[str]]]:
    return [("training", [role.role for role in job.training])] if job.training else []


def shared_nodes(job: PlacementJob, trainer: int) -> list[int]:
    """The nodes of the one pool: the job's, else as many as the trainer takes."""
    if job.devices is not None:
        return oracle.node_sizes(job.nodes)
    return covered(oracle.node_sizes(job.nodes, at_least=trainer), trainer)


def covered(sizes: Sequence[int], devices: int) -> list[int]:
    return sizes_of(oracle.places(sizes)[:devices])


def sizes_of(places: Sequence[tuple[int, int]]) -> list[int]:
    """How many of the devices are on each node, nodes without one left out."""
    return list(Counter(node for node, _ in sorted(places)).values())


def room(job: PlacementJob, wanted: Sequence[int]) -> int:
    """More than enough for engines that each leave a node of theirs half empty."""
    return sum(devices + job.nodes.runs[0].devices for devices in wanted)


Rule = Callable[[PlacementJob], Layout | None]

RULES: tuple[tuple[PlacementMode, Rule], ...] = (
    (Split(), side_by_side),
    (Defer(), in_turn),
    (Decoupled(), apart),
)


def layout_of(plan: PlacementPlan) -> Layout:
    """What a plan says, in the oracle's words."""
    return Layout(
        pools={pool.pool_id: oracle.node_sizes(pool.nodes) for pool in plan.pools},
        engines={(one.role, one.engine): (one.pool_id, [*one.bundles]) for one in plan.replicas},
        training={one.role: (one.pool_id, [*one.bundles]) for one in plan.training},
        phases=[(phase.name, [*phase.roles]) for phase in plan.phases],
    )


# --- jobs and damage by chance --------------------------------------------------------------


def picks(chance: bytes) -> Pick:
    """Numbers out of bytes: hypothesis makes smaller ones of them until the job is simple."""
    numbers = iter(chance)
    return lambda below: next(numbers, 0) % below


def less_willing(job: PlacementJob, pick: Pick) -> PlacementJob:
    """The job with a role that never sleeps, a wrong budget or a wrong product, or as it was."""
    what = pick(12)
    role = job.roles[0]
    if what == 1:
        return evolve(job, roles=(evolve(role, deferrable=False), *job.roles[1:]))
    if what == 2:
        return evolve(job, training=tuple(evolve(role, offload=False) for role in job.training))
    if what == 3:
        return evolve(job, roles=(evolve(role, devices=role.needed + pick(2)), *job.roles[1:]))
    if what == 4:
        model = evolve(role.models[0], pipeline_parallel=1 + pick(2))
        return evolve(job, roles=(evolve(role, models=(model, *role.models[1:])), *job.roles[1:]))
    return job


def demands_are_right(job: PlacementJob) -> bool:
    return all(
        role.devices in (None, sum(devices for _, _, devices in oracle.engines(role)))
        and all(m.tensor_parallel * m.pipeline_parallel == m.devices_per_engine for m in role.models)
        for role in job.roles
    )


def damaged(plan: PlacementPlan, pick: Pick) -> PlacementPlan:
    """The plan with something by chance changed in it; some changes do no harm."""
    what = pick(4 if plan.training else 3)
    if what == 0:
        return evolve(plan, replicas=one_of(damaged_replicas(plan.replicas, pick), pick))
    if what == 1:
        return evolve(plan, pools=one_of(damaged_pools(plan.pools, pick), pick))
    if what == 2:
        return evolve(plan, phases=one_of(damaged_phases(plan.phases, pick), pick))
    return evolve(plan, training=one_of(damaged_training(plan, pick), pick))


def one_of(things: Iterator[Thing], pick: Pick) -> Thing:
    among = list(things)
    return among[pick(len(among))]


def damaged_replicas(
    replicas: tuple[ReplicaPlacement, ...], pick: Pick
) -> Iterator[tuple[ReplicaPlacement, ...]]:
    at = pick(len(replicas))
    one, other, by = replicas[at], replicas[pick(len(replicas))], 1 + pick(4)
    changed = [
        evolve(one, bundles=tuple(bundle + by for bundle in one.bundles)),
        evolve(one, bundles=tuple(bundle - by for bundle in one.bundles)),
        evolve(one, bundles=other.bundles),
        evolve(one, bundles=other.bundles, pool_id=other.pool_id),
        evolve(one, bundles=(*one.bundles, one.bundles[-1] + 1)),
        evolve(one, bundles=one.bundles[1:]),
        evolve(one, bundles=one.bundles[::-1]),
        evolve(one, bundles=(*one.bundles[:-1], one.bundles[-1] + by)),
        evolve(one, engine=EngineId(f"{one.model}/replica-{by}")),
        evolve(one, model=ModelId("m9")),
        evolve(one, role=other.role),
        evolve(one, pool_id="nowhere"),
    ]
    for each in changed:
        yield (*replicas[:at], each, *replicas[at + 1 :])
    yield replicas[:at] + replicas[at + 1 :]
    yield (*replicas, one)
    yield replicas[::-1]


def damaged_pools(pools: tuple[Pool, ...], pick: Pick) -> Iterator[tuple[Pool, ...]]:
    at = pick(len(pools))
    pool, sizes = pools[at], oracle.node_sizes(pools[at].nodes)
    node = pick(len(sizes))
    nodes = [
        sizes[:node] + sizes[node + 1 :],
        [*sizes[:node], sizes[node] + 1, *sizes[node + 1 :]],
        [*sizes[:node], *filter(None, (1, sizes[node] - 1)), *sizes[node + 1 :]],
        sizes[::-1],
        [*sizes, 1],
        [sum(sizes)],
    ]
    others = [evolve(pool, nodes=Nodes.of(each)) for each in nodes]
    others += [evolve(pool, nodes=Nodes.endless(8)), evolve(pool, resource="slot")]
    others += [evolve(pool, pool_id=pools[0].pool_id), evolve(pool, pool_id="elsewhere")]
    for changed in others:
        yield (*pools[:at], changed, *pools[at + 1 :])


def damaged_phases(phases: tuple[Awake, ...], pick: Pick) -> Iterator[tuple[Awake, ...]]:
    at = pick(len(phases))
    phase = phases[at]
    yield phases[:at] + phases[at + 1 :]
    yield (*phases, phase)
    yield (*phases, evolve(phase, name="again"))
    yield (*phases[:at], evolve(phase, roles=phase.roles[1:]), *phases[at + 1 :])
    yield (*phases, Awake(name="more", roles=(RoleName("stranger"),)))
    yield (*phases, Awake(name="more", roles=(phases[0].roles[0], phases[-1].roles[-1])))
    yield (Awake(name="all", roles=tuple(role for phase in phases for role in phase.roles)),)
    yield tuple(Awake(name=role, roles=(role,)) for phase in phases for role in phase.roles)


def damaged_training(plan: PlacementPlan, pick: Pick) -> Iterator[tuple[TrainingPlacement, ...]]:
    roles = plan.training
    at = pick(len(roles))
    role, other, by = roles[at], roles[pick(len(roles))], 1 + pick(4)
    changed = [
        evolve(role, bundles=tuple(bundle + by for bundle in role.bundles)),
        evolve(role, bundles=role.bundles[:-1]),
        evolve(role, bundles=role.bundles[::-1]),
        evolve(role, bundles=(*role.bundles, role.bundles[-1] + 1)),
        evolve(role, bundles=other.bundles, pool_id=other.pool_id),
        evolve(role, process=other.process),
        evolve(role, role=other.role),
        evolve(role, role=plan.replicas[0].role),
        evolve(role, pool_id=plan.pools[0].pool_id),
        evolve(role, pool_id="nowhere"),
    ]
    for each in changed:
        yield (*roles[:at], each, *roles[at + 1 :])
    yield roles[:at] + roles[at + 1 :]
    yield (*roles, role)


# --- no disagreement --------------------------------------------------------------------------


def test_the_planner_and_the_oracle_agree_in_each_mode() -> None:
    seen: Counter[str] = Counter()

    @SETTINGS
    @given(st.binary(min_size=48, max_size=48))
    def holds(chance: bytes) -> None:
        pick = picks(chance)
        job = less_willing(any_job(pick), pick)
        note(f"{job}")
        plans: list[PlacementPlan] = []
        for mode, rule in RULES:
            note(mode.name)
            plan = the_modes_layout(job, mode, rule)
            seen[f"{mode.name}: no room"] += plan is None
            if plan is not None:
                plans.append(plan)
                seen[f"{mode.name}: sound" if is_sound(job, plan) else "unsound"] += 1
        if plans:
            plan = plans[pick(len(plans))]
            look_ups_are_right(plan)
            pools_can_be_cut(job, plan)
            worse = damaged(plan, pick)
            faults, refusals = oracle.faults(job, worse), check_plan(job, worse)
            assert bool(faults) == bool(refusals), f"the oracle: {faults}, the core: {refusals}, of {worse}"
            seen["damaged" if faults else "changed"] += 1

    holds()
    rare = {kind: count for kind, count in seen.items() if count < SETTINGS.max_examples / 50}
    assert not rare, f"hardly any job of some kind: {seen}"
    assert len(seen) == 2 * len(RULES) + 3, f"no job of some kind: {seen}"


def the_modes_layout(job: PlacementJob, mode: PlacementMode, rule: Rule) -> PlacementPlan | None:
    """What the mode answers: that layout exactly, or a refusal, if there is none, that says what would do."""
    layout, answer = rule(job), mode.plan(job)
    assert isinstance(answer, PlacementPlan) == (layout is not None), answer
    if isinstance(answer, PlacementPlan):
        assert layout_of(answer) == layout
        return answer
    for key, value in (pair for refusal in answer for fix in refusal.fixes for pair in fix.assignments):
        if key == "placement.devices":
            assert rule(evolve(job, nodes=equal_nodes(value, job))) is not None, answer
        else:
            assert key == "placement.nodes"
            assert rule(evolve(job, nodes=Nodes.of(value))) is not None, answer
    return None


def equal_nodes(devices: int, job: PlacementJob) -> Nodes:
    """So many devices on nodes as the job's, the last one with what is left."""
    size = job.per_node or max(oracle.node_sizes(job.nodes, at_least=1))
    return Nodes.of([min(size, devices - first) for first in range(0, devices, size)])


def is_sound(job: PlacementJob, plan: PlacementPlan) -> bool:
    """Whether the oracle and the core, which have to agree, take the plan of a mode."""
    faults = oracle.faults(job, plan)
    assert accepted(job, plan) == (demands_are_right(job) and not faults), faults
    return not faults


def accepted(job: PlacementJob, plan: PlacementPlan) -> bool:
    """Whether the core takes this plan for the job, after all of its checks."""

    try:
        return plan_placement(job, Answers(plan)) is plan
    except PlacementRefused:
        return False


class Answers:
    """A mode that has its plan already."""

    name: ClassVar[str] = "answers"
    api_version: ClassVar[int] = ROLECALL_API

    def __init__(self, plan: PlacementPlan) -> None:
        self.answer = plan

    def plan(self, job: PlacementJob) -> PlacementPlan:
        return self.answer


def look_ups_are_right(plan: PlacementPlan) -> None:
    """Conflicts and reservations, as the plan and its index tell them, are those of the oracle."""
    occupancy = Occupancy.of(plan)
    sharing = occupancy.sharing_roles()
    for role, others in oracle.conflicts(plan).items():
        assert plan.conflicts(RoleName(role)) == sharing.get(RoleName(role), set()) == others
    for (pool, bundle), share in oracle.reservations(plan).items():
        assert occupancy.share(pool, bundle) == share
    pool, bundle = plan.replicas[-1].pool_id, plan.replicas[-1].bundles[0]
    assert plan.reservation(pool, bundle) == occupancy.share(pool, bundle)


def pools_can_be_cut(job: PlacementJob, plan: PlacementPlan) -> None:
    if job.devices is not None:
        pools = [oracle.node_sizes(pool.nodes) for pool in plan.pools]
        assert oracle.can_be_cut(pools, oracle.node_sizes(job.nodes))
