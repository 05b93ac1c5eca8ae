"""For verl: a job's reward as its custom reward function.

Signature and loading as in verl 0.9.1 (``verl.trainer.ppo.reward.get_custom_reward_fn``, and the reward
loop's managers, which await an asynchronous function for each sample)::

    reward.custom_reward_function.path=pkg://rolecall_loops.verl
    reward.custom_reward_function.name=compute_score
    +reward.custom_reward_function.reward_kwargs.job=job.toml
    +reward.custom_reward_function.reward_kwargs.url=http://host:8000
    +reward.custom_reward_function.reward_kwargs.reward=judge

An error is raised, and ends verl's step. ``reward.reward_manager.name=rate_limited`` must not be used: that
manager of verl's makes a reward of 0 of every error and every time-out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolecall.api import Prompt, ScoringError

from .rewards import answer_of, job_reward, text_of

_ID = "verl"
"""verl names no samples."""


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: Mapping[str, Any] | None = None,
    *,
    job: str | None = None,
    url: str | None = None,
    reward: str | None = None,
    prompt_key: str = "question",
    **of_verl: Any,
) -> float:
    """Return the reward of one answer.

    ground_truth: the reference answer, text or a number. extra_info: of the dataset, and what verl puts
    there; rewards see it as the prompt's metadata. job, url, reward: which reward of which job; see
    :func:`rolecall_loops.rewards.job_reward`. prompt_key: field of ``extra_info`` that holds the prompt, text
    or messages: verl gives it nowhere else. of_verl: what verl adds for reward models of its own; not used.

    Raises:
        ScoringError: there is no reward, or the reward needs the prompt and ``extra_info`` has none.
        JobError: no such job or reward.
    """
    del of_verl
    scorer = job_reward(job, url, reward)
    info = dict(extra_info or {})
    asked = info.get(prompt_key)
    if asked is None and scorer.reads("prompt.text"):
        raise ScoringError(
            f'reward "{scorer.named.name}" reads the prompt, and extra_info has no "{prompt_key}": put it '
            "there in the dataset, or name its field as reward_kwargs.prompt_key. "
            f"Found: {', '.join(info) or 'nothing'}"
        )
    prompt = Prompt(
        prompt_id=f"{_ID}/{info.get('index', data_source)}",
        text="" if asked is None else text_of(asked),
        answer=answer_of(ground_truth),
        data_source=data_source,
        metadata=info,
    )
    return await scorer.score(prompt, solution_str)
