"""verl's custom reward function, against a served judge; with the real verl where it is installed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from rolecall.api import ScoringError
from rolecall_loops.verl import compute_score

EXTRA = {"question": "2 + 2?", "index": 3}


def test_it_is_called_as_verl_calls_it() -> None:
    """verl 0.9.1, the reward loop's naive manager: by these names, awaited if it is a coroutine function."""
    assert inspect.iscoroutinefunction(compute_score)
    inspect.signature(compute_score).bind(
        data_source="sums",
        solution_str="4",
        ground_truth="4",
        extra_info={},
        reward_router_address="host:1",
        reward_model_tokenizer=None,
        job="job.toml",
    )


async def test_an_answer_has_the_job_s_reward(served: Any, worth: Callable[[str], float]) -> None:
    value = await compute_score(
        "sums", "5", "4", EXTRA, job=served.job, url=served.url, reward="judge", reward_router_address="x:1"
    )
    assert value == pytest.approx(worth("2 + 2?|4|5"))


async def test_the_prompt_is_needed_only_by_rewards_that_read_it(served: Any) -> None:
    settings = {"job": served.job, "url": served.url}
    assert await compute_score("sums", "4", 4, None, reward="exact", **settings) == 1.0
    with pytest.raises(ScoringError, match=r'extra_info has no "question": .* Found: text'):
        await compute_score("sums", "4", "4", {"text": "?"}, reward="judge", **settings)
    info = {"text": [{"role": "user", "content": "2 + 2?"}]}
    await compute_score("sums", "4", "4", info, reward="judge", prompt_key="text", **settings)
    assert served.judged() == ["2 + 2?|4|4"]


async def test_a_judge_that_fails_raises(served: Any) -> None:
    served.judge.engines[0].behaviour.status = 500
    with pytest.raises(ScoringError, match="500"):
        await compute_score("sums", "4", "4", EXTRA, job=served.job, url=served.url, reward="judge")


LOADED = """
import asyncio, json, sys
from omegaconf import OmegaConf
from verl.trainer.ppo.reward import get_custom_reward_fn

told = json.loads(sys.argv[1])

def loaded(**kwargs):
    wanted = {"path": "pkg://rolecall_loops.verl", "name": "compute_score", "reward_kwargs": kwargs}
    return get_custom_reward_fn(OmegaConf.create({"reward": {"custom_reward_function": wanted}}))

import inspect
import torch
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

class Tokenizer:
    def decode(self, ids, skip_special_tokens):
        return " ".join(str(int(token)) for token in ids)

async def score(function):
    manager = NaiveRewardManager({}, Tokenizer(), function)
    batch = DataProto.from_dict(
        tensors={"responses": torch.tensor([[4, 0]]), "attention_mask": torch.tensor([[1, 1, 1, 0]])},
        non_tensors={
            "data_source": ["sums"],
            "reward_model": [{"ground_truth": "4"}],
            "extra_info": [{"question": "2 + 2?"}],
        },
    )
    return await manager.run_single(batch)

function = loaded(**told)
scored = asyncio.run(score(function))
try:
    asyncio.run(score(loaded(**{**told, "url": "http://127.0.0.1:9"})))
except Exception as error:
    scored["raised"] = type(error).__name__
print(json.dumps({"asynchronous": inspect.iscoroutinefunction(function), **scored}))
"""


@pytest.mark.loops
@pytest.mark.timeout(900)
async def test_the_real_verl_loads_and_awaits_it(
    served: Any, worth: Callable[[str], float], other_process: Callable[..., Any]
) -> None:
    pytest.importorskip("verl", reason="verl is not installed here")
    kwargs = {"job": served.job, "url": served.url, "reward": "judge"}
    told = await other_process(LOADED, kwargs)
    assert told["asynchronous"] is True
    assert told["reward_score"] == pytest.approx(worth("2 + 2?|4|4"))
    assert told["raised"] == "ScoringError", "without a judge there is no score"
