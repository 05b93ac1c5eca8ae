"""From a teacher engine's answer to arrays, refusing what can't be a teacher's opinion.

R = response length, K = top-k. The engine is asked for the log-probabilities from the prompt's
last token on, so it answers R + 1 entries, the first of which has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from rolecall.api import ScoringError

_CERTAIN_TOKENS = 4
"""Up to so many tokens may all have a log-probability of exactly 0: a large teacher rounds to it
when it is sure of a short answer. Lost weights give equal values too, but never 0."""


def sampled_log_probs(meta: Mapping[str, Any], response_ids: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return [R] float32: the teacher's log-probability of each response token.

    Raises:
        ScoringError: wrong length, a null or a value that is not finite inside the response, ids
            other than those sent, or all values equal.
    """
    entries = _entries(meta, "input_token_logprobs", len(response_ids))
    values = [
        _value(entry, "input_token_logprobs", place, expected=token)
        for place, (entry, token) in enumerate(zip(entries, response_ids, strict=True))
    ]
    log_probs = np.asarray(values, dtype=np.float32)
    if len(values) > 1 and len(set(values)) == 1 and (values[0] != 0.0 or len(values) > _CERTAIN_TOKENS):
        raise ScoringError(
            f"all {len(values)} log-probabilities are {values[0]:g}: the teacher has lost its weights"
        )
    return log_probs


def top_log_probs(
    meta: Mapping[str, Any], response_length: int, top_k: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return [R, K] int32 ids and [R, K] float32 log-probabilities of the most probable tokens.

    Raises:
        ScoringError: wrong length, not K tokens at a position, or a value that is not finite.
    """
    entries = _entries(meta, "input_top_logprobs", response_length)
    ids = np.empty((response_length, top_k), dtype=np.int32)
    log_probs = np.empty((response_length, top_k), dtype=np.float32)
    for place, entry in enumerate(entries):
        if not isinstance(entry, list) or len(cast("list[Any]", entry)) != top_k:
            raise ScoringError(f"input_top_logprobs[{place + 1}] is {entry!r:.80}, not {top_k} tokens")
        for rank, candidate in enumerate(cast("list[Any]", entry)):
            log_probs[place, rank] = _value(candidate, "input_top_logprobs", place)
            ids[place, rank] = candidate[1]
    return ids, log_probs


def _entries(meta: Mapping[str, Any], name: str, response_length: int) -> list[Any]:
    """Return the response's R entries: all but the first."""
    found = meta.get(name)
    length = len(cast("list[Any]", found)) if isinstance(found, list) else None
    if length != response_length + 1:
        raise ScoringError(
            f"the teacher answered {'no' if length is None else length} {name}, "
            f"expected {response_length + 1} (the response's {response_length} tokens and one before)"
        )
    return cast("list[Any]", found)[1:]


def _value(entry: Any, name: str, place: int, expected: int | None = None) -> float:
    where = f"{name}[{place + 1}]"
    if not isinstance(entry, (list, tuple)) or len(cast("list[Any]", entry)) < 2:
        raise ScoringError(f"{where} is {entry!r:.80}, not [log-prob, id, …]")
    value, token = cast("list[Any]", entry)[:2]
    if type(token) is not int:
        raise ScoringError(f"{where} names no token id: {entry!r:.80}")
    if expected is not None and token != expected:
        raise ScoringError(f"{where} is about token {token}, but {expected} was sent there")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise ScoringError(f"{where} has the log-probability {value!r:.40}, not a finite number")
    return float(value)
