"""Roles that break a promise, and one that breaks none."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import evolve, frozen
from starlette.responses import JSONResponse

from rolecall.api import (
    ROLECALL_API,
    Endpoint,
    PayloadError,
    RequestError,
    Sample,
    Scores,
    Stage,
    StageContext,
    StageRequest,
    UpstreamCall,
    WeightSource,
    check_native_payload,
    gather_bounded,
    reward_field,
    reward_stage,
)
from rolecall.testing import RoleContract


@frozen(kw_only=True)
class Options:
    pass


async def ping(request: Any, gateway: Any) -> Any:
    return JSONResponse({"role": gateway.role})


class SoundRole:
    """Has all that a role may have."""

    name: ClassVar[str] = "sound_role"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[Options]] = Options
    weight_sources: ClassVar[tuple[WeightSource, ...]] = (WeightSource.STATIC,)
    deferrable: ClassVar[bool] = True

    def __init__(self, options: Options) -> None: ...

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        check_native_payload(payload)
        return UpstreamCall(path="/generate", payload=payload)

    def endpoints(self) -> Sequence[Endpoint]:
        return [Endpoint(method="POST", path="/ping/{count}", handler=ping)]

    def scoring_stages(self, request: StageRequest) -> Sequence[Stage]:
        own = Stage(
            name="critic",
            role=self.name,
            reads=frozenset({"response"}),
            writes=frozenset({"critique"}),
            run=self.run,
        )
        if not request.rewards:
            return [own]
        return [own, reward_stage(name="rewards", role=self.name, rewards=request.rewards)]

    async def run(self, samples: Sequence[Sample], context: StageContext) -> Scores:
        async def score(sample: Sample) -> dict[str, Any] | None:
            fields = await self.score(sample, context)
            context.progress(1, len(sample.response_ids))
            return fields

        scored = await gather_bounded(samples, score, context.max_concurrency)
        return {sample.sample_id: fields for sample, fields in zip(samples, scored, strict=True)}

    async def score(self, sample: Sample, context: StageContext) -> dict[str, Any] | None:
        assert context.client is not None
        answer = await context.client.generate({"text": f"?{sample.response}"})
        return {"critique": float(answer["text"])}

    def generation(self) -> Any:
        return None


class TestSoundRole(RoleContract):
    plugin = SoundRole
    fails: ClassVar = {}


class PayloadContract(RoleContract):
    """What a role that is wrong before any stage could fail."""

    concerns: ClassVar = "payload|field|endpoint|entry_point"


class StageContract(RoleContract):
    """What a role whose scoring is wrong could fail."""

    concerns: ClassVar = "^((?!payload|endpoint|generation).)*$"


class Twofold(SoundRole):
    """Tells a weight source twice."""

    name = "twofold"
    weight_sources: ClassVar[tuple[WeightSource, ...]] = (WeightSource.STATIC, WeightSource.STATIC)


class TestTwofold(RoleContract):
    plugin = Twofold
    fails: ClassVar = {"test_its_weight_sources_are_told_once_each": "weight_sources names one twice"}


# --- payloads


class Filling(SoundRole):
    """Writes its defaults into the caller's payload."""

    name = "filling"

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        payload.setdefault("return_logprob", True)
        return super().adapt_generate(payload)


class TestFilling(PayloadContract):
    plugin = Filling
    fails: ClassVar = {"test_a_payload_is_never_changed": "adapt_generate changed"}


class Choosy(SoundRole):
    """Sends what it knows, and says nothing of the rest."""

    name = "choosy"

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        call = super().adapt_generate(payload)
        known = (
            "text",
            "input_ids",
            "sampling_params",
            "stream",
            "rid",
            "return_logprob",
            "logprob_start_len",
        )
        return evolve(call, payload={name: payload[name] for name in known if name in payload})


class TestChoosy(PayloadContract):
    plugin = Choosy
    fails: ClassVar = {
        "test_a_field_it_does_not_know_is_passed_on_or_refused": "never_heard_of was dropped of"
    }


