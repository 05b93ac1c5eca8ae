"""Roles whose generation breaks a promise, and one whose generation breaks none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import evolve, frozen

from rolecall.api import (
    ROLECALL_API,
    GenerationContext,
    Prompt,
    RequestError,
    Sample,
    StageRequest,
    UpstreamCall,
    WeightSource,
    check_native_payload,
    gather_bounded,
)
from rolecall.testing import RoleContract


@frozen(kw_only=True)
class Options:
    pass


class SoundWriter:
    """Makes samples and does nothing else."""

    name: ClassVar[str] = "sound_writer"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[Options]] = Options
    weight_sources: ClassVar[tuple[WeightSource, ...]] = (WeightSource.STATIC,)
    deferrable: ClassVar[bool] = True

    def __init__(self, options: Options) -> None: ...

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        check_native_payload(payload)
        return UpstreamCall(path="/generate", payload=payload)

    def endpoints(self) -> Sequence[Any]:
        return ()

    def scoring_stages(self, request: StageRequest) -> Sequence[Any]:
        return ()

    def generation(self) -> Any:
        return self.generate

    async def generate(self, prompts: Sequence[Prompt], context: GenerationContext) -> Sequence[Sample]:
        turns = [(prompt, index) for prompt in prompts for index in range(context.samples_per_prompt)]

        async def make(turn: tuple[Prompt, int]) -> Sample:
            made = await self.sample(*turn, context)
            context.progress(1, len(made.response_ids))
            return made

        return await gather_bounded(turns, make, context.max_concurrency)

    async def sample(self, prompt: Prompt, index: int, context: GenerationContext) -> Sample:
        answer = await context.client.generate(
            {
                "text": prompt.text,
                "sampling_params": dict(context.sampling),
                "return_logprob": True,
                "return_prompt_token_ids": True,
            }
        )
        return Sample(
            sample_id=f"{prompt.prompt_id}/{index}",
            group_id=prompt.prompt_id,
            prompt=prompt,
            prompt_ids=tuple(answer["prompt_token_ids"]),
            response=answer["text"],
            response_ids=tuple(answer["output_ids"]),
            rollout_log_probs=tuple(entry[0] for entry in answer["meta_info"]["output_token_logprobs"]),
            finish_reason=answer["meta_info"]["finish_reason"]["type"],
            weight_version=None,
        )


class TestSoundWriter(RoleContract):
    plugin = SoundWriter
    fails: ClassVar = {}


class GenerationContract(RoleContract):
    """What a role whose generation is wrong could fail."""

    concerns: ClassVar = "generation|entry_point"


class Partial(SoundWriter):
    """Returns what could be made."""

    name = "partial"

    async def generate(self, prompts: Sequence[Prompt], context: GenerationContext) -> Sequence[Sample]:
        made: list[Sample] = []
        for prompt in prompts:
            try:
                made += await super().generate([prompt], context)
            except (RequestError, KeyError):
                continue
        return made


class TestPartial(GenerationContract):
    plugin = Partial
    fails: ClassVar = {
        "test_generation_fails_whole": "request 0 of 12 failed, and it returned",
        "test_generation_refuses_answers_that_are_none": "the engine answered {}, and it returned",
    }


class Racing(SoundWriter):
    """Returns samples as they come."""

    name = "racing"

    async def generate(self, prompts: Sequence[Prompt], context: GenerationContext) -> Sequence[Sample]:
        made: list[Sample] = []

        async def make(prompt: Prompt) -> None:
            for index in range(context.samples_per_prompt):
                made.append(await self.sample(prompt, index, context))
                context.progress(1, 0)

        await gather_bounded(prompts, make, context.max_concurrency)
        return made


class TestRacing(GenerationContract):
    plugin = Racing
    fails: ClassVar = {
        "test_generation_returns_complete_groups_in_order": "samples are not in the order of their prompts"
    }


class Tolerant(SoundWriter):
    """Makes a sample of whatever the engine said."""

    name = "tolerant"

    async def sample(self, prompt: Prompt, index: int, context: GenerationContext) -> Sample:
        try:
            return await super().sample(prompt, index, context)
        except KeyError:
            return Sample(
                sample_id=f"{prompt.prompt_id}/{index}",
                group_id=prompt.prompt_id,
                prompt=prompt,
                prompt_ids=(1,),
                response="",
                response_ids=(),
                rollout_log_probs=(),
                finish_reason="stop",
                weight_version=None,
            )


class TestTolerant(GenerationContract):
    plugin = Tolerant
    fails: ClassVar = {
        "test_generation_refuses_answers_that_are_none": "the engine answered {}, and it returned"
    }


class Crowding(SoundWriter):
    """Asks for all samples at once, and tells nobody."""

    name = "crowding"

    async def generate(self, prompts: Sequence[Prompt], context: GenerationContext) -> Sequence[Sample]:
        return await super().generate(prompts, evolve(context, max_concurrency=100))


class TestCrowding(GenerationContract):
    plugin = Crowding
    fails: ClassVar = {
        "test_generation_tells_its_progress_and_keeps_its_bounds": "12 requests were in flight"
    }


class Seeding(SoundWriter):
    """Moves the job's own seed on."""

    name = "seeding"

    async def sample(self, prompt: Prompt, index: int, context: GenerationContext) -> Sample:
        context.sampling["sampling_seed"] += 1  # type: ignore[index]
        return await super().sample(prompt, index, context)


class TestSeeding(GenerationContract):
    plugin = Seeding
    fails: ClassVar = {"test_generation_leaves_what_it_was_given": "it changed the sampling parameters"}


class Lingering(SoundWriter):
    """Its requests go on when nobody wants the samples any more."""

    name = "lingering"

    async def sample(self, prompt: Prompt, index: int, context: GenerationContext) -> Sample:
        return await asyncio.shield(asyncio.ensure_future(super().sample(prompt, index, context)))


class TestLingering(GenerationContract):
    plugin = Lingering
    fails: ClassVar = {
        "test_generation_that_is_cancelled_ends": "it left tasks behind",
    }
