"""Scores labelled verdicts with a reward of a job, as a batch would, and keeps what was raised."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import evolve

from rolecall.batches.concurrency import gather_bounded
from rolecall.batches.rewards import score_with_policy
from rolecall.batches.words import in_words
from rolecall.calibration.labelled import Labelled
from rolecall.errors import ScoringError
from rolecall.interfaces.reward_adapter import ScoringClient
from rolecall.interfaces.role import NamedReward


async def score_labelled(
    labelled: Sequence[Labelled],
    reward: NamedReward,
    client: ScoringClient | None,
    *,
    max_concurrency: int,
    progress: Callable[[int], None],
) -> list[float | str]:
    """Return the reward of each, or what was raised, as text; the reward's retries and time hold.

    progress: called with 1 when one is done.
    """
    # What fails a batch or drops a sample is here an error that is counted.
    kept = reward if reward.on_error == "retry" else evolve(reward, on_error="fail_batch")

    async def score(one: Labelled) -> float | str:
        try:
            value = await score_with_policy(one.sample, kept, client)
        except ScoringError as error:
            value = _words(error)
        progress(1)
        assert value is not None, "no policy here drops a sample"
        return value

    return await gather_bounded(labelled, score, max_concurrency)


def _words(error: ScoringError) -> str:
    """Return the adapter's own words: those of the error around it name the sample."""
    cause = error.__cause__
    return in_words(cause if isinstance(cause, Exception) else error)