class Trusting(SoundRole):
    """Leaves it to the engine to refuse a payload."""

    name = "trusting"

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        return UpstreamCall(path="/generate", payload=payload)


class TestTrusting(PayloadContract):
    plugin = Trusting
    fails: ClassVar = {
        "test_a_wrong_payload_is_refused_by_its_field": "{} was not refused; its text is wrong"
    }


class Blunt(SoundRole):
    """Stumbles over what is wrong instead of refusing it."""

    name = "blunt"

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        if not isinstance(payload.get("text", ""), str):
            raise TypeError("expected str")
        return super().adapt_generate(payload)


class TestBlunt(PayloadContract):
    plugin = Blunt
    fails: ClassVar = dict.fromkeys(
        ("test_a_wrong_payload_is_refused_by_its_field", "test_a_payload_is_never_changed"),
        "TypeError: expected str",
    )


class Wrapping(SoundRole):
    """Puts a prompt into its template, however often it comes by."""

    name = "wrapping"

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        call = super().adapt_generate(payload)
        if payload.get("text") is None:
            return call
        return evolve(call, payload={**payload, "text": f"Question: {payload['text']}"})


class TestWrapping(PayloadContract):
    plugin = Wrapping
    fails: ClassVar = {"test_a_payload_is_adapted_alike_every_time": "adapting what is adapted changes it"}


class Listing(SoundRole):
    """Takes token ids as a list only."""

    name = "listing"

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        call = super().adapt_generate(payload)
        if not isinstance(payload.get("input_ids", []), list):
            raise PayloadError("input_ids: must be a list", field="input_ids")
        return call


class TestListing(PayloadContract):
    plugin = Listing
    fails: ClassVar = {
        "test_token_ids_of_a_payload_may_come_undecoded": "PayloadError: input_ids: must be a list"
    }


class Elsewhere(SoundRole):
    """Sends requests where no engine listens."""

    name = "elsewhere"

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        return evolve(super().adapt_generate(payload), path="/v1/completions")


class TestElsewhere(PayloadContract):
    plugin = Elsewhere
    fails: ClassVar = {
        "test_a_payload_it_takes_can_be_sent": "no engine serves /v1/completions",
        "test_its_endpoints_stand_beside_the_standard_ones": "404",
    }


# --- endpoints


class Usurping(SoundRole):
    """Answers /health itself."""

    name = "usurping"

    def endpoints(self) -> Sequence[Endpoint]:
        return [Endpoint(method="GET", path="/health", handler=ping)]


class TestUsurping(PayloadContract):
    plugin = Usurping
    fails: ClassVar = {
        "test_its_endpoints_stand_beside_the_standard_ones": "endpoint GET /health .* is already served"
    }


class Stumbling(SoundRole):
    """Has an endpoint that has never been called."""

    name = "stumbling"

    def endpoints(self) -> Sequence[Endpoint]:
        async def handler(request: Any, gateway: Any) -> Any:
            return JSONResponse((await request.json())["amount"])

        return [Endpoint(method="POST", path="/grow", handler=handler)]


class TestStumbling(PayloadContract):
    plugin = Stumbling
    fails: ClassVar = {"test_its_endpoints_stand_beside_the_standard_ones": "path='/grow'"}


# --- scoring stages


class Changing(SoundRole):
    """Calls its stage another name every time."""

    name = "changing"
    number: ClassVar = itertools.count()

    def scoring_stages(self, request: StageRequest) -> Sequence[Stage]:
        own, *others = super().scoring_stages(request)
        return [evolve(own, name=f"critic-{next(self.number)}"), *others]


class TestChanging(StageContract):
    plugin = Changing
    fails: ClassVar = {"test_its_stages_are_the_same_every_time": "the second time they are others"}


class Doubling(SoundRole):
    """Has two stages of one name."""

    name = "doubling"

    def scoring_stages(self, request: StageRequest) -> Sequence[Stage]:
        own, *others = super().scoring_stages(request)
        return [own, *(evolve(stage, name=own.name) for stage in others)]


