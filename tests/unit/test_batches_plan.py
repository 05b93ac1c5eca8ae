"""From the role plugins of a job to the stages of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rolecall.api import NamedReward, Stage, StageRequest, WeightSource
from rolecall.batches.plan import plan_stages
from rolecall.errors import JobError
from rolecall_plugins.rewards.exact_match import ExactMatch, ExactMatchOptions
from rolecall_plugins.rewards.genrm_judge import GenRMJudge, GenRMJudgeOptions
from rolecall_roles.genrm.options import GenRMOptions
from rolecall_roles.genrm.role import GenRMRole
from rolecall_roles.rollout.options import RolloutOptions
from rolecall_roles.rollout.role import RolloutRole
from rolecall_roles.teacher.external_options import ExternalTeacher
from rolecall_roles.teacher.options import TeacherOptions
from rolecall_roles.teacher.role import TeacherRole

JUDGE, EXACT = GenRMJudge(GenRMJudgeOptions()), ExactMatch(ExactMatchOptions())


def reward(name: str, adapter: Any) -> NamedReward:
    return NamedReward(name=name, adapter=adapter, on_error="fail_batch", retries=0, timeout_s=1.0)


def job(*plugins: Any, rewards: Sequence[NamedReward] = ()) -> Any:
    roles = {
        plugin.name: SimpleNamespace(
            name=plugin.name,
            plugin=plugin,
            config=SimpleNamespace(route_keys={"sums": "model"}),
            models={"model": SimpleNamespace(weight_source=WeightSource.ACTOR)},
        )
        for plugin in plugins
    }
    return SimpleNamespace(roles=roles, rewards=tuple(rewards))


ROLLOUT, GENRM = RolloutRole(RolloutOptions()), GenRMRole(GenRMOptions())
TEACHER = TeacherRole(TeacherOptions())


class Role:
    """A third party's role with stages of its own."""

    name = "verifier"

    def __init__(self, *stages: Stage, generates: bool = False) -> None:
        self.stages = stages
        self.generates = generates
        self.requests: list[StageRequest] = []

    def generation(self) -> Any:
        return _never if self.generates else None

    def scoring_stages(self, request: StageRequest) -> Sequence[Stage]:
        self.requests.append(request)
        return self.stages


async def _never(*_: Any) -> Any:
    raise AssertionError("a plan runs nothing")


def stage(name: str, role: str, writes: str) -> Stage:
    return Stage(name=name, role=role, reads=frozenset(), writes=frozenset({writes}), run=_never)


def test_the_first_party_roles_make_a_whole_batch() -> None:
    plan = plan_stages(job(ROLLOUT, GENRM, TEACHER, rewards=[reward("judge", JUDGE), reward("exact", EXACT)]))
    assert plan.generation_role == "rollout"
    assert [(one.name, one.role) for one in plan.stages] == [
        ("rules", None),
        ("judge", "genrm"),
        ("teacher", "teacher"),
    ]
    assert plan.rewards == ("judge", "exact")


def test_without_rewards_there_is_neither_judge_nor_rules() -> None:
    plan = plan_stages(job(ROLLOUT, GENRM, TEACHER))
    assert [one.name for one in plan.stages] == ["teacher"]
    assert plan.rewards == ()


def test_a_role_learns_its_rewards_route_keys_and_models() -> None:
    verifier = Role(stage("check", "verifier", "reward:v"))
    adapter = SimpleNamespace(role="verifier", name="verify", reads=frozenset())
    rewards = [reward("exact", EXACT), reward("v", adapter)]
    plan_stages(job(ROLLOUT, verifier, rewards=rewards))
    (request,) = verifier.requests
    assert request.rewards == (rewards[1],)
    assert request.route_keys == {"sums"}
    assert request.models == {"model": WeightSource.ACTOR}


def test_external_teachers_alone_need_no_role_awake() -> None:
    external = ExternalTeacher(urls=("http://far:1",), model_path="m", vocabulary_size=9)
    alone = job(ROLLOUT, TeacherRole(TeacherOptions(external={"far": external})))
    alone.roles["teacher"].models = {}
    (teacher,) = plan_stages(alone).stages
    assert (teacher.name, teacher.role) == ("teacher", None)
    assert "teacher_weight_version" not in teacher.writes


@pytest.mark.parametrize(("plugins", "found"), [((GENRM, TEACHER), "none"), ((), "none")])
def test_a_batch_needs_a_role_that_makes_samples(plugins: Any, found: str) -> None:
    with pytest.raises(JobError, match=f"exactly one role that makes samples; .*: {found}"):
        plan_stages(job(*plugins))


def test_two_roles_that_make_samples_are_refused() -> None:
    with pytest.raises(JobError, match="these do: rollout, verifier"):
        plan_stages(job(ROLLOUT, Role(generates=True)))


def test_a_reward_that_nobody_computes_is_refused() -> None:
    adapter = SimpleNamespace(role="verifier", name="verify", reads=frozenset())
    with pytest.raises(JobError, match=r'reward "v" \(verify\) is computed by no stage; the role "verifier"'):
        plan_stages(job(ROLLOUT, Role(), rewards=[reward("v", adapter)]))


def test_a_stage_of_a_role_that_the_job_does_not_have_is_refused() -> None:
    with pytest.raises(JobError, match='stage "check" of role "verifier" needs the role "oracle"'):
        plan_stages(job(ROLLOUT, Role(stage("check", "oracle", "x"))))


def test_stages_of_different_roles_may_not_write_one_field() -> None:
    with pytest.raises(JobError, match='field "teacher_log_probs" is written by'):
        plan_stages(job(ROLLOUT, TEACHER, Role(stage("check", "verifier", "teacher_log_probs"))))
