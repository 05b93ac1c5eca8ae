"""TRL's reward function and rollout function against served gateways; in the real trainer where TRL is."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rolecall.api import JobError, ScoringError, UpstreamStatusError
from rolecall.testing.scripted_answers import tokens_of
from rolecall_loops.trl import RolecallReward, RolecallRollout, rolecall_reward, rolecall_rollout


@pytest.fixture
def judged(served: Any) -> RolecallReward:
    return rolecall_reward(served.job, url=served.url, reward="judge")


async def test_answers_have_the_job_s_rewards(judged: RolecallReward, worth: Callable[[str], float]) -> None:
    """Called as TRL 1.16.0 calls it: by name, columns as lists, and its own state beside them."""
    rewards = await judged(
        prompts=["1 + 1?", [{"role": "user", "content": "2 + 2?"}]],
        completions=["2", [{"role": "assistant", "content": "5"}]],
        completion_ids=[[2], [5]],
        answer=["2", 4],
        trainer_state=object(),
        log_extra=print,
        log_metric=print,
    )
    assert rewards == [pytest.approx(worth("1 + 1?|2|2")), pytest.approx(worth("2 + 2?|4|5"))]


def test_trl_awaits_names_and_pickles_it(judged: RolecallReward) -> None:
    assert inspect.iscoroutinefunction(judged.__call__)
    assert judged.__name__ == "judge"
    assert pickle.loads(pickle.dumps(judged)) == judged


async def test_a_judge_that_fails_raises_and_is_never_none(served: Any, judged: RolecallReward) -> None:
    served.judge.engines[0].behaviour.status = 500
    with pytest.raises(ScoringError, match="500"):
        await judged(prompts=["?"], completions=["!"], answer=["4"])


async def test_an_answer_s_column_has_to_be_named(served: Any, judged: RolecallReward) -> None:
    with pytest.raises(ScoringError, match=r'no column "answer".* Columns: solution'):
        await judged(prompts=["?"], completions=["!"], solution=["4"])
    named = rolecall_reward(served.job, url=served.url, reward="judge", answer="solution")
    await named(prompts=["?"], completions=["!"], solution=["4"])
    assert served.judged() == ["?|4|!"]


# --- the rollout ----------------------------------------------------------------------------


class Tokenizer:
    """One token a letter; a template of its own."""

    def __call__(self, text: list[str]) -> dict[str, Any]:
        return {"input_ids": [[ord(letter) for letter in each] for each in text]}

    def apply_chat_template(self, conversation: Any, **settings: Any) -> dict[str, Any]:
        assert settings["add_generation_prompt"]
        return self([f"<{messages[-1]['content']}>" for messages in conversation])


class Trainer(SimpleNamespace):
    """The public attributes of ``GRPOTrainer`` that a rollout looks at."""

    def __init__(self) -> None:
        super().__init__(
            temperature=0.9,
            top_p=1.0,
            top_k=0,
            min_p=None,
            repetition_penalty=1.0,
            max_completion_length=3,
            args=SimpleNamespace(generation_kwargs=None),
            processing_class=Tokenizer(),
            chat_template=None,
            chat_template_kwargs={},
            tools=[],
            environments=None,
            state=SimpleNamespace(global_step=0),
            accelerator=SimpleNamespace(wait_for_everyone=lambda: None),
        )


@pytest.fixture
def published() -> list[int]:
    return []


@pytest.fixture
def rollout(served: Any, published: list[int]) -> RolecallRollout:
    return rolecall_rollout(
        served.job, url=served.url, publish=lambda trainer: published.append(trainer.state.global_step)
    )


@pytest.mark.parametrize(
    ("prompts", "texts"),
    [(["ab", "ab"], ["ab", "ab"]), ([[{"role": "user", "content": "ab"}]], ["<ab>"])],
)
async def test_prompts_are_sent_as_the_trainer_tokenises_them(
    served: Any, rollout: RolecallRollout, prompts: list[Any], texts: list[str]
) -> None:
    made = await asyncio.to_thread(rollout, prompts, Trainer())
    ids = [[ord(letter) for letter in text] for text in texts]
    assert made["prompt_ids"] == ids
    assert made["completion_ids"] == [tokens_of(one, 3) for one in ids]
    assert [len(values) for values in made["logprobs"]] == [3] * len(ids)
    sent = [received.payload for received in served.policy.engines[0].received]
    assert [payload["input_ids"] for payload in sent] == ids
    assert sent[0]["sampling_params"] == {"temperature": 0.9, "max_new_tokens": 3}


async def test_weights_are_published_before_the_first_answer_and_after_each_step(
    served: Any, rollout: RolecallRollout, published: list[int]
) -> None:
    trainer = Trainer()
    for step in (0, 0, 1, 3):
        trainer.state.global_step = step
        await asyncio.to_thread(rollout, ["a"], trainer)
    assert published == [0, 1, 3]


async def test_weights_that_could_not_be_published_give_no_answer_and_are_tried_again(served: Any) -> None:
    tried: list[int] = []

    def publish(trainer: Any) -> None:
        tried.append(trainer.state.global_step)
        if len(tried) == 1:
            raise OSError("disk full")

    rollout = rolecall_rollout(served.job, url=served.url, publish=publish)
    with pytest.raises(OSError, match="disk full"):
        await asyncio.to_thread(rollout, ["a"], Trainer())
    assert served.policy.engines[0].received == []
    await asyncio.to_thread(rollout, ["a"], Trainer())
    assert tried == [0, 0]


async def test_an_answer_that_could_not_be_made_raises(served: Any, rollout: RolecallRollout) -> None:
    served.policy.engines[0].behaviour.status = 500
    with pytest.raises(UpstreamStatusError):
        await asyncio.to_thread(rollout, ["a"], Trainer())


async def test_tools_and_pictures_are_refused(rollout: RolecallRollout) -> None:
    trainer = Trainer()
    with pytest.raises(JobError, match="messages of text"):
        rollout([[{"role": "user", "content": [{"type": "image"}]}]], trainer)
    trainer.tools = [print]
    with pytest.raises(JobError, match="tools"):
        rollout(["a"], trainer)


TRAINED = """
import json, sys
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from rolecall_loops.trl import rolecall_reward, rolecall_rollout

