"""What a teacher is asked about one sample, and what its answers mean.

One request a sample: prompt and response as token ids, nothing generated. Only where the policy's own most
probable tokens are wanted, too, there is a request for each window of the response: an engine reports the
tokens it is asked for at *every* position, so one request for all of them would be answered with the square
of the response's length. Windows follow each other at one replica, whose prefix cache has the beginning.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from attrs import frozen

from rolecall.api import Sample, ScoringError

from .options import TeacherOptions

if TYPE_CHECKING:
    import numpy as np

LOG_PROBS = "teacher_log_probs"
TOPK_IDS = "teacher_topk_ids"
TOPK_LOG_PROBS = "teacher_topk_log_probs"
TOPK_SIZE = "teacher_topk_size"
WEIGHT_VERSION = "teacher_weight_version"

Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Sends a payload to the sample's teacher and returns the answer."""


def fields_written(options: TeacherOptions, *, versioned: bool) -> frozenset[str]:
    """Return the names of the fields that every sample gets."""
    names = {LOG_PROBS}
    if options.top_k:
        names |= {TOPK_IDS, TOPK_LOG_PROBS}
    if options.union:
        names.add(TOPK_SIZE)
    if versioned:
        names.add(WEIGHT_VERSION)
    return frozenset(names)


async def score_sample(
    sample: Sample, ask: Ask, options: TeacherOptions, *, versioned: bool, external: bool = False
) -> dict[str, Any]:
    """Return the fields of one sample.

    versioned: the role has teachers whose weights change, so the version that scored a sample belongs to it.
    external: its teacher is none of the role's; its version is empty if it reports none.

    Raises:
        ScoringError: an answer can't be a teacher's opinion, or the weights changed between two windows.
        RequestError: there was no answer.
    """
    try:
        return await _score(sample, ask, options, versioned, external)
    except ScoringError as error:
        raise ScoringError(f'teacher: sample "{sample.sample_id}": {error}') from error


def teacher_payload(
    sample: Sample, top_k: int, *, start: int = 0, end: int | None = None, asked: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the request for the response's tokens from ``start`` to ``end``: the ids as they are, with
    log-probabilities from the token before ``start`` on, and of the tokens ``asked`` for everywhere."""
    payload: dict[str, Any] = {
        "input_ids": [*sample.prompt_ids, *sample.response_ids[:end]],
        "sampling_params": {"temperature": 0, "max_new_tokens": 0, "skip_special_tokens": False},
        "return_logprob": True,
        "logprob_start_len": max(len(sample.prompt_ids) + start - 1, 0),
    }
    if top_k:
        payload["top_logprobs_num"] = top_k
    if asked:
        payload["token_ids_logprob"] = list(asked)
    return payload | dict(sample.prompt.media)


@frozen
class _Part:
    """What one request told of the response's tokens from ``start`` to ``end``."""

    sampled: np.ndarray[Any, Any]
    top_ids: np.ndarray[Any, Any] | None
    top: np.ndarray[Any, Any] | None
    others: list[dict[int, float]]
    version: str | None


async def _score(
    sample: Sample, ask: Ask, options: TeacherOptions, versioned: bool, external: bool
) -> dict[str, Any]:
    import numpy as np  # planning must be quick

    from .log_probs import check_weights, unite

    wanted = _policy_s_tokens(sample) if options.union else ()
    length = len(sample.response_ids)
    window = options.union_window if wanted else max(length, 1)
    parts = [
        await _ask_part(sample, ask, options.top_k, wanted, start=start, end=min(start + window, length))
        for start in range(0, max(length, 1), window)
    ]
    sampled = np.concatenate([part.sampled for part in parts])
    fields: dict[str, Any] = {LOG_PROBS: sampled}
    top_ids = top = None
    if options.top_k:
        top_ids = np.concatenate([cast("np.ndarray[Any, Any]", part.top_ids) for part in parts])
        top = np.concatenate([cast("np.ndarray[Any, Any]", part.top) for part in parts])
        fields |= {TOPK_IDS: top_ids, TOPK_LOG_PROBS: top}
    check_weights(sampled, top)
    if options.union:
        assert top_ids is not None, "the options say so"
        assert top is not None, "the options say so"
        fields[TOPK_IDS], fields[TOPK_LOG_PROBS], fields[TOPK_SIZE] = unite(
            response_ids=sample.response_ids,
            sampled=sampled,
            top_ids=top_ids,
            top=top,
            others=[row for part in parts for row in part.others],
        )
    versions = {part.version for part in parts}
    if len(versions) > 1:
        raise ScoringError(f"the teacher's weights changed while it was scored: {sorted(map(str, versions))}")
    if versioned:
        (version,) = versions
        if version is None and not external:
            raise ScoringError("the teacher reports no weight_version, and its weights may change")
        fields[WEIGHT_VERSION] = version or ""
    return fields


async def _ask_part(
    sample: Sample, ask: Ask, top_k: int, wanted: Sequence[Sequence[int]], *, start: int, end: int
) -> _Part:
    from .log_probs import asked_log_probs, sampled_log_probs, top_log_probs

    asked = list(dict.fromkeys(token for row in wanted[start:end] for token in row))
    answer = await ask(teacher_payload(sample, top_k, start=start, end=end, asked=asked))
    meta = answer.get("meta_info")
    if not isinstance(meta, Mapping):
        raise ScoringError("the answer has no meta_info")
    meta = cast("Mapping[str, Any]", meta)
    expanded = bool(sample.prompt.media)
    sampled = sampled_log_probs(meta, sample.response_ids[start:end], expanded=expanded)
    top_ids = top = None
    if top_k:
        top_ids, top = top_log_probs(meta, end - start, top_k, expanded=expanded)
    others: list[dict[int, float]] = []
    if asked:
        values = asked_log_probs(meta, end - start, asked, expanded=expanded)
        column = {token: number for number, token in enumerate(asked)}
        others = [
            {token: float(values[place, column[token]]) for token in row}
            for place, row in enumerate(wanted[start:end])
        ]
    version = meta.get("weight_version")
    return _Part(sampled, top_ids, top, others, None if version is None else str(version))


def _policy_s_tokens(sample: Sample) -> Sequence[Sequence[int]]:
    """Return the policy's most probable tokens at each position; none if the sample doesn't have them."""
    tokens = sample.rollout_topk_ids
    if tokens is not None and len(tokens) != len(sample.response_ids):
        raise ScoringError(f"has {len(tokens)} rollout_topk_ids for {len(sample.response_ids)} tokens")
    return tokens or ()
