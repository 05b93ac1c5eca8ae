"""Reading an engine's ``/generate`` answer, and refusing one that can't be right.

What is trained on must be exactly what the engine sampled: the ids, one log-probability each,
under the prompt that was sent. In an evaluation the log-probabilities are left out. An answer in which these
do not fit together is an :class:`~rolecall.api.UpstreamError`; nothing is re-tokenised or filled in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from attrs import frozen

from rolecall.api import UpstreamError

FINISHED = ("stop", "length")
"""Reasons for which an engine ends a response of its own accord; an aborted one is no sample."""


@frozen(kw_only=True)
class Completion:
    """One response: R token ids with R log-probabilities, or with none where none were asked for.

    top_ids: R × K, the most probable tokens at each place, best first; None where none were asked for.
    """

    text: str
    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: str
    weight_version: str | None
    top_ids: tuple[tuple[int, ...], ...] | None = None


def read_completion(
    answer: Mapping[str, Any],
    prompt_ids: Sequence[int],
    *,
    log_probs: bool = True,
    top_k: int = 0,
    expands: bool = False,
) -> Completion:
    """Return the response in an answer to ``prompt_ids``.

    log_probs: whether they were asked for.
    top_k: how many most probable tokens were asked for at each place.
    expands: the engine puts tokens of its own into the prompt, for the images, videos and sounds beside it.

    Raises:
        UpstreamError: it is incomplete, was aborted, or its parts contradict each other.
    """
    meta = _part(answer, "meta_info", Mapping)
    _check_echo(answer, meta, prompt_ids, expands)
    reason = _finish_reason(meta)
    ids = read_ids(answer, "output_ids")
    counted = meta.get("completion_tokens")
    if counted is not None and counted != len(ids):
        raise UpstreamError(
            f"the engine counted {counted} completion tokens and answered {len(ids)} output_ids"
        )
    version = meta.get("weight_version")
    return Completion(
        text=_part(answer, "text", str),
        ids=ids,
        log_probs=_log_probs(meta, ids) if log_probs else (),
        finish_reason=reason,
        weight_version=None if version is None else str(version),
        top_ids=_top_ids(meta, len(ids), top_k) if top_k else None,
    )


def _top_ids(meta: Mapping[str, Any], length: int, top_k: int) -> tuple[tuple[int, ...], ...]:
    name = "output_top_logprobs"
    places = cast("list[Any]", _part(meta, name, list, "meta_info."))
    if len(places) != length:
        raise UpstreamError(f"the engine answered {length} output_ids with {len(places)} {name}")
    try:
        rows = [tuple(entry[1] for entry in place) for place in places]
    except (TypeError, IndexError, KeyError) as error:
        raise UpstreamError(f"{name} has places that are no lists of [log-prob, id, …]") from error
    for number, row in enumerate(rows):
        sound = all(type(token) is int and token >= 0 for token in row)
        if not sound or len(set(row)) != top_k:
            raise UpstreamError(f"{name}[{number}] names {row!r:.80}, not {top_k} different tokens")
    return tuple(rows)


def _log_probs(meta: Mapping[str, Any], ids: Sequence[int]) -> tuple[float, ...]:
    entries = _part(meta, "output_token_logprobs", list, "meta_info.")
    if len(entries) != len(ids):
        raise UpstreamError(
            f"the engine answered {len(ids)} output_ids with {len(entries)} output_token_logprobs"
        )
    return tuple(
        _log_prob(entry, token, place) for place, (entry, token) in enumerate(zip(entries, ids, strict=True))
    )


def read_ids(answer: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return a list of token ids at the top of an answer."""
    ids = cast("list[Any]", _part(answer, name, list))
    if not all(type(token) is int for token in ids):
        raise UpstreamError(f"the engine answered {name} with something that is no token id")
    return tuple(ids)


def _check_echo(
    answer: Mapping[str, Any], meta: Mapping[str, Any], prompt_ids: Sequence[int], expands: bool
) -> None:
    counted = meta.get("prompt_tokens")
    if counted is not None and (counted < len(prompt_ids) if expands else counted != len(prompt_ids)):
        raise UpstreamError(
            f"the engine counted {counted} prompt tokens of the {len(prompt_ids)} that were sent"
        )
    if answer.get("prompt_token_ids") is not None:
        echoed = read_ids(answer, "prompt_token_ids")
        if not (_within(prompt_ids, echoed) if expands else echoed == tuple(prompt_ids)):
            raise UpstreamError(
                f"the engine worked on other prompt tokens than were sent: {echoed!r:.120} "
                f"instead of {tuple(prompt_ids)!r:.120}"
            )


def _within(ids: Sequence[int], longer: Sequence[int]) -> bool:
    """Return whether all of ``ids`` are in ``longer``, in their order."""
    rest = iter(longer)
    return all(token in rest for token in ids)


def _finish_reason(meta: Mapping[str, Any]) -> str:
    reason: Any = meta.get("finish_reason")
    kind: Any = cast("Mapping[str, Any]", reason).get("type") if isinstance(reason, Mapping) else reason
    if kind not in FINISHED:
        raise UpstreamError(f"the engine ended a sample with {reason!r:.120}, not with one of {FINISHED}")
    return cast(str, kind)


def _log_prob(entry: Any, token: int, place: int) -> float:
    try:
        log_prob, logged = entry[0], entry[1]
    except (TypeError, IndexError, KeyError) as error:
        raise UpstreamError(
            f"output_token_logprobs[{place}] is {entry!r:.80}, not [log-prob, id, …]"
        ) from error
    if logged != token:
        raise UpstreamError(f"output_token_logprobs[{place}] is about token {logged}, output_ids has {token}")
    if not isinstance(log_prob, (int, float)) or not math.isfinite(log_prob):
        raise UpstreamError(f"output_token_logprobs[{place}] has the log-probability {log_prob!r:.80}")
    return float(log_prob)


def _part(holder: Mapping[str, Any], name: str, kind: type[Any], path: str = "") -> Any:
    value = holder.get(name)
    if not isinstance(value, kind):
        raise UpstreamError(f"the engine's answer has no usable {path}{name}: {value!r:.80}")
    return value
