"""Running reward adapters: one stage for a set of rewards, and what happens when one fails.

A role builds its judge stage with :func:`reward_stage`; the core builds the stage of rules that
need no role with it, too. Each reward is written to a field of its own and combined into
``reward`` only when the whole batch is written back, so rewards may come from several stages.
An adapter that raises, takes too long or returns what is no finite number is handled by the
reward's ``on_error`` and by nothing else: there is no silent zero.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rolecall.batches.concurrency import gather_bounded
from rolecall.batches.finite import is_finite_number
from rolecall.batches.sample import Sample, ScoreFields, Scores
from rolecall.batches.words import in_words
from rolecall.errors import ModelUnavailableError, ScoringError
from rolecall.interfaces.reward_adapter import ScoringClient
from rolecall.interfaces.role import NamedReward, Stage, StageContext

_log = logging.getLogger(__name__)

_PAUSE_FIRST_S = 0.05
_PAUSE_MOST_S = 5.0


def reward_field(name: str) -> str:
    """Return the score field that holds the reward of that name before rewards are combined."""
    return f"reward:{name}"


def reward_stage(*, name: str, role: str | None, rewards: Sequence[NamedReward]) -> Stage:
    """Return a stage that computes the rewards for every sample, ``role`` awake meanwhile.

    It writes one :func:`reward_field` a reward. A sample's rewards are computed one after the
    other, up to ``max_concurrency`` samples at once; progress counts the response tokens scored.
    """

    async def run(samples: Sequence[Sample], context: StageContext) -> Scores:
        async def score(sample: Sample) -> ScoreFields | None:
            fields: dict[str, Any] = {}
            for reward in rewards:
                value = await score_with_policy(sample, reward, context.client)
                if value is None:
                    break
                fields[reward_field(reward.name)] = value
            context.progress(1, len(sample.response_ids))
            return fields if len(fields) == len(rewards) else None

        scored = await gather_bounded(samples, score, context.max_concurrency)
        return dict(zip((sample.sample_id for sample in samples), scored, strict=True))

    return Stage(
        name=name,
        role=role,
        reads=frozenset(field for reward in rewards for field in reward.adapter.reads),
        writes=frozenset(reward_field(reward.name) for reward in rewards),
        run=run,
    )


async def score_with_policy(
    sample: Sample, reward: NamedReward, client: ScoringClient | None
) -> float | None:
    """Return the reward, or None to drop the sample; ``timeout_s`` holds for each try.

    Raises:
        ScoringError: the policy is to fail the batch, or every retry failed, too; the adapter's
            own error is the cause.
    """
    import asyncio  # a while to import; plugins import this module while a job is planned

    tries = 1 + (reward.retries if reward.on_error == "retry" else 0)
    failure: Exception | None = None
    for attempt in range(tries):
        if failure is not None:
            await asyncio.sleep(_pause_s(attempt, failure))
        try:
            return await _score_once(sample, reward, client)
        except Exception as error:  # noqa: BLE001 (third-party code: its reward's policy decides)
            failure = error
            _log.info("%s, try %d of %d: %s", _where(sample, reward), attempt + 1, tries, in_words(error))
    assert failure is not None
    if reward.on_error == "drop_sample":
        _log.warning("%s: dropped from the batch: %s", _where(sample, reward), in_words(failure))
        return None
    after = f" after {tries} tries" if tries > 1 else ""
    raise ScoringError(f"{_where(sample, reward)}{after}: {in_words(failure)}") from failure


async def _score_once(sample: Sample, reward: NamedReward, client: ScoringClient | None) -> float:
    import asyncio

    limit = asyncio.timeout(reward.timeout_s)
    try:
        async with limit:
            value = await reward.adapter.score(sample, client)
    except TimeoutError as error:
        if limit.expired():
            raise ScoringError(f"no reward within {reward.timeout_s:g} s") from error
        raise
    if not is_finite_number(value):
        raise ScoringError(f"the adapter returned {value!r}, not a finite number")
    return float(value)


def _pause_s(attempt: int, failure: Exception) -> float:
    """Back off, and not shorter than a role that is not ready asked for."""
    pause_s = _PAUSE_FIRST_S * 2 ** (attempt - 1)
    if isinstance(failure, ModelUnavailableError):
        pause_s = max(pause_s, failure.retry_after_s)
    return min(pause_s, _PAUSE_MOST_S)


def _where(sample: Sample, reward: NamedReward) -> str:
    return f'reward "{reward.name}" ({reward.adapter.name}) of sample "{sample.sample_id}"'


def combine_rewards(scores: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the score fields with the rewards combined into ``reward``.

    One configured reward: its number. Several: a dict by name. None: the fields as they are.
    """
    fields = {reward_field(name) for name in names}
    combined = {field: value for field, value in scores.items() if field not in fields}
    if len(names) == 1:
        combined["reward"] = scores[reward_field(names[0])]
    elif names:
        combined["reward"] = {name: scores[reward_field(name)] for name in names}
    return combined
