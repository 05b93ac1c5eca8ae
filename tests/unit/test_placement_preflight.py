"""Refusals before anything starts: each rule, all at once, and modes that break their contract."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar, get_args

import pytest
from attrs import evolve

from rolecall.api import (
    Arrangement,
    EngineId,
    Fix,
    ModelDemand,
    ModelId,
    Nodes,
    Phase,
    PlacementJob,
    PlacementPlan,
    Pool,
    Refusal,
    ReplicaPlacement,
    RoleDemand,
    RoleName,
    TrainingDemand,
)
from rolecall.config.specs import LoopSection, LoopUse
from rolecall.config.structure import StructureError, structure
from rolecall.errors import PlacementRefused, PluginContractError
from rolecall.placement.demand import EngineFacts, JobFacts, RewardFacts
from rolecall.placement.occupancy import Occupancy
from rolecall.placement.preflight import check_plan, plan_placement
from rolecall.placement.sharing_checks import refuse_reservations
from rolecall.testing.demands import placement_job
from rolecall_placement.decoupled import Decoupled
from rolecall_placement.defer import Defer
from rolecall_placement.split import Split


def model(
    name: str = "m", replicas: int = 1, devices: int = 1, tp: int | None = None, pp: int = 1
) -> ModelDemand:
    return ModelDemand(
        model=ModelId(name),
        replicas=replicas,
        devices_per_engine=devices,
        tensor_parallel=devices // pp if tp is None else tp,
        pipeline_parallel=pp,
    )


def role(name: str, *models: ModelDemand, devices: int | None = None, deferrable: bool = True) -> RoleDemand:
    return RoleDemand(
        role=RoleName(name), models=models or (model(),), deferrable=deferrable, devices=devices
    )


def job(
    *roles: RoleDemand, pool: int | None = None, per_node: int = 8, resource: str = "GPU"
) -> PlacementJob:
    return placement_job(*roles, devices=pool, per_node=per_node, resource=resource)


def engine(role_name: str, *, can_sleep: bool = True, resource: str | None = None) -> EngineFacts:
    return EngineFacts(
        role=RoleName(role_name), model=ModelId("m"), backend="some", resource=resource, can_sleep=can_sleep
    )


class Answers:
    """A placement mode that answers what it is told to."""

    name: ClassVar[str] = "answers"
    api_version: ClassVar[int] = 1
    arrangement: ClassVar[Arrangement] = Arrangement.OTHER

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def plan(self, job: PlacementJob) -> PlacementPlan:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


def refusals(job: PlacementJob, mode: object, facts: JobFacts | None = None) -> Sequence[Refusal]:
    with pytest.raises(PlacementRefused) as refused:
        plan_placement(job, mode, facts or JobFacts())  # type: ignore[arg-type]
    return refused.value.refusals


def test_where_nothing_needs_a_device_no_mode_is_asked() -> None:
    plan = plan_placement(job(), Answers(ValueError("no roles")))
    assert (plan.mode, plan.pools, plan.replicas, plan.phases) == ("answers", (), (), ())


# --- shapes, budgets, resources ---------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "numbers", "fix"),
    [
        (
            model(devices=8, tp=2, pp=3),
            "2 × pipeline_parallel 3 = 6, but devices_per_engine = 8",
            "roles.judge.models.m.pipeline_parallel = 4, or engines of 6 devices",
        ),
        (
            model(devices=4, tp=2, pp=1),
            "= 2, but devices_per_engine = 4",
            "roles.judge.models.m.tensor_parallel = 4, or engines of 2 devices",
        ),
    ],
)
def test_the_parallel_product_must_be_the_devices_of_an_engine(
    shape: ModelDemand, numbers: str, fix: str
) -> None:
    (refusal,) = refusals(job(role("judge", shape)), Decoupled())
    assert (refusal.code, refusal.key) == ("parallel-product", "roles.judge.models.m.devices_per_engine")
    assert numbers in refusal.message
    assert refusal.fix == fix


def test_an_engine_across_nodes_must_use_whole_nodes() -> None:
    (refusal,) = refusals(job(role("judge", model(devices=12))), Decoupled())
    assert (refusal.code, refusal.key) == ("engine-partial-node", "roles.judge.models.m.devices_per_engine")
    assert "12 devices spans 1.50 nodes of 8" in refusal.message
    assert "devices_per_engine = 8 with roles.judge.models.m.tensor_parallel = 8" in refusal.fix
    assert "or engines of 16 devices" in refusal.fix
    plan_placement(job(role("judge", model(devices=16))), Decoupled())


def test_a_budget_must_equal_what_the_models_need() -> None:
    (refusal,) = refusals(job(role("judge", model("a", 2, 2), model("b", 1, 4), devices=10)), Decoupled())
    assert (refusal.code, refusal.key) == ("budget-mismatch", "roles.judge.devices")
    assert "10 devices, but the role's models need 8 (a: 2 × 2 + b: 1 × 4)" in refusal.message
    assert refusal.fix == "roles.judge.devices = 8, or leave out roles.judge.devices"


def test_a_budget_of_whole_engines_offers_the_replicas_that_use_it() -> None:
    (refusal,) = refusals(job(role("judge", model("a", 1, 2), devices=6)), Decoupled())
    assert refusal.code == "budget-mismatch"
    assert refusal.fix.endswith(", or roles.judge.models.a.replicas = 3")
    plan_placement(job(role("judge", model("a", 3, 2), devices=6)), Decoupled())


@pytest.mark.parametrize(
    ("budget", "fix"),
    [
        (6, "{0} = 4, or leave out {0}, or {0} = 8 with roles.judge.models.a.replicas = 2"),
        (3, "{0} = 4, or leave out {0}"),
    ],
)
def test_a_budget_that_is_no_multiple_of_an_engine_is_refused(budget: int, fix: str) -> None:
    (refusal,) = refusals(job(role("judge", model("a", 1, 4), devices=budget)), Decoupled())
    assert refusal.code == "budget-not-divisible"
    assert f"{budget} devices can't be divided into engines of 4" in refusal.message
    assert refusal.fix == fix.format("roles.judge.devices")


def test_every_backend_must_run_on_the_jobs_devices() -> None:
    facts = JobFacts(engines=(engine("a", resource="slot"), engine("b", resource="slot"), engine("c")))
    (refusal,) = refusals(job(role("a"), role("b"), role("c")), Decoupled(), facts)
    assert (refusal.code, refusal.key) == ("resource-mismatch", "placement.resource")
    assert "roles.a.models.m, roles.b.models.m" in refusal.message
    assert refusal.fix.startswith('placement.resource = "slot"')
    plan_placement(job(role("a"), role("b"), role("c"), resource="slot"), Decoupled(), facts)


def test_engines_across_nodes_are_only_asked_of_backends_that_have_them() -> None:
    facts = JobFacts(engines=(evolve(engine("judge"), several_nodes=False),))
    (refusal,) = refusals(job(role("judge", model(devices=16), devices=16)), Decoupled(), facts)
    assert (refusal.code, refusal.key) == (
        "engine-on-several-nodes",
        "roles.judge.models.m.devices_per_engine",
    )
    assert "an engine of 16 devices needs several nodes of 8" in refusal.message
    (fix,) = refusal.fixes
    assert dict(fix.assignments) == {
        "roles.judge.models.m.devices_per_engine": 8,
        "roles.judge.models.m.tensor_parallel": 8,
        "roles.judge.devices": 8,
    }
    plan_placement(job(role("judge", model(devices=8))), Decoupled(), facts)


@pytest.mark.parametrize(("groups", "fewer"), [(3, 2), (16, 8), (0, None), (5, 4)])
def test_attention_groups_must_divide_tensor_parallel(groups: int, fewer: int | None) -> None:
    def facts(number: int) -> JobFacts:
        return JobFacts(
            engines=(evolve(engine("judge"), attention_groups=number, attention_groups_key="flags.dp"),)
        )

    wide = job(role("judge", model(devices=16, pp=2)))
    (refusal,) = refusals(wide, Decoupled(), facts(groups))
    key = "roles.judge.models.m.engine_options.flags.dp"
    assert (refusal.code, refusal.key) == ("attention-groups", key)
    assert f"{groups} data-parallel groups can't share tensor_parallel 8" in refusal.message
    assert [fix.assignments for fix in refusal.fixes] == [((key, fewer),)]
    plan_placement(wide, Decoupled(), facts(fewer or 1))


def test_keys_are_written_as_toml_writes_them() -> None:
    (refusal,) = refusals(job(role("judge", model("Qwen/Qwen2.5", devices=4, tp=2))), Decoupled())
    assert refusal.key == 'roles.judge.models."Qwen/Qwen2.5".devices_per_engine'
    assert refusal.fixes[0].assignments == (('roles.judge.models."Qwen/Qwen2.5".tensor_parallel', 4),)


# --- sharing ----------------------------------------------------------------------------


def test_only_roles_that_allow_it_share_devices() -> None:
    stubborn = job(role("writer"), role("judge", deferrable=False), pool=2)
    (refusal,) = refusals(stubborn, Defer())
    assert refusal.code == "role-not-deferrable"
    assert 'role "judge" take turns with "writer"' in refusal.message
    plan_placement(stubborn, Split())


def test_every_model_on_shared_devices_must_be_able_to_sleep() -> None:
    facts = JobFacts(engines=(engine("writer"), engine("judge", can_sleep=False)))
    shared = job(role("writer"), role("judge"), pool=2)
    (refusal,) = refusals(shared, Defer(), facts)
    assert (refusal.code, refusal.key) == ("engine-cannot-sleep", "roles.judge.models.m.engine")
    assert 'share devices with "writer"' in refusal.message
    plan_placement(shared, Split(), facts)


def test_a_model_whose_devices_nobody_shares_need_not_sleep() -> None:
    """The second model of the larger role lies beyond what the other role uses."""
    facts = JobFacts(
        engines=(evolve(engine("writer", can_sleep=False), model=ModelId("late")), engine("judge"))
    )
    plan_placement(
        job(role("writer", model("early", 2), model("late", 1)), role("judge"), pool=3), Defer(), facts
    )


def test_a_role_that_shares_devices_has_something_to_do_in_a_batch() -> None:
    facts = JobFacts(idle_roles=frozenset({RoleName("judge")}))
    shared = job(role("writer"), role("judge"), pool=2)
    (refusal,) = refusals(shared, Defer(), facts)
    assert (refusal.code, refusal.key) == ("role-never-awake", "roles.judge")
    assert 'take turns with "writer"' in refusal.message
    plan_placement(shared, Split(), facts)


def trainer(name: str = "actor", devices: int = 2, *, offload: bool = True) -> TrainingDemand:
    return TrainingDemand(role=RoleName(name), devices=devices, offload=offload)


def test_a_trainer_on_shared_devices_gives_its_memory_up() -> None:
    roles = (role("writer"), role("judge"))
    kept = (
        trainer(offload=False),
        trainer("critic", 1),
        evolve(trainer("reference", 1), on=RoleName("actor")),
    )
    for mode in (Split(), Defer()):
        (refusal,) = refusals(evolve(job(*roles, pool=3), training=kept), mode)
        assert (refusal.code, refusal.key) == ("training-not-offloaded", "training.actor.offload")
        assert refusal.fixes == (Fix((("training.actor.offload", True),)),)
    plan_placement(evolve(job(*roles), training=kept), Decoupled())


USES = ("partial_rollout", "dynamic_batch", "streamed_scoring", "async_training")


def test_a_loop_is_refused_by_name_where_the_layout_cannot_carry_it() -> None:
    shared = evolve(job(role("writer"), role("judge"), pool=2), training=(trainer(),))
    found = refusals(shared, Defer(), JobFacts(loop_uses=USES))
    assert [refusal.code for refusal in found] == ["loop-not-deferred"] * 3 + ["training-not-overlapped"]
    for refusal, word in zip(found, USES, strict=True):
        assert refusal.key == "loop.uses"
        assert f'the loop uses "{word}"' in refusal.message
        others = [other for other in USES if other != word]
        assert refusal.fixes == (Fix((("loop.uses", others),)),)


def test_what_a_loop_does_depends_on_who_takes_turns_with_whom() -> None:
    roles = (role("writer"), role("judge"))
    facts = JobFacts(loop_uses=USES)
    (refusal,) = refusals(evolve(job(*roles, pool=2), training=(trainer(),)), Split(), facts)
    assert refusal.code == "training-not-overlapped"
    assert '"actor" take turns with "judge", "writer"' in refusal.message
    plan_placement(job(*roles, pool=2), Split(), facts)
    plan_placement(evolve(job(*roles), training=(trainer(),)), Decoupled(), facts)


def test_the_words_of_a_loop_are_those_of_the_job_file() -> None:
    assert {*get_args(LoopUse)} == {*USES}
    with pytest.raises(StructureError, match='"partial_rolout"'):
        structure(LoopSection, {"uses": ["partial_rolout"]})


def test_rewards_of_a_job_that_takes_turns_must_support_deferred_scoring() -> None:
    facts = JobFacts(
        rewards=(
            RewardFacts(reward="good", adapter="late", supports_deferred=True),
            RewardFacts(reward="bad", adapter="early", supports_deferred=False),
        )
    )
    shared = job(role("writer"), role("judge"), pool=2)
    (refusal,) = refusals(shared, Defer(), facts)
    assert (refusal.code, refusal.key) == ("reward-not-deferred", "rewards.bad.adapter")
    assert '"early" does not declare supports_deferred' in refusal.message
    plan_placement(shared, Split(), facts)


def test_all_refusals_come_at_once() -> None:
    facts = JobFacts(
        engines=(engine("writer", resource="slot"), engine("judge", can_sleep=False)),
        rewards=(RewardFacts(reward="r", adapter="early", supports_deferred=False),),
    )
    found = refusals(
        job(
            role("writer", model(devices=4, tp=2), devices=3),
            role("judge", model(devices=2), devices=4, deferrable=False),
            pool=8,
        ),
        Defer(),
        facts,
    )
    assert sorted(refusal.code for refusal in found) == [
        "budget-mismatch",
        "budget-not-divisible",
        "engine-cannot-sleep",
        "parallel-product",
        "resource-mismatch",
        "reward-not-deferred",
        "role-not-deferrable",
    ]
    assert all(refusal.key and refusal.message and refusal.fix for refusal in found)


def test_one_refusal_hides_no_other() -> None:
    """Neither an engine that can't be placed nor a pool without room keeps the rest from being told."""
    facts = JobFacts(engines=(engine("writer", can_sleep=False),), loop_uses=("dynamic_batch",))
    found = refusals(job(role("writer", model(devices=12)), role("judge"), pool=4), Defer(), facts)
    assert [refusal.code for refusal in found] == [
        "engine-partial-node",
        "pool-too-small",
        "engine-cannot-sleep",
        "loop-not-deferred",
    ]