told = json.loads(sys.argv[1])
words = {str(number): number for number in range(1000)} | {"<pad>": 1000, "<eos>": 1001}
plain = Tokenizer(models.WordLevel(words, unk_token="0"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>")
model = Qwen2ForCausalLM(
    Qwen2Config(vocab_size=1002, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                num_attention_heads=1, num_key_value_heads=1, eos_token_id=1001, pad_token_id=1000)
)
published = []
def trainer_of(url):
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[rolecall_reward(told["job"], url=url, reward="judge")],
        rollout_func=rolecall_rollout(
            told["job"], url=told["url"], publish=lambda trainer: published.append(trainer.state.global_step)
        ),
        train_dataset=Dataset.from_dict({"prompt": ["1 2 3", "4 5"], "answer": ["6", "9"]}),
        args=GRPOConfig(
            output_dir=told["folder"], per_device_train_batch_size=4, num_generations=2,
            max_steps=2, max_completion_length=3, use_cpu=True, report_to=[], save_strategy="no",
            logging_steps=1, bf16=False, learning_rate=0.1, disable_tqdm=True,
        ),
    )
trainer = trainer_of(told["url"])
trainer.train()
try:
    trainer_of("http://127.0.0.1:9").train()
except Exception as error:
    raised = type(error).__name__
log = [entry for entry in trainer.state.log_history if "rewards/judge/mean" in entry]
means = [entry["rewards/judge/mean"] for entry in log]
print(json.dumps({"published": published, "raised": raised, "means": means}))
"""


@pytest.mark.loops
@pytest.mark.timeout(900)
async def test_the_real_trainer_of_trl_takes_steps_with_both(
    served: Any, other_process: Callable[..., Any], worth: Callable[[str], float], tmp_path: Any
) -> None:
    pytest.importorskip("trl", reason="TRL is not installed here")
    told = {"job": served.job, "url": served.url, "folder": str(tmp_path / "out")}
    done = await other_process(TRAINED, told)
    assert done["published"] == [0, 1, 0]
    assert done["raised"] == "ScoringError", "without a judge the second trainer takes no step"
    questions = [
        f"{prompt}|{answer}|{' '.join(map(str, tokens_of(ids, 3)))}"
        for prompt, answer, ids in (("1 2 3", "6", [1, 2, 3]), ("4 5", "9", [4, 5]))
    ]
    assert set(served.judged()) == set(questions)
    mean = sum(map(worth, questions)) / 2
    assert done["means"] == [pytest.approx(mean, abs=1e-3)] * 2
