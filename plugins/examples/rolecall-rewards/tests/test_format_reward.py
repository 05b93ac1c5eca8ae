from __future__ import annotations

import pytest
from rolecall_rewards.format_reward import FormatReward, FormatRewardOptions

from rolecall.api import Prompt, Sample


def sample(response: str) -> Sample:
    return Sample(
        sample_id="s0",
        group_id="p0",
        prompt=Prompt(prompt_id="p0", text="What is 2 + 3? Answer as \\boxed{...}."),
        prompt_ids=(1, 2),
        response=response,
        response_ids=(3,),
        rollout_log_probs=(-0.5,),
        finish_reason="stop",
        weight_version=None,
    )


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("It is \\boxed{5}.", 1.0),
        ("It is 5.", -0.5),
        ("", -0.5),
        ("It is \\boxed{}.", -0.5),
        ("first line\nthen \\boxed{5}", 1.0),
    ],
)
async def test_a_matching_response_is_paid_and_any_other_is_not(response: str, expected: float) -> None:
    adapter = FormatReward(FormatRewardOptions(pattern=r"\\boxed\{[^}]+\}", penalty=-0.5))
    assert await adapter.score(sample(response), None) == expected


async def test_an_anchored_pattern_holds_the_whole_response_to_it() -> None:
    adapter = FormatReward(FormatRewardOptions(pattern=r"(?s)^\d+$", reward=2.0))
    assert await adapter.score(sample("42"), None) == 2.0
    assert await adapter.score(sample("It is 42"), None) == 0.0


def test_a_broken_pattern_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"pattern is no regular expression: .* in '\(unclosed'"):
        FormatRewardOptions(pattern="(unclosed")


def test_a_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="penalty is nan"):
        FormatRewardOptions(pattern="x", penalty=float("nan"))