def test_what_the_mode_refuses_stands_beside_what_the_core_refuses() -> None:
    found = refusals(job(role("judge", model(devices=4, tp=2))), Split())
    assert [refusal.code for refusal in found] == ["parallel-product", "pool-missing"]


def test_a_fix_that_takes_the_devices_out_is_told_as_it_is() -> None:
    refusal = Refusal(
        code="no-limit",
        key="placement.devices",
        message="must not be set",
        fix="leave it out",
        fixes=(Fix((("placement.devices", None),)),),
    )
    assert refusals(TWO, Answers((refusal,))) == (refusal,)


# --- modes of other people --------------------------------------------------------------

TWO = job(role("writer", model(replicas=2)), role("judge"), pool=4)


def replica(
    name: str, *bundles: int, index: int = 0, pool: str = "p", model_name: str = "m"
) -> ReplicaPlacement:
    return ReplicaPlacement(
        engine=EngineId(f"m/replica-{index}"),
        role=RoleName(name),
        model=ModelId(model_name),
        pool_id=pool,
        bundles=bundles,
    )


GOOD = PlacementPlan(
    mode="answers",
    pools=(Pool(pool_id="p", resource="GPU", nodes=Nodes.equal(4, per_node=8)),),
    replicas=(replica("writer", 0), replica("writer", 1, index=1), replica("judge", 2)),
    phases=(Phase(name="all", roles=(RoleName("writer"), RoleName("judge"))),),
)


