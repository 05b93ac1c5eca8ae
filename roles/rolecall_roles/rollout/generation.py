"""The generation stage: complete groups of samples for a batch's prompts.

Each prompt is tokenised once, by the engine unless the caller has done so, and every sample of its group is
asked for with those ids: token in, token out, nothing is tokenised twice. What a prompt shows beside its
text (images …) goes along as it is. The group id is the affinity key, so a group meets one replica's prefix
cache. The first request that fails ends the stage: the others are cancelled, which makes the client have
their engines abort them, and groups that lack a sample are never returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from attrs import frozen

from rolecall.api import GenerationContext, PayloadError, Prompt, Sample, UpstreamError, gather_bounded

from .answer import read_completion, read_ids
from .options import RolloutOptions

_SEED = "sampling_seed"
_SEEDS = 2**31 - 1
"""Seeds are kept below this, which every engine can hold."""


@frozen
class _Turn:
    """One sample to be made: the ``index``-th response to a prompt."""

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    index: int


class Generation:
    """Makes samples; an instance is the role's ``Generate``."""

    def __init__(self, options: RolloutOptions) -> None:
        self._options = options

    async def __call__(self, prompts: Sequence[Prompt], context: GenerationContext) -> Sequence[Sample]:
        _check_sampling(context.sampling)

        async def tokenise(prompt: Prompt) -> tuple[int, ...]:
            return await self._tokenise(prompt, context)

        async def sample(turn: _Turn) -> Sample:
            made = await self._sample(turn, context)
            context.progress(1, len(made.response_ids))
            return made

        ids = await gather_bounded(prompts, tokenise, context.max_concurrency)
        turns = [
            _Turn(prompt, prompt_ids, index)
            for prompt, prompt_ids in zip(prompts, ids, strict=True)
            for index in range(context.samples_per_prompt)
        ]
        return await gather_bounded(turns, sample, context.max_concurrency)

    async def _tokenise(self, prompt: Prompt, context: GenerationContext) -> tuple[int, ...]:
        if (given := context.prompt_ids.get(prompt.prompt_id)) is not None:
            return tuple(given)
        payload: dict[str, Any] = {
            "text": self._options.render(prompt.text),
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_prompt_token_ids": True,
        }
        answer = await context.client.generate(payload, affinity_key=prompt.prompt_id)
        if answer.get("prompt_token_ids") is not None:
            ids = read_ids(answer, "prompt_token_ids")
        else:
            # Engines without that field name the ids beside the prompt's log-probabilities.
            payload.update(return_logprob=True, logprob_start_len=0)
            ids = _ids_beside_log_probs(await context.client.generate(payload, affinity_key=prompt.prompt_id))
        if not ids:
            raise UpstreamError(f'the engine made no tokens of prompt "{prompt.prompt_id}"')
        return ids

    async def _sample(self, turn: _Turn, context: GenerationContext) -> Sample:
        payload: dict[str, Any] = {
            "input_ids": list(turn.prompt_ids),
            "sampling_params": _sampling(context.sampling, turn),
            "return_logprob": context.log_probs,
            "return_prompt_token_ids": True,
            **turn.prompt.media,
        }
        top_k = self._options.top_k if context.log_probs else 0
        if top_k:
            payload["top_logprobs_num"] = top_k
        if self._options.lora_path is not None:
            payload["lora_path"] = self._options.lora_path
        answer = await context.client.generate(payload, affinity_key=turn.prompt.prompt_id)
        completion = read_completion(
            answer,
            turn.prompt_ids,
            log_probs=context.log_probs,
            top_k=top_k,
            expands=bool(turn.prompt.media),
        )
        return Sample(
            sample_id=f"{turn.prompt.prompt_id}/{turn.index}",
            group_id=turn.prompt.prompt_id,
            prompt=turn.prompt,
            prompt_ids=turn.prompt_ids,
            response=completion.text,
            response_ids=completion.ids,
            rollout_log_probs=completion.log_probs,
            finish_reason=completion.finish_reason,
            weight_version=completion.weight_version,
            rollout_topk_ids=completion.top_ids,
        )


def _sampling(sampling: Mapping[str, Any], turn: _Turn) -> dict[str, Any]:
    """The job's sampling parameters; a seed becomes one of the sample's own.

    One seed for all would make a group's samples equal. Ids of prompts differ from batch to
    batch, so the same job file gives the same samples again, and no two batches the same.
    """
    params = dict(sampling)
    if _SEED in params:
        import hashlib  # OpenSSL: of no use to a process that only plans

        name = f"{params[_SEED]}/{turn.prompt.prompt_id}/{turn.index}"
        params[_SEED] = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % _SEEDS
    return params


def _check_sampling(sampling: Mapping[str, Any]) -> None:
    if sampling.get("n") not in (None, 1):
        raise PayloadError(
            "batch.sampling.n: is not allowed; batch.samples_per_prompt says how many",
            field="batch.sampling.n",
        )
    if "seed" in sampling:
        raise PayloadError(
            f'batch.sampling.seed: engines know it as "{_SEED}"; write that', field="batch.sampling.seed"
        )
    seed = sampling.get(_SEED, 0)
    if type(seed) is not int:
        raise PayloadError(
            f"batch.sampling.{_SEED}: must be an integer, found {seed!r}", field=f"batch.sampling.{_SEED}"
        )


def _ids_beside_log_probs(answer: Mapping[str, Any]) -> tuple[int, ...]:
    meta = cast("Mapping[str, Any]", answer.get("meta_info") or {})
    try:
        return tuple(int(entry[1]) for entry in meta["input_token_logprobs"])
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise UpstreamError(
            "the engine gives no prompt token ids: neither prompt_token_ids nor input_token_logprobs"
        ) from error
