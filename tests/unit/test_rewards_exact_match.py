"""exact_match: what counts as giving the reference answer."""

from __future__ import annotations

import pytest
from attrs import evolve

from rolecall.api import Prompt, Sample
from rolecall_plugins.rewards.exact_match import ExactMatch, ExactMatchOptions, Where


def matches(response: str, answer: str, where: Where = "whole", *, ignore_case: bool = True) -> bool:
    return ExactMatch(ExactMatchOptions(where=where, ignore_case=ignore_case)).matches(response, answer)


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
        ("Paris", "Paris", True),
        (" paris.\n", "Paris", True),
        ("The Sun!", "the sun", True),
        ("Paris, France", "Paris", False),
        ("", "Paris", False),
        ("1,000", "1000", True),
        ("42.0", "42", True),
        ("+42.", "42", True),
        ("-42", "42", False),
        ("42 apples", "42", False),
        ("forty-two", "42", False),
        ("1,00", "100", False),
    ],
)
def test_whole(response: str, answer: str, expected: bool) -> None:
    assert matches(response, answer) is expected


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
        ("2 + 3 = 5", "5", True),
        ("5 is what 2 + 3 makes", "5", False),
        ("It costs $1,234.50.", "1234.5", True),
        ("No number here", "5", False),
        ("room A5", "5", False),
        ("3.5", "5", False),
        ("Paris", "Paris", True),
        ("It is Paris", "Paris", False),
    ],
)
def test_last_number(response: str, answer: str, expected: bool) -> None:
    assert matches(response, answer, "last_number") is expected


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
        ("Ben reads 15 pages in 3 days", "15", True),
        ("There are 115 of them", "15", False),
        ("About 15.5", "15", False),
        ("The capital of France is Paris.", "paris", True),
        ("parishes", "Paris", False),
        ("It is the Sun, of course", "the sun", True),
        ("sun the", "the sun", False),
    ],
)
def test_anywhere(response: str, answer: str, expected: bool) -> None:
    assert matches(response, answer, "anywhere") is expected


def test_case_may_matter() -> None:
    assert not matches("paris", "Paris", ignore_case=False)
    assert matches("Paris", "Paris", ignore_case=False)


SAMPLE = Sample(
    sample_id="p/0",
    group_id="p",
    prompt=Prompt(prompt_id="p", text="?", answer="5"),
    prompt_ids=(1,),
    response="5",
    response_ids=(2,),
    rollout_log_probs=(-0.1,),
    finish_reason="stop",
    weight_version=None,
)


async def test_the_reward_is_one_or_zero() -> None:
    adapter = ExactMatch(ExactMatchOptions())
    assert await adapter.score(SAMPLE, None) == 1.0
    assert await adapter.score(evolve(SAMPLE, response="6"), None) == 0.0


@pytest.mark.parametrize("answer", [None, "", "  "])
async def test_without_a_reference_there_is_no_reward(answer: str | None) -> None:
    sample = evolve(SAMPLE, prompt=Prompt(prompt_id="p", text="?", answer=answer))
    with pytest.raises(ValueError, match='prompt "p" has no reference answer'):
        await ExactMatch(ExactMatchOptions()).score(sample, None)


def test_an_unknown_place_is_refused() -> None:
    with pytest.raises(ValueError, match="where"):
        ExactMatchOptions(where="middle")  # type: ignore[arg-type]
