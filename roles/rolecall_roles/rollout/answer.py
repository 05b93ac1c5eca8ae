"""Reading an engine's ``/generate`` answer, and refusing one that can't be right.

What is trained on must be exactly what the engine sampled: the ids, one log-probability each,
under the prompt that was sent. An answer in which these do not fit together is an
:class:`~rolecall.api.UpstreamError`; nothing is re-tokenised or filled in.
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
    """One response: R token ids with R log-probabilities."""

    text: str
    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: str
    weight_version: str | None


def read_completion(answer: Mapping[str, Any], prompt_ids: Sequence[int]) -> Completion:
    """Return the response in an answer to ``prompt_ids``.

    Raises:
        UpstreamError: it is incomplete, was aborted, or its parts contradict each other.
    """
    meta = _part(answer, "meta_info", Mapping)
    _check_echo(answer, meta, prompt_ids)
    reason = _finish_reason(meta)
    ids = read_ids(answer, "output_ids")
    entries = _part(meta, "output_token_logprobs", list, "meta_info.")
    if len(entries) != len(ids):
        raise UpstreamError(
            f"the engine answered {len(ids)} output_ids with {len(entries)} output_token_logprobs"
        )
    log_probs = tuple(
        _log_prob(entry, token, place) for place, (entry, token) in enumerate(zip(entries, ids, strict=True))
    )
    version = meta.get("weight_version")
    return Completion(
        text=_part(answer, "text", str),
        ids=ids,
        log_probs=log_probs,
        finish_reason=reason,
        weight_version=None if version is None else str(version),
    )


def read_ids(answer: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return a list of token ids at the top of an answer."""
    ids = cast("list[Any]", _part(answer, name, list))
    if not all(type(token) is int for token in ids):
        raise UpstreamError(f"the engine answered {name} with something that is no token id")
    return tuple(ids)


def _check_echo(answer: Mapping[str, Any], meta: Mapping[str, Any], prompt_ids: Sequence[int]) -> None:
    counted = meta.get("prompt_tokens")
    if counted is not None and counted != len(prompt_ids):
        raise UpstreamError(
            f"the engine counted {counted} prompt tokens of the {len(prompt_ids)} that were sent"
        )
    if answer.get("prompt_token_ids") is not None:
        echoed = read_ids(answer, "prompt_token_ids")
        if echoed != tuple(prompt_ids):
            raise UpstreamError(
                f"the engine worked on other prompt tokens than were sent: {echoed!r:.120} "
                f"instead of {tuple(prompt_ids)!r:.120}"
            )


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