def test_a_sound_plan_of_a_foreign_mode_is_taken_as_it_is() -> None:
    assert plan_placement(TWO, Answers(GOOD)) is GOOD


def judged(*replicas: ReplicaPlacement) -> PlacementPlan:
    """The good plan with other replicas of the judge."""
    return evolve(GOOD, replicas=(*GOOD.replicas[:2], *replicas))


def phased(*phases: tuple[str, ...]) -> PlacementPlan:
    """The good plan with other phases, each given as its name and its roles."""
    return evolve(
        GOOD, phases=tuple(Phase(name=name, roles=tuple(map(RoleName, roles))) for name, *roles in phases)
    )


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        (judged(), "judge's m/replica-0 is placed 0 times"),
        (judged(replica("judge", 2), replica("judge", 3)), "judge's m/replica-0 is placed 2 times"),
        (
            judged(replica("judge", 2), replica("ghost", 3)),
            "ghost's m/replica-0 is placed, but the job has no",
        ),
        (judged(replica("judge", 2, 3)), "got 2 bundles, devices_per_engine is 1"),
        (judged(replica("judge", 2, model_name="x")), 'as a replica of model "x"'),
        (judged(replica("judge", 2, pool="q")), 'pool "q", which is not in the plan'),
        (evolve(GOOD, pools=GOOD.pools * 2), 'pool "p" is listed 2 times'),
        (evolve(GOOD, pools=(evolve(GOOD.pools[0], nodes=Nodes(())),)), 'pool "p" has 0 devices'),
        (
            evolve(GOOD, pools=(evolve(GOOD.pools[0], resource="slot"),)),
            'pool "p" is made of "slot", the job has "GPU"',
        ),
        (
            evolve(GOOD, pools=(evolve(GOOD.pools[0], nodes=Nodes.of([9])),)),
            'pool "p" has 1 node of 9 or more',
        ),
        (phased(("all", "writer", "judge"), ("all", "judge")), 'phase "all" is listed 2 times'),
        (phased(("all", "writer")), 'role "judge" is in no phase'),
        (phased(("all", "writer", "judge", "ghost")), 'role "ghost", which the job has not'),
    ],
)
def test_a_plan_that_is_no_layout_of_the_job_is_the_modes_defect(plan: PlacementPlan, complaint: str) -> None:
    found = refusals(TWO, Answers(plan))
    assert any(complaint in refusal.message for refusal in found)
    assert "mode-contract" in {refusal.code for refusal in found}
    assert all("tell the authors" in refusal.fix for refusal in found)


