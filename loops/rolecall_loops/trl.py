"""For TRL: a job's reward as a reward function, and a job's policy as the trainer's rollout function.

Signatures as in TRL 1.16.0 (``reward_funcs`` and ``rollout_func`` of ``GRPOTrainer``; the latter is
experimental there)::

    GRPOTrainer(
        reward_funcs=[rolecall_reward("job.toml", url="http://host:8000", reward="judge")],
        rollout_func=rolecall_rollout("job.toml", url="http://host:8000", publish=publish),
        ...
    )

Each works without the other. TRL's own client of vLLM servers is answered by
:mod:`rolecall_loops.trl_server`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Any, cast

from attrs import define, field, frozen

from rolecall.api import AskedJob, JobError, Prompt, ScoringError, ask_job, gather_bounded

from .generation import generate
from .rewards import MAX_CONCURRENCY, answer_of, job_reward, text_of
from .vllm_names import native_sampling

Publish = Callable[[Any], None]
"""Called with the trainer; gives its weights to the job's engines and returns once they have them."""


@frozen
class RolecallReward:
    """A reward function: awaited once for a batch, it returns a float for each answer. Can be pickled."""

    job: str | None
    url: str | None
    reward: str | None
    answer: str
    data_source: str

    @property
    def __name__(self) -> str:
        """What TRL logs the reward under."""
        return self.reward or "rolecall"

    async def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float]:
        """Return the rewards, in order.

        columns: the other columns of the dataset, each with a value for each answer, and what TRL adds.
        Rewards
            see none of them but the two that were named.

        Raises:
            ScoringError: one answer has no reward; TRL would make a reward of 0 of a missing one.
        """
        scorer = job_reward(self.job, self.url, self.reward)
        if self.answer not in columns and scorer.reads("prompt.answer"):
            known = ", ".join(name for name, values in columns.items() if isinstance(values, list))
            raise ScoringError(
                f'reward "{scorer.named.name}" reads the answer, and the dataset has no column '
                f'"{self.answer}": name it as answer="…", or put None into a column of '
                f"that name. Columns: {known or 'none'}"
            )
        nothing = [None] * len(prompts)
        answers = columns.get(self.answer, nothing)
        sources = columns.get(self.data_source, nothing)

        async def score(at: int) -> float:
            source = sources[at]
            prompt = Prompt(
                prompt_id=f"trl/{at}",
                text=text_of(prompts[at]),
                answer=answer_of(answers[at]),
                data_source=None if source is None else str(source),
            )
            return await scorer.score(prompt, text_of(completions[at]))

        return await gather_bounded(range(len(prompts)), score, MAX_CONCURRENCY)


def rolecall_reward(
    job: str | None = None,
    *,
    url: str | None = None,
    reward: str | None = None,
    answer: str = "answer",
    data_source: str = "data_source",
) -> RolecallReward:
    """Return a reward function for ``reward_funcs``; nothing is looked up before its first call.

    job, url, reward: which reward of which job; see :func:`rolecall_loops.rewards.job_reward`.
    answer, data_source: columns of the dataset with the reference answer, and with where a prompt is from.
    """
    return RolecallReward(job, url, reward, answer, data_source)


@define
class RolecallRollout:
    """A rollout function: called with the process's prompts and the trainer, it returns an answer to each."""

    job: str | None
    url: str | None
    publish: Publish
    _published: int | None = field(default=None, init=False)
    """The optimiser step whose weights the engines have; None before the first call."""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Return ``prompt_ids``, ``completion_ids`` and ``logprobs``, a list of each for every prompt.

        Prompts are tokenised as TRL does it, with the trainer's template. Weights are published before the
        first answer and after each step of the optimiser; every process calls ``publish`` and waits for all.

        Raises:
            RequestError: an answer could not be made; none is returned then.
            JobError: the trainer has tools or environments, or a prompt shows more than text.
        """
        sampling = native_sampling(
            {
                "temperature": trainer.temperature,
                "top_p": trainer.top_p,
                "top_k": trainer.top_k,
                "min_p": trainer.min_p,
                "repetition_penalty": trainer.repetition_penalty,
                "max_tokens": trainer.max_completion_length,
                **(trainer.args.generation_kwargs or {}),
            }
        )
        ids = _prompt_ids(prompts, trainer)
        step = int(trainer.state.global_step)
        if step != self._published:
            self.publish(trainer)
            trainer.accelerator.wait_for_everyone()
            self._published = step
        samples = asyncio.run(_answers(ask_job(self.job, self.url), ids, sampling))
        return {
            "prompt_ids": ids,
            "completion_ids": [list(sample.response_ids) for sample in samples],
            "logprobs": [list(sample.rollout_log_probs) for sample in samples],
        }


def rolecall_rollout(job: str | None = None, *, url: str | None = None, publish: Publish) -> RolecallRollout:
    """Return a rollout function for ``rollout_func``, with ``use_vllm`` off.

    job, url: which job; see :func:`rolecall_loops.rewards.job_reward`. publish: called with the trainer;
    saves a checkpoint and updates the job's weights from it. Without it every
        step after the first would train on samples of weights that are no more.
    """
    return RolecallRollout(job, url, publish)


async def _answers(asked: AskedJob, ids: Sequence[Sequence[int]], sampling: dict[str, Any]) -> list[Any]:
    call = uuid.uuid4().hex
    prompts = {f"trl/{call}/{at}": one for at, one in enumerate(ids)}
    groups = await generate(asked, prompts, samples_per_prompt=1, sampling=sampling)
    return [sample for group in groups for sample in group]


def _prompt_ids(prompts: Sequence[Any], trainer: Any) -> list[list[int]]:
    if trainer.tools or trainer.environments is not None:
        raise JobError("tools and environments need turns; rolecall_rollout makes one answer to a prompt")
    if all(isinstance(prompt, str) for prompt in prompts):
        return [list(ids) for ids in trainer.processing_class(text=list(prompts))["input_ids"]]
    for prompt in prompts:
        for message in cast("Sequence[dict[str, Any]]", prompt):
            if not isinstance(message["content"], str):
                raise JobError(f"a prompt must be text or messages of text, found {message!r:.80}")
    rendered = trainer.processing_class.apply_chat_template(
        conversation=list(prompts),
        chat_template=trainer.chat_template,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **trainer.chat_template_kwargs,
    )
    return [list(ids) for ids in rendered["input_ids"]]
