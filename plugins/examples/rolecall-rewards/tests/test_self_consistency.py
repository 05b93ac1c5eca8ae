from __future__ import annotations

from typing import Any

import pytest
from rolecall_rewards.self_consistency import SelfConsistency, SelfConsistencyOptions

from rolecall.api import Prompt, Sample, ScoringError, UpstreamError


class Policy:
    """Gives its answers one after the other."""

    def __init__(self, *answers: str, version: Any = "3") -> None:
        self.answers = list(answers)
        self.version = version
        self.asked: list[dict[str, Any]] = []

    async def generate(self, payload: Any, **_: Any) -> dict[str, Any]:
        self.asked.append(payload)
        return {"text": self.answers.pop(0), "meta_info": {"weight_version": self.version}}

    async def chat(self, *_: Any, **__: Any) -> str:
        raise AssertionError("the policy continues token ids")


def sample(response: str = "2 and 3 make 5.") -> Sample:
    return Sample(
        sample_id="p0/1",
        group_id="p0",
        prompt=Prompt(prompt_id="p0", text="What is 2 + 3?"),
        prompt_ids=(1, 2),
        response=response,
        response_ids=(3,),
        rollout_log_probs=(-0.5,),
        finish_reason="stop",
        weight_version="3",
    )


async def test_the_reward_is_the_share_of_votes_with_the_same_last_number() -> None:
    policy = Policy("It is 5.", "5 is it: 6", "no idea", "1, 2, 3, 4, 5")
    assert await SelfConsistency(SelfConsistencyOptions()).score(sample(), policy) == 0.5
    assert [payload["input_ids"] for payload in policy.asked] == [[1, 2]] * 4


async def test_a_response_without_an_answer_agrees_with_none() -> None:
    policy = Policy()
    assert await SelfConsistency(SelfConsistencyOptions()).score(sample("no idea"), policy) == 0.0
    assert policy.asked == []


async def test_an_answer_under_other_weights_is_no_vote() -> None:
    with pytest.raises(ScoringError, match="with weights 4, but the sample was made with 3"):
        await SelfConsistency(SelfConsistencyOptions()).score(sample(), Policy(*["5"] * 4, version=4))


async def test_an_answer_outside_the_protocol_is_an_error() -> None:
    class Mute(Policy):
        async def generate(self, *_: Any, **__: Any) -> dict[str, Any]:
            return {"text": "5"}

    with pytest.raises(UpstreamError, match="without text or meta_info"):
        await SelfConsistency(SelfConsistencyOptions()).score(sample(), Mute())


async def test_each_vote_has_a_seed_of_its_own_and_the_same_the_next_time() -> None:
    options = SelfConsistencyOptions(sampling={"sampling_seed": 7})
    seeds: list[list[int]] = []
    for _ in range(2):
        policy = Policy(*["5"] * 4)
        await SelfConsistency(options).score(sample(), policy)
        seeds.append(sorted(payload["sampling_params"]["sampling_seed"] for payload in policy.asked))
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 4


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"answer": "("}, "no regular expression"),
        ({"answer": r"\d+"}, "must have one group"),
        ({"votes": 0}, "votes"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        SelfConsistencyOptions(**wrong)
