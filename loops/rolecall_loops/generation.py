"""Samples of a job's policy, for a loop that has tokenised its prompts itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rolecall.api import AskedJob, GenerationContext, Prompt, Sample, UpstreamError

from .rewards import MAX_CONCURRENCY


def _nobody_looks(samples: int, tokens: int) -> None:
    del samples, tokens


async def generate(
    asked: AskedJob,
    prompts: Mapping[str, Sequence[int]],
    *,
    samples_per_prompt: int,
    sampling: Mapping[str, Any],
) -> list[list[Sample]]:
    """Return a group of samples for each prompt, in order, with the log-probability of each sampled token.

    prompts: id → token ids; the ids should be those of no other call, since seeds follow from them.
    sampling: native names (``max_new_tokens``).

    Raises:
        RequestError: a sample could not be made; nothing is returned then.
        JobError: no role of the job makes samples, or it is not known where its gateways are.
    """
    role, run = asked.generation()
    context = GenerationContext(
        client=await asked.client(role),
        samples_per_prompt=samples_per_prompt,
        sampling=sampling,
        max_concurrency=MAX_CONCURRENCY,
        progress=_nobody_looks,
        prompt_ids=prompts,
    )
    samples = list(await run([Prompt(prompt_id=name, text="") for name in prompts], context))
    wanted = [(name, tuple(ids)) for name, ids in prompts.items() for _ in range(samples_per_prompt)]
    if [(sample.group_id, sample.prompt_ids) for sample in samples] != wanted:
        raise UpstreamError(
            f'the role "{role}" made samples of other prompts than it was given, or not of all of them'
        )
    return [samples[at : at + samples_per_prompt] for at in range(0, len(samples), samples_per_prompt)]
