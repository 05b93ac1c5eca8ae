"""From a teacher engine's answer to arrays, refusing what can't be a teacher's opinion.

R = response length, K = top-k. The engine is asked for the log-probabilities from the prompt's
last token on, so it answers R + 1 entries, the first of which has none.

What a whole response would show and one part of it would not (equal values everywhere) is judged by
:func:`check_weights`, once the parts are together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from rolecall.api import ScoringError

_CERTAIN_TOKENS = 4
"""Up to so many tokens may all have a log-probability of exactly 0: a large teacher rounds to it
when it is sure of a short answer. Lost weights give equal values too, but never 0."""

_TELLING = 4
"""So many alternatives, all equal, are no chance: the teacher finds every token alike."""

_ROUNDING = 1e-3
"""By so much a log-probability may be above 0."""

_MOST_ID = 2**31 - 1

PAD_ID = -1
PAD_LOG_PROB = -1e4
"""A probability of 0 in every float, and still finite, also in float16."""

_Array = np.ndarray[Any, Any]


def sampled_log_probs(
    meta: Mapping[str, Any], response_ids: Sequence[int], *, expanded: bool = False
) -> _Array:
    """Return [R] float32: the teacher's log-probability of each response token.

    expanded: the engine made more tokens of the prompt than it was sent (it had an image), so it may
        answer more entries; the last R are the response's.

    Raises:
        ScoringError: wrong length, a null or a value that is not finite inside the response, or ids
            other than those sent.
    """
    entries = _entries(meta, "input_token_logprobs", len(response_ids), expanded)
    values = [
        _value(entry, "input_token_logprobs", place, expected=token)
        for place, (entry, token) in enumerate(zip(entries, response_ids, strict=True))
    ]
    return np.asarray(values, dtype=np.float32)


def top_log_probs(
    meta: Mapping[str, Any], response_length: int, top_k: int, *, expanded: bool = False
) -> tuple[_Array, _Array]:
    """Return [R, K] int32 ids and [R, K] float32 log-probabilities of the most probable tokens.

    Raises:
        ScoringError: wrong length, not K different tokens at a position, or a value that is not finite.
    """
    name = "input_top_logprobs"
    entries = _entries(meta, name, response_length, expanded)
    ids = np.empty((response_length, top_k), dtype=np.int32)
    log_probs = np.empty((response_length, top_k), dtype=np.float32)
    for place, entry in enumerate(entries):
        if not isinstance(entry, list) or len(cast("list[Any]", entry)) != top_k:
            raise ScoringError(f"{name}[{place + 1}] is {entry!r:.80}, not {top_k} tokens")
        for rank, candidate in enumerate(cast("list[Any]", entry)):
            log_probs[place, rank] = _value(candidate, name, place)
            ids[place, rank] = candidate[1]
        if len(set(ids[place].tolist())) < top_k:
            raise ScoringError(f"{name}[{place + 1}] names a token twice: {ids[place].tolist()!r:.80}")
    return ids, log_probs


def asked_log_probs(
    meta: Mapping[str, Any], response_length: int, asked: Sequence[int], *, expanded: bool = False
) -> _Array:
    """Return [R, len(asked)] float32: the log-probabilities of the ids that were asked for.

    The engine answers them in an order of its own; the columns are in that of ``asked``, which has no
    id twice.

    Raises:
        ScoringError: wrong length, other ids than those asked for, or a value that is not finite.
    """
    name = "input_token_ids_logprobs"
    entries = _entries(meta, name, response_length, expanded)
    columns = {token: column for column, token in enumerate(asked)}
    log_probs = np.empty((response_length, len(asked)), dtype=np.float32)
    for place, entry in enumerate(entries):
        given = cast("list[Any]", entry) if isinstance(entry, list) else []
        found: set[int] = set()
        for candidate in given:
            value = _value(candidate, name, place)
            token = candidate[1]
            if token in columns:
                log_probs[place, columns[token]] = value
                found.add(token)
        if len(found) < len(asked) or len(given) != len(asked):
            raise ScoringError(
                f"{name}[{place + 1}] has {len(given)} tokens, of which {len(found)} were asked for, "
                f"expected the {len(asked)} that were"
            )
    return log_probs


def check_weights(sampled: _Array, alternatives: _Array | None) -> None:
    """Refuse what only an engine says that has lost its weights: the same of everything.

    sampled: [R]. alternatives: [R, K] of the most probable tokens; they tell it of a single token, too.

    Raises:
        ScoringError: all values are equal.
    """
    values = set(sampled.tolist())
    if len(sampled) > 1 and len(values) == 1:
        (value,) = values
        if value != 0.0 or len(sampled) > _CERTAIN_TOKENS:
            raise ScoringError(
                f"all {len(sampled)} log-probabilities are {value:g}: the teacher has lost its weights"
            )
    if alternatives is not None and alternatives.size and alternatives.shape[1] >= _TELLING:
        flat = (alternatives == alternatives[:, :1]).all(axis=1)
        if flat.all():
            raise ScoringError(
                f"its {alternatives.shape[1]} most probable tokens are equally probable everywhere "
                f"({alternatives.flat[0]:g}): the teacher has lost its weights"
            )


def unite(
    *,
    response_ids: Sequence[int],
    sampled: _Array,
    top_ids: _Array,
    top: _Array,
    others: Sequence[Mapping[int, float]] = (),
) -> tuple[_Array, _Array, _Array]:
    """Return [R, Kmax] int32 ids, [R, Kmax] float32 log-probabilities and [R] int32 sizes.

    At each position the teacher's own tokens come first, best first; then the sampled one, then ``others``
    (id → log-probability), each unless it is there already. What a row lacks is id -1 at -1e4.
    """
    rows: list[dict[int, float]] = []
    for place, token in enumerate(response_ids):
        row = dict(zip(top_ids[place].tolist(), top[place].tolist(), strict=True))
        row.setdefault(token, float(sampled[place]))
        for other, value in others[place].items() if others else ():
            row.setdefault(other, value)
        rows.append(row)
    sizes = np.asarray([len(row) for row in rows], dtype=np.int32)
    widest = int(sizes.max(initial=top_ids.shape[1]))
    ids = np.full((len(rows), widest), PAD_ID, dtype=np.int32)
    log_probs = np.full((len(rows), widest), PAD_LOG_PROB, dtype=np.float32)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = list(row)
        log_probs[place, : len(row)] = list(row.values())
    return ids, log_probs, sizes


def _entries(meta: Mapping[str, Any], name: str, response_length: int, expanded: bool) -> list[Any]:
    """Return the response's R entries: all but the first."""
    found = meta.get(name)
    length = len(cast("list[Any]", found)) if isinstance(found, list) else None
    wanted = response_length + 1
    if length is None or length < wanted or (length > wanted and not expanded):
        raise ScoringError(
            f"the teacher answered {'no' if length is None else length} {name}, "
            f"expected {wanted} (the response's {response_length} tokens and one before)"
        )
    return cast("list[Any]", found)[length - response_length :]


def _value(entry: Any, name: str, place: int, expected: int | None = None) -> float:
    where = f"{name}[{place + 1}]"
    if not isinstance(entry, (list, tuple)) or len(cast("list[Any]", entry)) < 2:
        raise ScoringError(f"{where} is {entry!r:.80}, not [log-prob, id, …]")
    value, token = cast("list[Any]", entry)[:2]
    if type(token) is not int or not 0 <= token <= _MOST_ID:
        raise ScoringError(f"{where} names no token id: {entry!r:.80}")
    if expected is not None and token != expected:
        raise ScoringError(f"{where} is about token {token}, but {expected} was sent there")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise ScoringError(f"{where} has the log-probability {value!r:.40}, not a finite number")
    if value > _ROUNDING:
        raise ScoringError(f"{where} has the log-probability {value!r:.40}: a probability above 1")
    return float(value)
