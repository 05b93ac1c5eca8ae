"""The rollout role: payloads, generation with token-in/token-out, what it refuses from an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from rolecall.api import (
    GenerationContext,
    NamedReward,
    PayloadError,
    Prompt,
    Sample,
    StageRequest,
    UpstreamError,
)
from rolecall_roles.rollout.options import RolloutOptions
from rolecall_roles.rollout.role import RolloutRole

PROMPTS = [Prompt(prompt_id=name, text=name * 2) for name in ("a", "b", "c")]


class Engine:
    """A client whose engine answers with ids made from the input; ``spoil`` changes an answer."""

    def __init__(self, spoil: Callable[[dict[str, Any]], Any] | None = None, *, echo: bool = True) -> None:
        self.spoil = spoil
        self.echo = echo
        self.requests: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.under_way = self.peak = 0

    async def generate(self, payload: Mapping[str, Any], **selectors: Any) -> dict[str, Any]:
        self.requests.append((dict(payload), selectors))
        self.under_way += 1
        self.peak = max(self.peak, self.under_way)
        try:
            await asyncio.sleep(0)
        finally:
            self.under_way -= 1
        if payload["sampling_params"]["max_new_tokens"] == 0:
            return self._tokenised(payload)
        ids = payload["input_ids"]
        answer: dict[str, Any] = {
            "text": "ok",
            "output_ids": [7, 8],
            "meta_info": {
                "prompt_tokens": len(ids),
                "completion_tokens": 2,
                "output_token_logprobs": [[-0.5, 7, None], [-1, 8, None]],
                "finish_reason": {"type": "stop", "matched": 8},
                "weight_version": "3",
            },
        }
        if self.echo:
            answer["prompt_token_ids"] = list(ids)
        if not payload["return_logprob"]:
            del answer["meta_info"]["output_token_logprobs"]
        if self.spoil is not None:
            self.spoil(answer)
        return answer

    def _tokenised(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        ids = [ord(letter) for letter in payload["text"]]
        if self.echo:
            return {"text": "", "output_ids": [], "prompt_token_ids": ids, "meta_info": {}}
        if payload.get("return_logprob"):
            pairs = [[None, ids[0], None], *([-0.1, token, None] for token in ids[1:])]
            return {"text": "", "output_ids": [], "meta_info": {"input_token_logprobs": pairs}}
        return {"text": "", "output_ids": [], "meta_info": {}}

    async def chat(self, messages: list[dict[str, Any]], **_: Any) -> str:
        raise AssertionError("rollout sends raw payloads")

    @property
    def samplings(self) -> list[dict[str, Any]]:
        return [payload["sampling_params"] for payload, _ in self.requests if "input_ids" in payload]


async def generate(
    engine: Engine,
    *,
    samples: int = 2,
    prompts: Sequence[Prompt] = PROMPTS,
    lora_path: str | None = None,
    log_probs: bool = True,
    **sampling: Any,
) -> Sequence[Sample]:
    run = RolloutRole(RolloutOptions(prompt_template="<{prompt}>", lora_path=lora_path)).generation()
    assert run is not None
    context = GenerationContext(
        client=engine,
        samples_per_prompt=samples,
        sampling={"max_new_tokens": 4, **sampling},
        max_concurrency=3,
        progress=lambda *_: None,
        log_probs=log_probs,
    )
    return await run(prompts, context)


async def test_samples_are_complete_groups_in_prompt_order() -> None:
    samples = await generate(Engine())
    assert [sample.sample_id for sample in samples] == ["a/0", "a/1", "b/0", "b/1", "c/0", "c/1"]
    assert [sample.group_id for sample in samples] == ["a", "a", "b", "b", "c", "c"]
    first = samples[0]
    assert first.prompt_ids == tuple(ord(letter) for letter in "<aa>")
    assert (first.response, first.response_ids, first.rollout_log_probs) == ("ok", (7, 8), (-0.5, -1.0))
    assert (first.finish_reason, first.weight_version, first.scores) == ("stop", "3", {})


async def test_a_prompt_is_tokenised_once_and_its_ids_are_sent_for_every_sample() -> None:
    engine = Engine()
    await generate(engine, samples=3)
    texts = [payload["text"] for payload, _ in engine.requests if "text" in payload]
    assert texts == ["<aa>", "<bb>", "<cc>"]
    sent = [payload for payload, _ in engine.requests if "input_ids" in payload]
    assert len(sent) == 9
    assert all(payload["return_logprob"] and "text" not in payload for payload in sent)
    keys = [selectors["affinity_key"] for _, selectors in engine.requests]
    assert sorted(keys) == sorted("abc" * 4)
    assert engine.peak == 3


async def test_an_engine_without_the_field_names_prompt_ids_beside_its_log_probs() -> None:
    engine = Engine(echo=False)
    samples = await generate(engine)
    assert samples[2].prompt_ids == tuple(ord(letter) for letter in "<bb>")


async def test_each_sample_has_a_seed_of_its_own_that_comes_again() -> None:
    first, again, other, none = Engine(), Engine(), Engine(), Engine()
    await generate(first, sampling_seed=7)
    await generate(again, sampling_seed=7)
    await generate(other, sampling_seed=8)
    await generate(none)
    seeds = [params["sampling_seed"] for params in first.samplings]
    assert len(set(seeds)) == 6
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert sorted(params["sampling_seed"] for params in again.samplings) == sorted(seeds)
    assert set(seeds).isdisjoint(params["sampling_seed"] for params in other.samplings)
    assert all("sampling_seed" not in params for params in none.samplings)


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"n": 2}, "batch.sampling.n"),
        ({"seed": 7}, "batch.sampling.seed"),
        ({"sampling_seed": "7"}, "batch.sampling.sampling_seed"),
    ],
)
async def test_sampling_that_would_be_misunderstood_is_refused(sampling: dict[str, Any], field: str) -> None:
    engine = Engine()
    with pytest.raises(PayloadError) as refused:
        await generate(engine, **sampling)
    assert refused.value.field == field
    assert engine.requests == []


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def spoil(answer: dict[str, Any]) -> None:
        *parents, last = path
        for parent in parents:
            answer = answer[parent]
        answer[last] = to

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_set("prompt_token_ids", to=[1]), "other prompt tokens than were sent"),
        (_set("meta_info", "prompt_tokens", to=3), "counted 3 prompt tokens of the 4"),
        (_set("output_ids", to=[7]), "counted 2 completion tokens and answered 1 output_ids"),
        (
            _set("meta_info", "output_token_logprobs", to=[[-1, 7]]),
            "2 output_ids with 1 output_token_logprobs",
        ),
        (
            _set("meta_info", "completion_tokens", to=3),
            "counted 3 completion tokens and answered 2 output_ids",
        ),
        (_set("output_ids", to=[7, 9]), r"output_token_logprobs\[1\] is about token 8, output_ids has 9"),
        (_set("output_ids", to=[7, "8"]), "output_ids with something that is no token id"),
        (_set("output_ids", to=None), "no usable output_ids"),
        (_set("text", to=None), "no usable text"),
        (_set("meta_info", to=None), "no usable meta_info"),
        (_set("meta_info", "output_token_logprobs", to=None), "no usable meta_info.output_token_logprobs"),
        (_set("meta_info", "output_token_logprobs", to=[[None, 7], [-1, 8]]), "log-probability None"),
        (
            _set("meta_info", "output_token_logprobs", to=[[float("nan"), 7], [-1, 8]]),
            "log-probability nan",
        ),
        (_set("meta_info", "output_token_logprobs", to=[[-1], [-1, 8]]), r"not \[log-prob, id, …\]"),
        (_set("meta_info", "finish_reason", to={"type": "abort"}), "ended a sample with .*abort"),
        (_set("meta_info", "finish_reason", to=None), "ended a sample with None"),
    ],
)
async def test_an_answer_that_contradicts_itself_fails_generation(spoil: Any, message: str) -> None:
    with pytest.raises(UpstreamError, match=message):
        await generate(Engine(spoil))


SEEING = Prompt(prompt_id="s", text="x", media={"image_data": ["data:image/png;base64,AA=="]})


def expanding(answer: dict[str, Any]) -> None:
    """As engines do: the one token that stands for the image becomes many."""
    first, *rest = answer["prompt_token_ids"]
    answer["prompt_token_ids"] = [first, *[rest[0]] * 5, *rest[1:]]
    answer["meta_info"]["prompt_tokens"] = len(answer["prompt_token_ids"])


async def test_what_a_prompt_shows_goes_to_the_engine_with_every_sample() -> None:
    engine = Engine(expanding)
    (first, _) = await generate(engine, prompts=[SEEING])
    tokenised, *sent = [payload for payload, _ in engine.requests]
    assert "image_data" not in tokenised, "the ids are those of the text"
    assert [payload["image_data"] for payload in sent] == [SEEING.media["image_data"]] * 2
    assert first.prompt_ids == tuple(ord(letter) for letter in "<x>"), "as they were sent"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_set("prompt_token_ids", to=[60, 62, 120]), "other prompt tokens than were sent"),
        (_set("meta_info", "prompt_tokens", to=2), "counted 2 prompt tokens of the 3"),
    ],
)
async def test_an_image_is_no_excuse_for_other_tokens(spoil: Any, message: str) -> None:
    with pytest.raises(UpstreamError, match=message):
        await generate(Engine(spoil), prompts=[SEEING])


async def test_without_an_image_no_token_may_be_added() -> None:
    with pytest.raises(UpstreamError, match="counted"):
        await generate(Engine(expanding))


async def test_an_adapter_goes_with_every_sample_and_none_with_no_option() -> None:
    engine, plain = Engine(), Engine()
    await generate(engine, lora_path="policy-lora")
    await generate(plain)
    assert {payload["lora_path"] for payload, _ in engine.requests if "input_ids" in payload} == {
        "policy-lora"
    }
    assert not any("lora_path" in payload for payload, _ in plain.requests)
    with pytest.raises(ValueError, match="lora_path"):
        RolloutOptions(lora_path="")


async def test_an_evaluation_asks_for_no_log_probs_and_needs_none() -> None:
    engine = Engine()
    samples = await generate(engine, log_probs=False)
    assert not any(payload.get("return_logprob") for payload, _ in engine.requests)
    assert {(sample.response_ids, sample.rollout_log_probs) for sample in samples} == {((7, 8), ())}


async def test_samples_of_one_batch_keep_each_the_version_it_was_made_with() -> None:
    versions = iter("112233")

    def spoil(answer: dict[str, Any]) -> None:
        answer["meta_info"]["weight_version"] = next(versions)

    samples = await generate(Engine(spoil))
    assert sorted(str(sample.weight_version) for sample in samples) == list("112233")


async def test_one_failed_sample_fails_all_and_leaves_no_request_under_way() -> None:
    engine = Engine()
    calls = 0

    def spoil(answer: dict[str, Any]) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise UpstreamError("engine died")

    engine.spoil = spoil
    with pytest.raises(UpstreamError, match="engine died"):
        await generate(engine, samples=8)
    assert engine.under_way == 0
    assert len(engine.samplings) < 24


def test_a_template_needs_its_placeholder_and_nothing_else_is_replaced() -> None:
    assert RolloutOptions(prompt_template="{x}{prompt}{}").render("{prompt}") == "{x}{prompt}{}"
    assert RolloutOptions().render("hi") == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(ValueError, match=r"prompt_template must contain \{prompt\}"):
        RolloutOptions(prompt_template="no place")


def test_raw_payloads_pass_unchanged() -> None:
    payload = {"input_ids": [1, 2], "sampling_params": {"n": 1}, "return_logprob": True, "image_data": ["x"]}
    call = RolloutRole(RolloutOptions()).adapt_generate(payload)
    assert call.path == "/generate"
    assert call.payload is payload
    assert call.reply is None


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({}, "text"),
        ({"text": None}, "text"),
        ({"text": "a", "input_ids": [1]}, "input_ids"),
        ({"messages": [], "text": "a"}, "messages"),
        ({"text": ["a", "b"]}, "text"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[1], [2]]}, "input_ids"),
        ({"input_ids": [1, True]}, "input_ids"),
        ({"input_ids": [1, -1]}, "input_ids"),
        ({"input_ids": "1 2"}, "input_ids"),
        ({"text": "a", "sampling_params": [1]}, "sampling_params"),
        ({"text": "a", "sampling_params": {"n": 4}}, "sampling_params.n"),
        ({"text": "a", "return_logprob": "yes"}, "return_logprob"),
        ({"text": "a", "stream": 1}, "stream"),
        ({"text": "a", "top_logprobs_num": -1}, "top_logprobs_num"),
        ({"text": "a", "logprob_start_len": 1.5}, "logprob_start_len"),
    ],
)
def test_a_wrong_payload_is_refused_by_field(payload: dict[str, Any], field: str) -> None:
    with pytest.raises(PayloadError) as refused:
        RolloutRole(RolloutOptions()).adapt_generate(payload)
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")


def test_rollout_scores_nothing_but_rewards_that_ask_the_policy() -> None:
    class AsksThePolicy:
        name = "asks_the_policy"
        role = "rollout"
        reads = frozenset({"response"})

    role = RolloutRole(RolloutOptions())
    assert role.scoring_stages(StageRequest()) == ()
    adapter: Any = AsksThePolicy()
    reward = NamedReward(name="agreement", adapter=adapter, on_error="retry", retries=1, timeout_s=1.0)
    (stage,) = role.scoring_stages(StageRequest(rewards=(reward,)))
    assert (stage.role, stage.reads, stage.writes) == ("rollout", {"response"}, {"reward:agreement"})
