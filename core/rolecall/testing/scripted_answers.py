"""What a scripted engine answers a request with: SGLang's shapes, figures that follow from the prompt. Pure.

Tokens depend on the prompt alone, so two ways to the same engine give the same ones. Log-probabilities depend
on the tokens and on the weights, so a canary tells other weights and lost ones from those that were there.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from attrs import frozen

VOCABULARY = 1000

_LIKELIEST = 0.01
_PLENTY = 2**20


def tokens_of(prompt: object, count: int) -> list[int]:
    """Return the tokens that any scripted engine answers a prompt with; at most 32."""
    digest = blake2b(json.dumps(prompt).encode(), digest_size=64).digest()
    return [int.from_bytes(digest[2 * n : 2 * n + 2]) % VOCABULARY for n in range(count)]


@frozen(kw_only=True)
class Weights:
    """What the log-probabilities come from; ``lost`` ones make all tokens equally likely."""

    version: str = "default"
    path: str = "initial"
    lost: bool = False

    def log_prob(self, position: int, token: int) -> float:
        if self.lost:
            return -math.log(VOCABULARY)
        digest = blake2b(f"{self.path} {position} {token}".encode(), digest_size=2).digest()
        return -_LIKELIEST - int.from_bytes(digest) / 2**13


@frozen(kw_only=True)
class Work:
    """One request to be answered; ``count`` tokens at most, ``counted_wrong`` is added to their number.

    payload: the request's, always with its ``rid``.
    """

    payload: Mapping[str, Any]
    count: int
    weights: Weights
    counted_wrong: int = 0

    @property
    def prompt(self) -> Any:
        return self.payload.get("messages", self.payload.get("text", self.payload.get("input_ids")))

    @property
    def prompt_ids(self) -> Sequence[int]:
        """``input_ids`` as given, else one token for each word."""
        if isinstance(self.prompt, list) and "messages" not in self.payload:
            return self.prompt
        return [tokens_of(word, 1)[0] for word in json.dumps(self.prompt).split()]

    @property
    def _limit(self) -> int:
        given = self.payload.get("sampling_params", self.payload)
        limit = given.get("max_new_tokens", given.get("max_completion_tokens", given.get("max_tokens")))
        return _PLENTY if limit is None else int(limit)

    @property
    def ids(self) -> list[int]:
        return tokens_of(self.prompt, min(self.count, self._limit))

    def ending(self, ids: Sequence[int], *, aborted: bool) -> dict[str, Any]:
        """Return the ``finish_reason`` of an answer with these tokens."""
        if aborted:
            return {
                "type": "abort",
                "message": "Abort in waiting queue",
                "status_code": None,
                "err_type": None,
            }
        if len(ids) >= self._limit:
            return {"type": "length", "length": len(ids)}
        return {"type": "stop", "matched": ids[-1] if ids else None}


def native(work: Work, ids: Sequence[int], *, ended: bool = True, aborted: bool = False) -> dict[str, Any]:
    """Return an answer of ``/generate``, or one event of its stream: text and ids are cumulative."""
    payload = work.payload
    completion = len(ids) + work.counted_wrong
    meta: dict[str, Any] = {
        "id": payload["rid"],
        "finish_reason": work.ending(ids, aborted=aborted) if ended else None,
        "prompt_tokens": len(work.prompt_ids),
        "completion_tokens": completion,
        "cached_tokens": 0,
        "weight_version": work.weights.version,
    }
    if ended:
        meta["e2e_latency"] = 0.001
    if payload.get("return_logprob"):
        meta |= _log_probs(work, ids)
    answer = {"text": "".join(f" {token}" for token in ids), "output_ids": list(ids), "meta_info": meta}
    if payload.get("return_prompt_token_ids"):
        answer["prompt_token_ids"] = list(work.prompt_ids)
    return answer


def chat(work: Work, ids: Sequence[int], *, aborted: bool = False) -> dict[str, Any]:
    """Return an answer of ``/v1/chat/completions``."""
    message = {"role": "assistant", "content": "".join(f" {token}" for token in ids)}
    choice = {"index": 0, "message": message, "finish_reason": work.ending(ids, aborted=aborted)["type"]}
    completion = len(ids) + work.counted_wrong
    usage = {
        "prompt_tokens": len(work.prompt_ids),
        "completion_tokens": completion,
        "total_tokens": len(work.prompt_ids) + completion,
    }
    return {**_chat_head(work, "chat.completion"), "choices": [choice], "usage": usage}


def chat_event(work: Work, ids: Sequence[int], *, ended: bool, aborted: bool = False) -> dict[str, Any]:
    """Return one event of a chat's stream: the last of the tokens alone."""
    reason = work.ending(ids, aborted=aborted)["type"] if ended else None
    content = f" {ids[-1]}" if ids else ""
    choice = {"index": 0, "delta": {"role": "assistant", "content": content}, "finish_reason": reason}
    return {**_chat_head(work, "chat.completion.chunk"), "choices": [choice]}


def _chat_head(work: Work, kind: str) -> dict[str, Any]:
    head = {"id": work.payload["rid"], "object": kind, "created": int(time.time())}
    return {**head, "model": work.payload.get("model")}


def _log_probs(work: Work, ids: Sequence[int]) -> dict[str, Any]:
    """Entries are ``[log-prob, token, text]``; the first prompt token's log-prob is None."""
    payload, prompt = work.payload, list(work.prompt_ids)
    start = payload.get("logprob_start_len", -1)
    start = len(prompt) - 1 if start in (None, -1) else start
    top = payload.get("top_logprobs_num") or 0
    chosen = payload.get("token_ids_logprob") or []
    asked = {"input": list(enumerate(prompt))[start:], "output": list(enumerate(ids, len(prompt)))}
    meta: dict[str, Any] = {}
    for side, positions in asked.items():
        entries = [_entry(work.weights, position, token) for position, token in positions]
        meta[f"{side}_token_logprobs"] = entries
        if top:
            meta[f"{side}_top_logprobs"] = [
                None if position == 0 else _likeliest(work.weights, position, top)
                for position, _ in positions
            ]
        if chosen:
            meta[f"{side}_token_ids_logprobs"] = [
                None if position == 0 else [_entry(work.weights, position, token) for token in chosen]
                for position, _ in positions
            ]
    return meta


def _entry(weights: Weights, position: int, token: int) -> list[Any]:
    return [None if position == 0 else weights.log_prob(position, token), token, None]


def _likeliest(weights: Weights, position: int, count: int) -> list[list[Any]]:
    entries = [_entry(weights, position, token) for token in range(VOCABULARY)]
    return sorted(entries, key=lambda entry: -entry[0])[:count]
