"""What is refused before a batch may be published, and how the refusal reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from rolecall.batches.concurrency import gather_bounded
from rolecall.batches.sample import Prompt, Sample
from rolecall.batches.staging import StagingArea
from rolecall.batches.validation import check_generated, check_scores
from rolecall.errors import ScoringError
from rolecall.interfaces.role import Stage

PROMPTS = [Prompt(prompt_id=name, text=f"text of {name}") for name in ("p", "q", "r")]


def sample(group: str, index: int = 0) -> Sample:
    return Sample(
        sample_id=f"{group}/{index}",
        group_id=group,
        prompt=Prompt(prompt_id=group, text="?"),
        prompt_ids=(1, 2),
        response="yes",
        response_ids=(3, 4, 5),
        rollout_log_probs=(-0.1, -0.2, -0.3),
        finish_reason="stop",
        weight_version="1",
    )


P0, P1, Q0, Q1 = sample("p"), sample("p", 1), sample("q"), sample("q", 1)


def test_complete_groups_in_prompt_order_pass() -> None:
    check_generated([P0, P1, Q0, Q1], PROMPTS, 2, "generate")


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no samples were made for 3 prompts"),
        ([P0, P1, Q0], 'group "q" has 1 of 2 samples'),
        ([P0, P1, Q0, Q1, sample("q", 2)], 'group "q" has 3 of 2 samples'),
        ([P0, P0], "one sample object was returned twice"),
        ([P0, sample("p")], 'sample id "p/0" was used 2 times'),
        ([sample("x"), sample("x", 1)], 'group "x" belongs to no prompt'),
        ([Q0, Q1, P0, P1], "not in the order of their prompts"),
        ([P0, Q0, P1, Q1], "not in the order of their prompts"),
        ([P0, evolve(P1, prompt_ids=())], '"p/1": has no prompt token ids'),
        ([P0, evolve(P1, rollout_log_probs=(-0.1,))], "has 3 response tokens and 1 log-probabilities"),
        ([P0, evolve(P1, rollout_log_probs=(0.0, float("nan"), 0.0))], "not finite"),
        ([P0, evolve(P1, scores={"reward": 1.0})], "has scores before any stage ran: reward"),
    ],
)
def test_what_generation_may_not_return(samples: Sequence[Sample], message: str) -> None:
    with pytest.raises(ScoringError, match=message):
        check_generated(samples, PROMPTS, 2, "generate")


async def _never(*_: Any) -> Any:
    raise AssertionError


STAGE = Stage(name="s", role=None, reads=frozenset(), writes=frozenset({"x", "y"}), run=_never)
GOOD = {"x": 1.5, "y": np.zeros((2, 3), dtype=np.float32)}


@pytest.mark.parametrize(
    "value",
    [1, 2.5, np.float32(1), "text", {"a": 1.0, "b": 2}, np.array([True]), np.zeros(0, dtype=np.int32)],
)
def test_values_that_may_be_written(value: Any) -> None:
    check_scores(STAGE, [P0, P1], {"p/0": {**GOOD, "x": value}, "p/1": None})


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        float("nan"),
        float("inf"),
        np.float32("nan"),
        {"a": float("nan")},
        {"a": "1"},
        {"a": True},
        {1: 1.0},
        [1.0],
        np.array([1.0, np.inf]),
        np.array(["text"]),
        np.array([None]),
        np.array([1j]),
    ],
)
def test_values_that_may_not_be_written(value: Any) -> None:
    with pytest.raises(ScoringError, match='stage "s": sample "p/1": field "x"'):
        check_scores(STAGE, [P0, P1], {"p/0": GOOD, "p/1": {**GOOD, "x": value}})


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"p/0": GOOD}, '1 of 2 samples were not scored, first "p/1"'),
        ({"p/0": GOOD, "p/1": GOOD, "q/0": GOOD}, 'scored "q/0", which it was not given'),
        ({"p/0": GOOD, "p/1": {"x": 1.0}}, 'field "y" is declared but was not written'),
        ({"p/0": GOOD, "p/1": {**GOOD, "z": 1.0}}, 'field "z" was written but is not declared'),
    ],
)
def test_a_stage_writes_every_declared_field_for_every_sample(scores: Any, message: str) -> None:
    with pytest.raises(ScoringError, match=message):
        check_scores(STAGE, [P0, P1], scores)


def test_staging_refuses_what_does_not_fit_before_anything_is_made() -> None:
    staging = StagingArea(3)
    staging.reserve(3)
    with pytest.raises(ScoringError, match="4 samples do not fit the staging area of 3"):
        staging.reserve(4)


def test_scores_reach_copies_and_are_written_back_for_all_or_none() -> None:
    staging = StagingArea()
    staging.capture([P0, P1, Q0])
    staging.add("judge", {"p/0": {"x": 1}, "p/1": None, "q/0": {"x": 2}})
    assert [copy.scores for copy in staging.scored] == [{"x": 1}, {"x": 2}]
    assert P0.scores == {}
    assert staging.dropped == {"p/1": "judge"}
    with pytest.raises(ScoringError, match="scores of 1 samples for a batch of 2"):
        staging.write_back({"p/0": {"x": 1}})
    written = staging.write_back({"p/0": {"reward": 1}, "q/0": {"reward": 2}})
    assert [(one.sample_id, one.scores) for one in written] == [
        ("p/0", {"reward": 1}),
        ("q/0", {"reward": 2}),
    ]


async def test_bounded_calls_keep_their_order_and_their_bound() -> None:
    import asyncio

    under_way = peak = 0

    async def work(item: int) -> int:
        nonlocal under_way, peak
        under_way += 1
        peak = max(peak, under_way)
        await asyncio.sleep(0.001 * (7 - item % 7))
        under_way -= 1
        return -item

    assert await gather_bounded(range(40), work, 3) == [-item for item in range(40)]
    assert peak == 3
    assert await gather_bounded([], work, 3) == []


async def test_the_first_bounded_call_that_fails_ends_the_others() -> None:
    import asyncio

    ended: list[int] = []
    started: list[int] = []

    async def work(item: int) -> None:
        started.append(item)
        if item == 1:
            raise ValueError("one")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(item)

    with pytest.raises(ValueError, match="one"):
        await gather_bounded(range(100), work, 3)
    assert sorted(ended) == [item for item in sorted(started) if item != 1]
    assert len(started) <= 3
