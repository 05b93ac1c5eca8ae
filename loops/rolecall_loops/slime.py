"""For slime: a job's reward as its custom reward model, and a job's policy as its rollout function.

Signatures as documented by slime 0.3.1 (``--custom-rm-path``, ``--rollout-function-path`` and
``--custom-config-path`` in ``slime/utils/arguments.py``)::

    --custom-rm-path rolecall_loops.slime.reward
    --rollout-function-path rolecall_loops.slime.generate_rollout
    --custom-config-path rolecall.yaml

The YAML file puts ``rolecall_job``, ``rolecall_url`` and ``rolecall_reward`` among slime's arguments; what
they mean is said at :func:`rolecall_loops.rewards.job_reward`. Each of the two functions works without the
other.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from rolecall.api import JobError, Prompt, ask_job, gather_bounded

from .generation import generate
from .rewards import MAX_CONCURRENCY, answer_of, job_reward, text_of

_UNUSED: dict[str, Any] = {
    "partial_rollout": False,
    "dynamic_sampling_filter_path": None,
    "custom_generate_function_path": None,
    "rollout_sample_hook_path": [],
    "rollout_sample_filter_path": None,
    "rollout_all_samples_process_path": None,
    "use_rollout_routing_replay": False,
    "rollout_top_p": 1.0,
}
"""Arguments of slime's own rollout that this one does not follow → the value that asks for nothing.

With a top-p slime trains on the sets of tokens that its patched SGLang reports beside each sample.
"""


async def reward(args: Any, sample: Any, **of_slime: Any) -> Any:
    """Return the reward of a slime ``Sample``, a float; of a list of them, a list: slime asks both ways.

    Rewards see the sample's prompt, response, label (as the answer) and metadata, and its ``data_source``
    where the metadata has one.

    Raises:
        ScoringError: one of them has no reward.
        JobError: no such job or reward.
    """
    del of_slime
    if isinstance(sample, list):

        async def one(each: Any) -> float:
            return await reward(args, each)

        return await gather_bounded(cast("list[Any]", sample), one, MAX_CONCURRENCY)
    scorer = job_reward(*_job(args), getattr(args, "rolecall_reward", None))
    metadata: dict[str, Any] = dict(sample.metadata or {})
    source = metadata.get("data_source")
    prompt = Prompt(
        prompt_id=f"{sample.group_index}/{sample.index}",
        text=text_of(sample.prompt),
        answer=answer_of(sample.label),
        data_source=None if source is None else str(source),
        metadata=metadata,
    )
    return await scorer.score(prompt, sample.response)


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Return slime's ``RolloutFnTrainOutput``: ``args.rollout_batch_size`` groups made by the job's policy.

    Prompts are tokenised by slime's tokenizer and sent as token ids; tokens, log-probabilities, status and
    the weights' version of each sample are what the engine answered. Rewards come from slime's own reward
    functions, as its arguments say: :func:`reward` is one. No sample is left out, and none is given back to
    the data source.

    Raises:
        RequestError, ScoringError: a sample could not be made, or has no reward; the rollout fails as a
        whole. JobError: for an evaluation, or with arguments that this rollout does not follow.
    """
    _check(args, evaluation)
    groups = data_source.get_samples(args.rollout_batch_size)
    _of_slime("utils.async_utils").run(_fill(args, rollout_id, groups))
    return _of_slime("rollout.base_types").RolloutFnTrainOutput(samples=groups)


def _of_slime(module: str) -> Any:
    """Return a module of slime: on no package index, and there wherever slime calls these functions."""
    return importlib.import_module(f"slime.{module}")


def _job(args: Any) -> tuple[str | None, str | None]:
    return getattr(args, "rolecall_job", None), getattr(args, "rolecall_url", None)


def _check(args: Any, evaluation: bool) -> None:
    if evaluation:
        raise JobError(
            "rolecall_loops.slime.generate_rollout makes samples to train on; name another function with "
            "--eval-function-path, or leave --eval-interval out and use `rolecall evaluate`"
        )
    set_here = [
        f"--{name.replace('_', '-')}" for name, off in _UNUSED.items() if getattr(args, name, off) != off
    ]
    if set_here:
        raise JobError(
            f"rolecall_loops.slime.generate_rollout does not follow {', '.join(set_here)}; leave them out, "
            "or use slime's own rollout function with --custom-rm-path rolecall_loops.slime.reward"
        )


async def _fill(args: Any, rollout_id: int, groups: Sequence[Sequence[Any]]) -> None:
    rewards = _of_slime("rollout.rm_hub")
    prompts = {f"slime/{rollout_id}/{group[0].group_index}": _prompt_ids(args, group) for group in groups}
    asked = ask_job(*_job(args))
    made = await generate(
        asked, prompts, samples_per_prompt=args.n_samples_per_prompt, sampling=_sampling(args)
    )
    for group, answers in zip(groups, made, strict=True):
        for sample, answer in zip(group, answers, strict=True):
            meta: dict[str, Any] = {"finish_reason": {"type": answer.finish_reason}}
            if answer.weight_version is not None:
                meta["weight_version"] = answer.weight_version
            sample.tokens = list(answer.prompt_ids)
            sample.append_response_tokens(
                args,
                tokens=list(answer.response_ids),
                log_probs=list(answer.rollout_log_probs),
                trainable=True,
                meta_info=meta,
                text=answer.response,
            )

    async def rate_group(group: Sequence[Any]) -> None:
        for sample, value in zip(group, await rewards.batched_async_rm(args, list(group)), strict=True):
            sample.reward = value

    async def rate(sample: Any) -> None:
        sample.reward = await rewards.async_rm(args, sample)

    if args.group_rm:
        await gather_bounded(groups, rate_group, MAX_CONCURRENCY)
    else:
        await gather_bounded([sample for group in groups for sample in group], rate, MAX_CONCURRENCY)


def _prompt_ids(args: Any, group: Sequence[Any]) -> list[int]:
    """Return the token ids of a group's prompt, as slime makes them for its own engines."""
    first = group[0]
    if any(sample.tokens or sample.response_length for sample in group):
        raise JobError(
            f"group {first.group_index} has a sample that was begun; only whole ones are made here"
        )
    if any((first.multimodal_inputs or {}).values()):
        raise JobError(f"group {first.group_index} shows more than text, which is not passed on from slime")
    if not isinstance(first.prompt, str):
        raise JobError(f"group {first.group_index} has messages for a prompt; set --apply-chat-template")
    return list(_tokenizer(args.hf_checkpoint).encode(first.prompt, add_special_tokens=False))


@cache
def _tokenizer(checkpoint: str) -> Any:
    return _of_slime("utils.processing_utils").load_tokenizer(checkpoint, trust_remote_code=True)


def _sampling(args: Any) -> dict[str, Any]:
    """Return the sampling parameters that slime gives its own engines."""
    sampling: dict[str, Any] = {
        "temperature": args.rollout_temperature,
        "top_k": args.rollout_top_k,
        "max_new_tokens": args.rollout_max_response_len,
        "stop": args.rollout_stop,
        "stop_token_ids": args.rollout_stop_token_ids,
        "skip_special_tokens": args.rollout_skip_special_tokens,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }
    if getattr(args, "sglang_enable_deterministic_inference", False):
        sampling["sampling_seed"] = args.rollout_seed
    return {name: value for name, value in sampling.items() if value is not None}