@pytest.mark.parametrize("bundle", [-1, 4, 99])
def test_a_bundle_outside_its_pool_is_refused(bundle: int) -> None:
    (refusal,) = refusals(TWO, Answers(judged(replica("judge", bundle))))
    assert refusal.code == "bundle-outside-pool"
    assert f"on bundle {bundle} of pool" in refusal.message


@pytest.mark.parametrize("bundles", [(3, 4), (0, 2)])
def test_an_engine_across_a_node_border_or_with_gaps_is_refused(bundles: tuple[int, ...]) -> None:
    wide = job(role("judge", model(devices=2)), per_node=4, pool=8)
    plan = PlacementPlan(
        mode="answers",
        pools=(Pool(pool_id="p", resource="GPU", nodes=Nodes.equal(8, per_node=4)),),
        replicas=(replica("judge", *bundles),),
        phases=(Phase(name="all", roles=(RoleName("judge"),)),),
    )
    (refusal,) = refusals(wide, Answers(plan))
    assert refusal.code == "engine-straddles-nodes"


@pytest.mark.parametrize("bundles", [(1, 1), (1, 0)])
def test_bundles_of_a_replica_must_ascend(bundles: tuple[int, ...]) -> None:
    plan = evolve(GOOD, replicas=(replica("judge", *bundles),))
    found = refusals(job(role("judge", model(devices=2)), pool=4), Answers(plan))
    assert any("must ascend" in refusal.message for refusal in found)


