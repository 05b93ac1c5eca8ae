"""The first-party roles keep the contract of their kind."""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import evolve

from rolecall.api import Sample, StageRequest, WeightSource
from rolecall.testing import RoleContract
from rolecall_roles.genrm.role import GenRMRole
from rolecall_roles.rollout.role import RolloutRole
from rolecall_roles.teacher.role import TeacherRole


class TestRollout(RoleContract):
    plugin = RolloutRole

    def test_it_generates(self) -> None:
        assert self.fresh().generation() is not None


class TestTeacher(RoleContract):
    plugin = TeacherRole

    def test_it_has_a_stage_of_its_own(self) -> None:
        assert [stage.role for stage in self.fresh().scoring_stages(StageRequest())] == [self.plugin.name]


class TestTeacherWithoutTopK(RoleContract):
    plugin = TeacherRole
    options: ClassVar = {"top_k": 0, "route_by": "metadata.level"}


class TestTeacherWithUnion(RoleContract):
    plugin = TeacherRole
    options: ClassVar = {"top_k": 3, "union": True, "union_window": 2}

    def samples(self) -> list[Sample]:
        """Half of them have the policy's own most probable tokens."""
        return [
            evolve(sample, rollout_topk_ids=tuple((token, token + 1) for token in sample.response_ids))
            if number % 2
            else sample
            for number, sample in enumerate(super().samples())
        ]


class TestTeacherWithExternal(RoleContract):
    """Beside its own models it has an external teacher, to which none of the samples goes."""

    plugin = TeacherRole
    options: ClassVar = {
        "external": {
            "far": {
                "urls": ["http://127.0.0.1:1"],
                "model_path": "m",
                "vocabulary_size": 9,
                "route_keys": ["far"],
            }
        }
    }

    def test_its_stage_needs_no_role_where_all_teachers_are_external(self) -> None:
        stages = [self.fresh().scoring_stages(StageRequest(models=models)) for models in ({}, MODELS)]
        assert [stage.role for (stage,) in stages] == [None, self.plugin.name]
        assert ["teacher_weight_version" in stage.writes for (stage,) in stages] == [False, True]


MODELS = {"follower": WeightSource.ACTOR}
MESSAGES = [{"role": "user", "content": "Is 2 + 2 = 4?"}]


class TestGenRM(RoleContract):
    plugin = GenRMRole
    options: ClassVar = {"chat_template_kwargs": {"enable_thinking": False}}

    def payloads(self) -> list[dict[str, Any]]:
        judge = {"messages": MESSAGES, "sampling_params": {"temperature": 0, "max_new_tokens": 4}, "rid": "r"}
        return [*super().payloads(), {"messages": MESSAGES}, judge]

    def bad_payloads(self) -> list[tuple[str, dict[str, Any]]]:
        return [
            *super().bad_payloads(),
            ("messages", {"messages": []}),
            ("messages[0].content", {"messages": [{"role": "user"}]}),
            ("text", {"messages": MESSAGES, "text": "both"}),
            ("sampling_params.n", {"messages": MESSAGES, "sampling_params": {"n": 2}}),
        ]

    def test_rewards_may_name_it(self) -> None:
        stages = self.fresh().scoring_stages(StageRequest(rewards=self._rewards()))
        assert [stage.role for stage in stages] == [self.plugin.name]
