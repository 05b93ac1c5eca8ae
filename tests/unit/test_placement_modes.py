"""The three first-party modes: what they lay out, what they refuse, and what always holds."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.api import (
    Nodes,
    PlacementJob,
    PlacementMode,
    PlacementPlan,
    RoleDemand,
    RoleName,
    TrainingDemand,
)
from rolecall.errors import PlacementRefused
from rolecall.placement.enough import with_room
from rolecall.placement.preflight import plan_placement
from rolecall.testing.demands import any_job, placement_job, role_demand
from rolecall_placement.decoupled import Decoupled
from rolecall_placement.defer import Defer
from rolecall_placement.split import Split

MODES = [Decoupled(), Split(), Defer()]


def job(*roles: RoleDemand, pool: int | None, per_node: int = 8) -> PlacementJob:
    return placement_job(*roles, devices=pool, per_node=per_node, resource="slot")


WRITER, JUDGE, SCORER = (
    role_demand("writer", (4, 1)),
    role_demand("judge", (1, 2)),
    role_demand("scorer", (2, 1)),
)


def bundles(plan: PlacementPlan, name: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(replica.pool_id, replica.bundles) for replica in plan.replicas_of(RoleName(name))]


def test_decoupled_gives_each_role_a_pool_of_its_own_from_bundle_0() -> None:
    plan = plan_placement(job(WRITER, JUDGE, SCORER, pool=None), Decoupled())
    assert [(pool.pool_id, pool.devices) for pool in plan.pools] == [
        ("writer", 4),
        ("judge", 2),
        ("scorer", 2),
    ]
    assert bundles(plan, "writer") == [("writer", (0,)), ("writer", (1,)), ("writer", (2,)), ("writer", (3,))]
    assert bundles(plan, "judge") == [("judge", (0, 1))]
    assert bundles(plan, "scorer") == [("scorer", (0,)), ("scorer", (1,))]
    assert [phase.roles for phase in plan.phases] == [("writer", "judge", "scorer")]
    assert plan.conflicts(RoleName("writer")) == frozenset()


def test_split_lays_slices_side_by_side_in_file_order() -> None:
    plan = plan_placement(job(WRITER, JUDGE, SCORER, pool=8), Split())
    assert [pool.devices for pool in plan.pools] == [8]
    assert [replica.bundles for replica in plan.replicas] == [(0,), (1,), (2,), (3,), (4, 5), (6,), (7,)]
    assert [(phase.name, phase.roles) for phase in plan.phases] == [
        ("inference", ("writer", "judge", "scorer"))
    ]
    assert plan.conflicts(RoleName("judge")) == frozenset()


def test_defer_lets_roles_reuse_bundles_from_0_in_a_phase_each() -> None:
    plan = plan_placement(job(WRITER, JUDGE, SCORER, pool=4), Defer())
    assert bundles(plan, "judge") == [("shared", (0, 1))]
    assert bundles(plan, "scorer") == [("shared", (0,)), ("shared", (1,))]
    assert [(phase.name, phase.roles) for phase in plan.phases] == [
        ("writer", ("writer",)),
        ("judge", ("judge",)),
        ("scorer", ("scorer",)),
    ]
    assert plan.conflicts(RoleName("writer")) == {"judge", "scorer"}
    assert plan.reservation("shared", 0) == 0.3333
    assert plan.reservation("shared", 3) == 1.0


def test_split_skips_bundles_rather_than_straddle_and_says_so_when_that_does_not_fit() -> None:
    uneven = (role_demand("writer", (3, 1)), role_demand("judge", (1, 2)))
    plan = plan_placement(job(*uneven, pool=6, per_node=4), Split())
    assert bundles(plan, "judge") == [("shared", (4, 5))]
    with pytest.raises(PlacementRefused) as refused:
        plan_placement(job(*uneven, pool=5, per_node=4), Split())
    (refusal,) = refused.value.refusals
    assert refusal.code == "pool-too-small"
    assert "(writer 3 + judge 2 = 5)" in refusal.message
    assert refusal.message.endswith("which has 5, as no engine may straddle two nodes")
    assert refusal.fix.startswith("placement.devices = 6,")


@pytest.mark.parametrize(
    ("mode", "pool", "code", "numbers"),
    [
        (Split(), None, "pool-missing", "at least 8"),
        (Defer(), None, "pool-missing", "at least 4"),
        (Split(), 7, "pool-too-small", "writer 4 + judge 2 + scorer 2"),
        (Defer(), 3, "pool-too-small", "too large: writer 4"),
        (Decoupled(), 7, "pool-too-small", "writer 4 + judge 2 + scorer 2 = 8); the job has 7"),
    ],
)
def test_a_pool_that_is_missing_too_small_or_useless_is_refused(
    mode: PlacementMode, pool: int | None, code: str, numbers: str
) -> None:
    with pytest.raises(PlacementRefused) as refused:
        plan_placement(job(WRITER, JUDGE, SCORER, pool=pool), mode)
    (refusal,) = refused.value.refusals
    assert (refusal.code, refusal.key) == (code, "placement.devices")
    assert numbers in refusal.message
    assert refusal.fixes


@pytest.mark.parametrize("pool", [None, 1])
@pytest.mark.parametrize("mode", [Split(), Defer()])
def test_the_suggested_pool_size_makes_the_plan_pass(mode: PlacementMode, pool: int | None) -> None:
    roles = (role_demand("writer", (3, 3)), role_demand("judge", (1, 8), (1, 1)))
    with pytest.raises(PlacementRefused) as refused:
        plan_placement(job(*roles, pool=pool, per_node=4), mode)
    (fix,) = refused.value.refusals[0].fixes
    ((key, suggested),) = fix.assignments
    assert key == "placement.devices"
    plan_placement(job(*roles, pool=suggested, per_node=4), mode)
    with pytest.raises(PlacementRefused):
        plan_placement(job(*roles, pool=suggested - 1, per_node=4), mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_trainer_is_placed_where_no_role_has_engines(mode: PlacementMode) -> None:
    trainer = (TrainingDemand(role=RoleName("actor"), devices=12),)
    plan = plan_placement(evolve(job(pool=None), training=trainer), mode)
    assert [(pool.devices, [*pool.nodes.sizes()]) for pool in plan.pools] == [(12, [8, 4])]
    assert [placement.bundles for placement in plan.training] == [tuple(range(12))]
    assert [phase.roles for phase in plan.phases] == [("actor",)]


def test_room_on_unequal_nodes_is_asked_for_as_nodes() -> None:
    nodes = Nodes.of([8, 8, 4])
    roles = (role_demand("writer", (2, 8)), role_demand("judge", (1, 8)))
    with pytest.raises(PlacementRefused) as refused:
        plan_placement(PlacementJob(resource="GPU", nodes=nodes, roles=roles), Split())
    (refusal,) = refused.value.refusals
    assert (refusal.key, str(refusal.fixes[0])) == ("placement.nodes", "placement.nodes = [8, 8, 8, 4]")
    assert "= 24) in a shared pool, which has 20" in refusal.message


# --- what always holds ------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@settings(max_examples=60)
@given(chance=st.randoms(use_true_random=False))
def test_a_job_without_room_is_told_the_least_that_is_enough(mode: PlacementMode, chance: Random) -> None:
    """On equal and unequal nodes, with and without a trainer: the fix works, and nothing less does."""
    candidate = any_job(chance.randrange)
    answer = mode.plan(candidate)
    if isinstance(answer, PlacementPlan):
        return
    (refusal,) = answer
    enough = with_room(candidate, answer)
    if enough is None:
        assert "engines of another size" in refusal.fix
        return
    assert isinstance(mode.plan(enough), PlacementPlan)
    assert enough.devices is not None
    if candidate.per_node is not None:
        less = Nodes.equal(enough.devices - 1, per_node=candidate.per_node)
    else:
        sizes = Counter(enough.nodes.sizes())
        added = sizes - Counter(candidate.nodes.sizes())
        less = Nodes.of(
            sorted((sizes - Counter({*added})).elements(), reverse=True)
        )  # one of each that is new
    assert not less.runs or not isinstance(mode.plan(evolve(candidate, nodes=less)), PlacementPlan)
