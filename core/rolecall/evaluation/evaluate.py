"""An evaluation: samples without log-probabilities, every reward of each, nothing staged or published.

Asks roles that are awake, and wakes none. A request that fails ends it, as in a batch; a reward that fails is
an error that is counted, in no figure, and never a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from rolecall.batches.concurrency import gather_bounded
from rolecall.batches.rewards import score_with_policy
from rolecall.batches.sample import Prompt, Sample
from rolecall.batches.words import in_words
from rolecall.errors import ScoringError
from rolecall.interfaces.reward_adapter import ScoringClient
from rolecall.interfaces.role import Generate, GenerationContext, NamedReward

EVALUATED = "evaluate"
"""What ids of prompts begin with, so that seeds of samples are not those of a batch."""


@frozen(kw_only=True)
class Evaluated:
    """One sample. ``rewards``: by name, a number, or what was raised, as text."""

    sample: Sample
    rewards: Mapping[str, float | str]


async def evaluate(
    prompts: Sequence[Prompt],
    *,
    generate: Generate,
    client: ScoringClient,
    rewards: Sequence[NamedReward],
    clients: Mapping[str, ScoringClient],
    samples_per_prompt: int = 1,
    sampling: Mapping[str, Any] | None = None,
    max_concurrency: int = 16,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Evaluated]:
    """Return every sample with its rewards, in the order of the prompts.

    client: of the role that generates. clients: of the roles that rewards ask. progress: called with 1 for
    each sample made and for each one scored.

    Raises:
        RequestError: a sample could not be made.
        ScoringError: the samples are not those of the prompts.
    """
    context = GenerationContext(
        client=client,
        samples_per_prompt=samples_per_prompt,
        sampling=sampling or {},
        max_concurrency=max_concurrency,
        progress=lambda samples, _: progress(samples),
        log_probs=False,
    )
    named = [evolve(prompt, prompt_id=f"{EVALUATED}/{prompt.prompt_id}") for prompt in prompts]
    samples = await generate(named, context)
    groups = [prompt.prompt_id for prompt in named for _ in range(samples_per_prompt)]
    if [sample.group_id for sample in samples] != groups:
        raise ScoringError(
            f"{len(samples)} samples were made for {len(prompts)} prompts, {samples_per_prompt} for each; "
            "they are not in order, or some are missing"
        )

    async def score(sample: Sample) -> Evaluated:
        values = {
            reward.name: await _score(sample, reward, clients.get(reward.adapter.role or ""))
            for reward in rewards
        }
        progress(1)
        return Evaluated(sample=sample, rewards=values)

    return await gather_bounded(samples, score, max_concurrency)


async def _score(sample: Sample, reward: NamedReward, client: ScoringClient | None) -> float | str:
    # What fails a batch or drops a sample is here an error that is counted.
    kept = reward if reward.on_error == "retry" else evolve(reward, on_error="fail_batch")
    try:
        value = await score_with_policy(sample, kept, client)
    except ScoringError as error:
        cause = error.__cause__
        return in_words(cause if isinstance(cause, Exception) else error)
    assert value is not None, "no policy here drops a sample"
    return value
