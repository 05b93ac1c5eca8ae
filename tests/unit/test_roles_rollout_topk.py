"""The policy's own most probable tokens, kept with a sample for those who score them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rolecall.api import GenerationContext, Prompt, Sample, UpstreamError
from rolecall_roles.rollout.options import RolloutOptions
from rolecall_roles.rollout.role import RolloutRole

GOOD = [[[-0.5, 7, None], [-1.0, 9, None]], [[-0.2, 8, None], [-3.0, 7, None]]]


class Engine:
    def __init__(self, top: Any) -> None:
        self.top = top
        self.requests: list[Mapping[str, Any]] = []

    async def generate(self, payload: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        self.requests.append(payload)
        if payload["sampling_params"]["max_new_tokens"] == 0:
            return {"text": "", "output_ids": [], "prompt_token_ids": [1, 2], "meta_info": {}}
        meta = {
            "output_token_logprobs": [[-0.5, 7, None], [-0.2, 8, None]],
            "finish_reason": {"type": "stop"},
            "output_top_logprobs": self.top,
        }
        return {"text": "ok", "output_ids": [7, 8], "meta_info": meta}

    async def chat(self, messages: Any, **_: Any) -> str:
        raise AssertionError("rollout sends raw payloads")


async def made(engine: Engine, top_k: int, *, log_probs: bool = True) -> Sample:
    generate = RolloutRole(RolloutOptions(top_k=top_k)).generation()
    assert generate is not None
    context = GenerationContext(
        client=engine,
        samples_per_prompt=1,
        sampling={"max_new_tokens": 4},
        max_concurrency=1,
        progress=lambda *_: None,
        log_probs=log_probs,
    )
    (sample,) = await generate([Prompt(prompt_id="p", text="?")], context)
    return sample


async def test_the_ids_are_asked_for_and_kept_in_their_order() -> None:
    engine = Engine(GOOD)
    assert (await made(engine, 2)).rollout_topk_ids == ((7, 9), (8, 7))
    assert engine.requests[-1]["top_logprobs_num"] == 2


async def test_none_are_asked_for_by_default_nor_in_an_evaluation() -> None:
    for engine, top_k, log_probs in ((Engine(None), 0, True), (Engine(None), 2, False)):
        assert (await made(engine, top_k, log_probs=log_probs)).rollout_topk_ids is None
        assert "top_logprobs_num" not in engine.requests[-1]


@pytest.mark.parametrize(
    ("top", "message"),
    [
        (None, "no usable meta_info.output_top_logprobs"),
        (GOOD[:1], "answered 2 output_ids with 1 output_top_logprobs"),
        ([GOOD[0], None], "no lists of"),
        ([GOOD[0], GOOD[1][:1]], r"output_top_logprobs\[1\] names .* not 2 different tokens"),
        ([GOOD[0], [[-1, 7, None]] * 2], r"output_top_logprobs\[1\] names .* not 2 different tokens"),
        ([GOOD[0], [[-1, 7, None], [-1, None, None]]], r"\[1\] names .* not 2 different tokens"),
    ],
)
async def test_tokens_that_can_not_be_right_fail_generation(top: Any, message: str) -> None:
    with pytest.raises(UpstreamError, match=message):
        await made(Engine(top), 2)