def test_roles_on_one_bundle_in_one_phase_are_refused_as_co_resident() -> None:
    plan = judged(replica("judge", 1))
    (refusal,) = refusals(TWO, Answers(plan))
    assert (refusal.code, refusal.key) == ("shared-co-resident", "placement.mode")
    assert 'roles "writer" and "judge" are on bundle 1 of pool "p" in the same phase (all)' in refusal.message
    assert "lowering a memory fraction does not help" in refusal.fix


def test_one_shared_phase_among_others_is_enough_to_refuse() -> None:
    phases = phased(("w", "writer"), ("j", "judge"), ("both", "writer", "judge")).phases
    plan = evolve(judged(replica("judge", 1)), phases=phases)
    assert [refusal.code for refusal in refusals(TWO, Answers(plan))] == ["shared-co-resident"]
    assert check_plan(TWO, evolve(plan, phases=phases[:2])) == []


def test_two_replicas_of_one_role_on_one_bundle_are_refused() -> None:
    plan = evolve(GOOD, replicas=(replica("writer", 0), replica("writer", 0, index=1), replica("judge", 2)))
    stubborn = evolve(TWO, roles=tuple(evolve(one, deferrable=False) for one in TWO.roles))
    (refusal,) = refusals(stubborn, Answers(plan))
    assert refusal.code == "shared-co-resident"
    assert 'two replicas of role "writer"' in refusal.message


