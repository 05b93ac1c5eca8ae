"""The order of stages: correct, with the fewest hand-overs, and the same every time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.api import Stage, StageContext
from rolecall.batches.sample import Sample, Scores
from rolecall.batches.schedule import is_generated, order_stages
from rolecall.errors import JobError


async def _never(samples: Sequence[Sample], context: StageContext) -> Scores:
    raise AssertionError("an order is made without running anything")


def stage(name: str, role: str | None, reads: Sequence[str] = (), writes: Sequence[str] = ()) -> Stage:
    return Stage(
        name=name, role=role, reads=frozenset(reads), writes=frozenset(writes or [f"by_{name}"]), run=_never
    )


def names(stages: Sequence[Stage]) -> list[str]:
    return [stage.name for stage in stages]


def handovers(stages: Sequence[Stage], awake: str | None) -> int:
    count = 0
    for stage in stages:
        if stage.role not in (None, awake):
            count, awake = count + 1, stage.role
    return count


def test_what_is_read_is_written_before() -> None:
    stages = [
        stage("last", "a", reads=["by_middle"]),
        stage("middle", "b", reads=["by_first", "response"]),
        stage("first", "a", reads=["prompt.answer"]),
    ]
    assert names(order_stages(stages, awake="a")) == ["first", "middle", "last"]


def test_stages_of_one_role_run_in_one_turn() -> None:
    stages = [stage("j1", "judge"), stage("t1", "teacher"), stage("j2", "judge"), stage("t2", "teacher")]
    assert names(order_stages(stages, awake="rollout")) == ["j1", "j2", "t1", "t2"]


def test_the_role_that_is_awake_goes_first() -> None:
    stages = [stage("judge", "judge"), stage("student", "rollout")]
    assert names(order_stages(stages, awake="rollout")) == ["student", "judge"]


def test_waiting_for_a_second_stage_of_a_role_saves_a_handover() -> None:
    # Taking judge first would need it twice: judge, teacher, judge.
    stages = [
        stage("early", "judge"),
        stage("late", "judge", reads=["by_teacher"]),
        stage("teacher", "teacher"),
    ]
    ordered = order_stages(stages, awake=None)
    assert names(ordered) == ["teacher", "early", "late"]
    assert handovers(ordered, None) == 2


def test_rules_need_no_role_and_no_handover() -> None:
    stages = [stage("judge", "judge"), stage("rules", None), stage("mixed", None, reads=["by_judge"])]
    assert names(order_stages(stages, awake="rollout")) == ["rules", "judge", "mixed"]


def test_no_stages_are_in_order() -> None:
    assert order_stages([], awake="rollout") == ()


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([stage("a", "r", reads=["mood"])], 'stage "a" reads "mood", which no stage writes'),
        (
            [stage("a", "r", writes=["x"]), stage("b", "r", writes=["x"])],
            'field "x" is written by "a" and by "b"',
        ),
        ([stage("a", "r", writes=["response"])], 'stage "a" writes "response", which generation provides'),
        ([stage("a", "r", writes=["reward"])], 'stage "a" writes "reward", which the core combines'),
        ([stage("a", "r"), stage("a", "r", writes=["y"])], 'stage "a" is declared 2 times'),
        ([stage("generate", "r")], 'stage "generate" has the name of a phase'),
    ],
)
def test_a_set_of_stages_that_can_not_work_is_refused(stages: Sequence[Stage], message: str) -> None:
    with pytest.raises(JobError, match=message):
        order_stages(stages, awake=None)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(JobError) as refused:
        order_stages([stage("a", "r", reads=["x", "y"]), stage("a", "r", writes=["z"])], awake=None)
    assert len(str(refused.value).splitlines()) == 3


def test_stages_that_wait_for_each_other_are_named_with_their_fields() -> None:
    stages = [
        stage("a", "r", reads=["by_c"]),
        stage("b", "r", reads=["by_a"]),
        stage("c", "r", reads=["by_b"]),
        stage("behind", "r", reads=["by_c"]),
    ]
    with pytest.raises(JobError) as refused:
        order_stages(stages, awake=None)
    assert str(refused.value) == (
        'stages wait for each other: "a" reads "by_c" from "c", "c" reads "by_b" from "b", '
        '"b" reads "by_a" from "a"'
    )


@pytest.mark.parametrize(
    ("field", "generated"),
    [
        ("response", True),
        ("prompt_ids", True),
        ("prompt.answer", True),
        ("prompt.metadata.level", True),
        ("scores", False),
        ("prompt.metadat", False),
        ("reward", False),
    ],
)
def test_what_generation_provides(field: str, generated: bool) -> None:
    assert is_generated(field) is generated


@st.composite
def acyclic_stages(draw: st.DrawFn) -> list[Stage]:
    """Up to 5 stages of up to 3 roles; each reads from stages that come before it in a hidden order."""
    count = draw(st.integers(1, 5))
    made = []
    for index in range(count):
        reads = draw(st.sets(st.sampled_from([f"by_{i}" for i in range(index)]))) if index else set()
        made.append(stage(str(index), draw(st.sampled_from(["a", "b", "c", None])), reads=sorted(reads)))
    return draw(st.permutations(made))


@settings(deadline=None)  # the brute force beside it is slow on a busy machine
@given(acyclic_stages(), st.sampled_from(["a", None]))
def test_no_correct_order_has_fewer_handovers(stages: list[Stage], awake: str | None) -> None:
    def is_correct(order: Sequence[Stage]) -> bool:
        return all(
            field in {written for before in order[:place] for written in before.writes}
            for place, stage in enumerate(order)
            for field in stage.reads
        )

    ordered = order_stages(stages, awake=awake)
    assert sorted(names(ordered)) == sorted(names(stages))
    assert is_correct(ordered)
    best = min(handovers(order, awake) for order in permutations(stages) if is_correct(order))
    assert handovers(ordered, awake) == best
    assert ordered == order_stages(stages, awake=awake)
