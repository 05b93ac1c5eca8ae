"""slime's two hooks, against served gateways.

slime is on no package index: its modules are stood in for here, with the names, fields and signatures of
slime 0.3.1 that the hooks use.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import Any

import pytest

from rolecall.api import JobError, ScoringError, UpstreamStatusError
from rolecall.testing.scripted_answers import tokens_of
from rolecall_loops import slime as hooks


@dataclass
class Sample:
    """The fields of ``slime.utils.types.Sample`` that the hooks read or fill."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"

    group_index: int | None = None
    index: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: Any = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)

    def append_response_tokens(
        self, args=None, *, tokens=None, log_probs=None, trainable=True, meta_info=None, text=None
    ) -> None:
        assert trainable
        assert len(tokens) == len(log_probs)
        self.response += text
        self.tokens += tokens
        self.response_length += len(tokens)
        self.rollout_log_probs = [*(self.rollout_log_probs or []), *log_probs]
        self.weight_versions.append(meta_info["weight_version"])
        self.status = {"length": self.Status.TRUNCATED, "stop": self.Status.COMPLETED}[
            meta_info["finish_reason"]["type"]
        ]


@dataclass
class RolloutFnTrainOutput:
    samples: list[list[Sample]]
    metrics: dict[str, Any] | None = None


class Tokenizer:
    """One token a letter."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert add_special_tokens is False
        return [ord(letter) for letter in text]


class Source:
    """What ``slime.rollout.data_source`` hands out: whole groups, each sample a copy of the prompt's."""

    def __init__(self, args: Namespace, **fields: Any) -> None:
        self.args = args
        self.fields = fields
        self.given = 0

    def get_samples(self, count: int) -> list[list[Sample]]:
        groups = [
            [
                Sample(group_index=group, prompt=f"{group} + 1?", label=str(group + 1), **self.fields)
                for _ in range(self.args.n_samples_per_prompt)
            ]
            for group in range(self.given, self.given + count)
        ]
        self.given += count
        for index, sample in enumerate(sample for group in groups for sample in group):
            sample.index = index
        return groups