def test_more_tenants_than_reservations_are_refused() -> None:
    crowd = [role(f"r{index}") for index in range(10_001)]
    plan = PlacementPlan(
        mode="answers",
        pools=(Pool(pool_id="p", resource="GPU", nodes=Nodes.equal(1, per_node=8)),),
        replicas=tuple(replica(one.role, 0) for one in crowd),
        phases=tuple(Phase(name=one.role, roles=(one.role,)) for one in crowd),
    )
    (refusal,) = refuse_reservations(Occupancy.of(plan))
    assert refusal.code == "reservation-exceeded"
    assert "10001 actors share bundle 0" in refusal.message


@pytest.mark.parametrize("answer", [None, (), ("no",), [], {"plan": 1}])
def test_an_answer_that_is_neither_plan_nor_refusals_breaks_the_contract(answer: object) -> None:
    with pytest.raises(PluginContractError, match='placement mode "answers" answered'):
        plan_placement(TWO, Answers(answer))


def test_a_mode_that_raises_is_named_and_its_error_kept() -> None:
    fault = ZeroDivisionError("oops")
    with pytest.raises(PluginContractError, match='"answers" raised ZeroDivisionError') as broken:
        plan_placement(TWO, Answers(fault))
    assert broken.value.__cause__ is fault


# --- speed ------------------------------------------------------------------------------


def test_ten_thousand_devices_with_twenty_models_are_planned_in_well_under_a_second() -> None:
    models = [model(f"m{index}", 500, 1) for index in range(20)]
    large = job(role("writer", *models), role("judge", *models), pool=10_000)
    start = time.process_time()
    plan_placement(large, Defer())
    assert time.process_time() - start < 0.9
