"""The teacher stage: prefills prompt and response, takes log-probabilities, generates nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from rolecall.api import (
    Sample,
    ScoreFields,
    Scores,
    ScoringClient,
    ScoringError,
    Stage,
    StageContext,
    gather_bounded,
)

from .options import TeacherOptions

STAGE = "teacher"
LOG_PROBS = "teacher_log_probs"
TOPK_IDS = "teacher_topk_ids"
TOPK_LOG_PROBS = "teacher_topk_log_probs"


def teacher_stage(role: str, options: TeacherOptions, route_keys: frozenset[str]) -> Stage:
    """Return the stage; it writes the top-k fields only if ``top_k`` is above 0."""

    async def run(samples: Sequence[Sample], context: StageContext) -> Scores:
        client = context.client
        assert client is not None, "a stage with a role gets a client"

        async def score(sample: Sample) -> ScoreFields:
            fields = await _score(sample, client, options, route_keys)
            context.progress(1, len(sample.response_ids))
            return fields

        scored = await gather_bounded(samples, score, context.max_concurrency)
        return {sample.sample_id: fields for sample, fields in zip(samples, scored, strict=True)}

    topk = {TOPK_IDS, TOPK_LOG_PROBS} if options.top_k else set[str]()
    return Stage(
        name=STAGE,
        role=role,
        reads=frozenset({"prompt_ids", "response_ids", f"prompt.{options.route_by}"}),
        writes=frozenset({LOG_PROBS, *topk}),
        run=run,
    )


def teacher_payload(sample: Sample, top_k: int) -> dict[str, Any]:
    """Return the request for one sample: the ids as they are, log-probs from the prompt's last token."""
    payload: dict[str, Any] = {
        "input_ids": [*sample.prompt_ids, *sample.response_ids],
        "sampling_params": {"temperature": 0, "max_new_tokens": 0, "skip_special_tokens": False},
        "return_logprob": True,
        "logprob_start_len": max(len(sample.prompt_ids) - 1, 0),
    }
    if top_k:
        payload["top_logprobs_num"] = top_k
    return payload


async def _score(
    sample: Sample, client: ScoringClient, options: TeacherOptions, route_keys: frozenset[str]
) -> ScoreFields:
    route_key = _route_key(sample, options.route_by, route_keys)
    answer = await client.generate(
        teacher_payload(sample, options.top_k),
        route_key=route_key,
        affinity_key=sample.group_id if route_key is None else f"{route_key}:{sample.group_id}",
        timeout_s=options.timeout_s,
    )
    meta = answer.get("meta_info")
    if not isinstance(meta, Mapping):
        raise ScoringError(f'teacher: sample "{sample.sample_id}": the answer has no meta_info')
    return _fields(sample, cast("Mapping[str, Any]", meta), options.top_k)


def _fields(sample: Sample, meta: Mapping[str, Any], top_k: int) -> ScoreFields:
    from .log_probs import sampled_log_probs, top_log_probs  # NumPy: planning must be quick

    try:
        fields: dict[str, Any] = {LOG_PROBS: sampled_log_probs(meta, sample.response_ids)}
        if top_k:
            fields[TOPK_IDS], fields[TOPK_LOG_PROBS] = top_log_probs(meta, len(sample.response_ids), top_k)
    except ScoringError as error:
        raise ScoringError(f'teacher: sample "{sample.sample_id}": {error}') from error
    return fields


def _route_key(sample: Sample, route_by: str, route_keys: frozenset[str]) -> str | None:
    if route_by == "data_source":
        key = sample.prompt.data_source
    else:
        key = sample.prompt.metadata.get(route_by.removeprefix("metadata."))
    return key if isinstance(key, str) and key in route_keys else None