@pytest.fixture
def slime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    async def async_rm(args: Namespace, sample: Sample, **kwargs: Any) -> Any:
        return await hooks.reward(args, sample, **kwargs)

    async def batched_async_rm(args: Namespace, samples: list[Sample], **kwargs: Any) -> Any:
        return await hooks.reward(args, samples, **kwargs)

    modules: dict[str, dict[str, Any]] = {
        "rollout.base_types": {"RolloutFnTrainOutput": RolloutFnTrainOutput},
        "rollout.rm_hub": {"async_rm": async_rm, "batched_async_rm": batched_async_rm},
        "utils.async_utils": {"run": asyncio.run},
        "utils.processing_utils": {"load_tokenizer": lambda path, trust_remote_code: Tokenizer()},
    }
    for package in ("slime", "slime.rollout", "slime.utils"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    for name, contents in modules.items():
        module = ModuleType(f"slime.{name}")
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    hooks._tokenizer.cache_clear()
    yield
    hooks._tokenizer.cache_clear()


@pytest.fixture
def args(served: Any) -> Namespace:
    return Namespace(
        rolecall_job=served.job,
        rolecall_url=served.url,
        rolecall_reward="judge",
        hf_checkpoint="model",
        rollout_batch_size=2,
        n_samples_per_prompt=2,
        rollout_temperature=0.8,
        rollout_top_p=1.0,
        rollout_top_k=-1,
        rollout_max_response_len=3,
        rollout_stop=None,
        rollout_stop_token_ids=[9],
        rollout_skip_special_tokens=True,
        rollout_seed=7,
        group_rm=False,
        partial_rollout=False,
        rollout_sample_hook_path=[],
    )


def test_slime_can_call_them() -> None:
    inspect.signature(hooks.generate_rollout).bind(None, 0, None, evaluation=False)
    inspect.signature(hooks.reward).bind(None, None, evaluation=False)
    assert inspect.iscoroutinefunction(hooks.reward), "slime awaits what --custom-rm-path names"


async def test_a_sample_and_a_list_of_them_have_rewards(
    args: Namespace, worth: Callable[[str], float]
) -> None:
    sample = Sample(prompt="2 + 2?", response="5", label="4", metadata={"data_source": "sums"})
    assert await hooks.reward(args, sample) == pytest.approx(worth("2 + 2?|4|5"))
    other = Sample(prompt=[{"role": "user", "content": "2 + 2?"}], response="4", label="4")
    rewards = await hooks.reward(args, [sample, other])
    assert rewards == [pytest.approx(worth("2 + 2?|4|5")), pytest.approx(worth("2 + 2?|4|4"))]


async def test_a_judge_that_fails_raises(args: Namespace, served: Any) -> None:
    served.judge.engines[0].behaviour.status = 500
    with pytest.raises(ScoringError, match="500"):
        await hooks.reward(args, [Sample(prompt="?", response="!")])


@pytest.mark.parametrize("group_rm", [False, True])
async def test_a_rollout_is_made_by_the_job_s_policy(
    args: Namespace, served: Any, slime: None, group_rm: bool, worth: Callable[[str], float]
) -> None:
    args.group_rm = group_rm
    output = await asyncio.to_thread(hooks.generate_rollout, args, 0, Source(args), evaluation=False)
    assert [len(group) for group in output.samples] == [2, 2]
    for number, group in enumerate(output.samples):
        prompt = [ord(letter) for letter in f"{number} + 1?"]
        answer = tokens_of(prompt, 3)
        for sample in group:
            assert sample.tokens == prompt + answer
            assert sample.response_length == len(sample.rollout_log_probs) == 3
            assert sample.status is Sample.Status.TRUNCATED
            assert sample.weight_versions == ["default"]
            asked = f"{number} + 1?|{number + 1}|{sample.response.strip()}"
            assert sample.reward == pytest.approx(worth(asked))
    sent = [received.payload for received in served.policy.engines[0].received]
    assert len(sent) == 4, "the prompts' tokens were not asked for"
    assert all(
        payload["sampling_params"]
        == {
            "temperature": 0.8,
            "top_k": -1,
            "max_new_tokens": 3,
            "stop_token_ids": [9],
            "skip_special_tokens": True,
            "no_stop_trim": True,
            "spaces_between_special_tokens": False,
        }
        for payload in sent
    )


async def test_deterministic_samples_have_seeds_of_their_own(
    args: Namespace, served: Any, slime: None
) -> None:
    args.sglang_enable_deterministic_inference = True
    source = Source(args)
    for rollout in range(2):
        await asyncio.to_thread(hooks.generate_rollout, args, rollout, source)
    sent = [received.payload["sampling_params"] for received in served.policy.engines[0].received]
    assert len({sampling["sampling_seed"] for sampling in sent}) == 8


@pytest.mark.parametrize(("role", "error"), [("policy", UpstreamStatusError), ("judge", ScoringError)])
async def test_a_rollout_fails_as_a_whole(
    args: Namespace, served: Any, slime: None, role: str, error: type[Exception]
) -> None:
    getattr(served, role).engines[0].behaviour.status = 500
    with pytest.raises(error):
        await asyncio.to_thread(hooks.generate_rollout, args, 0, Source(args))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"partial_rollout": True}, "--partial-rollout"),
        ({"dynamic_sampling_filter_path": "a.b"}, "--dynamic-sampling-filter-path"),
        ({"rollout_top_p": 0.9}, "--rollout-top-p"),
        ({"rollout_sample_hook_path": ["a.b"]}, "--rollout-sample-hook-path"),
    ],
)
def test_what_would_be_passed_over_is_refused(
    args: Namespace, slime: None, change: dict[str, Any], told: str
) -> None:
    vars(args).update(change)
    source = Source(args)
    with pytest.raises(JobError, match=f"does not follow {told};"):
        hooks.generate_rollout(args, 0, source)
    assert source.given == 0, "no prompt was taken"


def test_an_evaluation_is_refused(args: Namespace, slime: None) -> None:
    with pytest.raises(JobError, match="--eval-function-path"):
        hooks.generate_rollout(args, 0, Source(args), evaluation=True)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tokens": [1], "response_length": 1}, "was begun"),
        ({"multimodal_inputs": {"images": ["x"]}}, "more than text"),
    ],
)
async def test_samples_that_can_t_be_made_whole_are_refused(
    args: Namespace, slime: None, fields: dict[str, Any], told: str
) -> None:
    with pytest.raises(JobError, match=told):
        await asyncio.to_thread(hooks.generate_rollout, args, 0, Source(args, **fields))