class TestDoubling(StageContract):
    plugin = Doubling
    fails: ClassVar = {"test_its_stages_fit_into_a_batch": 'stage "critic" is declared 2 times'}


class Picking(SoundRole):
    """Computes the first reward only."""

    name = "picking"

    def scoring_stages(self, request: StageRequest) -> Sequence[Stage]:
        return super().scoring_stages(evolve(request, rewards=request.rewards[:1]))


class TestPicking(StageContract):
    plugin = Picking
    fails: ClassVar = {
        "test_rewards_that_name_the_role_are_all_written": "its stages write .'reward:first'.\n",
        "test_every_reward_is_the_one_of_its_adapter": "KeyError: 'reward:second'",
    }


class Omitting(SoundRole):
    """Does not declare what its adapters read."""

    name = "omitting"

    def scoring_stages(self, request: StageRequest) -> Sequence[Stage]:
        own, *others = super().scoring_stages(request)
        return [own, *(evolve(stage, reads=frozenset({"response"})) for stage in others)]


class TestOmitting(StageContract):
    plugin = Omitting
    fails: ClassVar = {
        "test_rewards_that_name_the_role_are_all_written": r"does not read \['prompt.answer'\]"
    }


class Swapping(SoundRole):
    """Mixes its rewards up."""

    name = "swapping"

    def scoring_stages(self, request: StageRequest) -> Sequence[Stage]:
        own, *others = super().scoring_stages(request)
        return [own, *(evolve(stage, run=self.swapped(stage.run, request)) for stage in others)]

    def swapped(self, run: Any, request: StageRequest) -> Any:
        first, second = (reward_field(reward.name) for reward in request.rewards)

        async def swapped(samples: Sequence[Sample], context: StageContext) -> Scores:
            scores = await run(samples, context)
            return {
                name: fields and {first: fields[second], second: fields[first]}
                for name, fields in scores.items()
            }

        return swapped


class TestSwapping(StageContract):
    plugin = Swapping
    fails: ClassVar = {"test_every_reward_is_the_one_of_its_adapter": "got .* as first"}


class Strict(SoundRole):
    """Asks the adapters itself, and so knows nothing of policies."""

    name = "strict"

    def scoring_stages(self, request: StageRequest) -> Sequence[Stage]:
        own, *others = super().scoring_stages(request)
        return [own, *(evolve(stage, run=self.scorer(request)) for stage in others)]

    def scorer(self, request: StageRequest) -> Any:
        async def run(samples: Sequence[Sample], context: StageContext) -> Scores:
            async def score(sample: Sample) -> dict[str, Any]:
                fields = {
                    reward_field(reward.name): await reward.adapter.score(sample, context.client)
                    for reward in request.rewards
                }
                context.progress(1, 0)
                return fields

            scored = await gather_bounded(samples, score, context.max_concurrency)
            return dict(zip((sample.sample_id for sample in samples), scored, strict=True))

        return run


class TestStrict(StageContract):
    plugin = Strict
    fails: ClassVar = {"test_a_reward_that_fails_is_its_policy_s_affair": "it fails on this sample"}


class Dropping(SoundRole):
    """Leaves out whom it could not ask about."""

    name = "dropping"

    async def score(self, sample: Sample, context: StageContext) -> dict[str, Any] | None:
        try:
            return await super().score(sample, context)
        except RequestError:
            return None


class TestDropping(StageContract):
    plugin = Dropping
    fails: ClassVar = {
        "test_a_request_that_fails_fails_the_stage": '"critic" failed from request 0 on, and it returned'
    }


class Inventing(SoundRole):
    """Has a score for whom it could not ask about."""

    name = "inventing"

    async def score(self, sample: Sample, context: StageContext) -> dict[str, Any] | None:
        try:
            return await super().score(sample, context)
        except RequestError:
            return {"critique": 0.0}


class TestInventing(StageContract):
    plugin = Inventing
    fails: ClassVar = {
        "test_a_request_that_fails_fails_the_stage": r"and it returned {'prompt-0/0': {'critique': 0.0}"
    }


class Skipping(SoundRole):
    """Has no opinion about an empty response, and so no score."""

    name = "skipping"

    async def run(self, samples: Sequence[Sample], context: StageContext) -> Scores:
        scores = await super().run(samples, context)
        return {sample.sample_id: scores[sample.sample_id] for sample in samples if sample.response}


class TestSkipping(StageContract):
    plugin = Skipping
    fails: ClassVar = {"test_every_sample_is_scored": "2 of 8 samples were not scored|1 of 8 samples"}


class Undeclared(SoundRole):
    """Writes a field more."""

    name = "undeclared"

    async def score(self, sample: Sample, context: StageContext) -> dict[str, Any] | None:
        return {**(await super().score(sample, context) or {}), "mood": 1.0}


class TestUndeclared(StageContract):
    plugin = Undeclared
    fails: ClassVar = {"test_every_sample_is_scored": 'field "mood" was written but is not declared'}


class Peeking(SoundRole):
    """Reads another stage's field if it is there already."""

    name = "peeking"

    async def score(self, sample: Sample, context: StageContext) -> dict[str, Any] | None:
        sample.scores.get("teacher_log_probs")
        return await super().score(sample, context)


class TestPeeking(StageContract):
    plugin = Peeking
    fails: ClassVar = {
        "test_a_stage_reads_no_other_stage_s_fields_than_it_declares": "read .'teacher_log_probs'., which"
    }


class Scribbling(SoundRole):
    """Writes its scores into the samples right away."""

    name = "scribbling"

    async def score(self, sample: Sample, context: StageContext) -> dict[str, Any] | None:
        fields = await super().score(sample, context)
        sample.scores.update(fields or {})  # type: ignore[attr-defined]
        return fields


class TestScribbling(StageContract):
    plugin = Scribbling
    fails: ClassVar = {"test_samples_are_left_as_they_were": 'stage "critic" changed prompt-0/0'}


class Totalling(SoundRole):
    """Tells totals as progress."""

    name = "totalling"

    async def run(self, samples: Sequence[Sample], context: StageContext) -> Scores:
        done = itertools.count(1)

        def progress(samples: int, tokens: int) -> None:
            context.progress(next(done), tokens)

        return await super().run(samples, evolve(context, progress=progress))


class TestTotalling(StageContract):
    plugin = Totalling
    fails: ClassVar = {"test_progress_counts_every_sample_once": r"told of 36 of 8 samples"}


class Hasty(SoundRole):
    """Asks about all samples at once."""

    name = "hasty"

    async def run(self, samples: Sequence[Sample], context: StageContext) -> Scores:
        return await super().run(samples, evolve(context, max_concurrency=max(1, len(samples))))


class TestHasty(StageContract):
    plugin = Hasty
    fails: ClassVar = {
        "test_no_more_requests_at_once_than_allowed": "had 8 requests in flight; allowed were 1"
    }


class Gathering(SoundRole):
    """Raises the first error and lets the others run."""

    name = "gathering"

    async def run(self, samples: Sequence[Sample], context: StageContext) -> Scores:
        bound = asyncio.Semaphore(context.max_concurrency)

        async def score(sample: Sample) -> dict[str, Any] | None:
            async with bound:
                fields = await self.score(sample, context)
                context.progress(1, 0)
                return fields

        scored = await asyncio.gather(*map(score, samples))
        return dict(zip((sample.sample_id for sample in samples), scored, strict=True))


class TestGathering(StageContract):
    plugin = Gathering
    fails: ClassVar = {"test_a_request_that_fails_fails_the_stage": "it raised and (still asks|left tasks)"}


class Finishing(SoundRole):
    """Answers with what it has when it is cancelled."""

    name = "finishing"

    async def run(self, samples: Sequence[Sample], context: StageContext) -> Scores:
        try:
            return await super().run(samples, context)
        except asyncio.CancelledError:
            return {}


class TestFinishing(StageContract):
    plugin = Finishing
    fails: ClassVar = {
        "test_a_stage_that_is_cancelled_ends": r"it was cancelled, and swallowed that: it returned \{\}"
    }
