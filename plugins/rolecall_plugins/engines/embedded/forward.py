"""A plain NumPy forward pass over a GGUF file: log-probabilities of prompt tokens.

llama.cpp's server computes none for the prompt, so a teacher's figures come from here. One pass
takes several sequences at once: the weights of a layer are dequantised once and used for all of
them, and never kept, so that this file adds no resident weights of its own. Pure: arrays in,
arrays out; threads and queues are the scorer's affair.

The file's pages that a pass has read are let go of after it: llama.cpp maps the same pages, and
counting them twice would only hide what the process really takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from .dequantise import FloatArray, dequantise, gather_rows
from .gguf_file import GgufFile

IntArray = np.ndarray[Any, np.dtype[np.int64]]

_VOCABULARY_CHUNK = 8192
"""Rows of the output matrix that are dequantised and multiplied at a time."""
_QUERY_CHUNK = 256
"""Queries whose attention scores exist at a time."""


class PassAborted(Exception):
    """The caller asked to stop between two layers."""


@frozen(kw_only=True)
class ScoreRequest:
    """One sequence to score.

    ids: the whole sequence. start: log-probabilities are wanted of ``ids[start + 1:]``.
    top: how many most probable tokens to report with each. of: ids to report with each.
    """

    ids: tuple[int, ...]
    start: int
    top: int = 0
    of: tuple[int, ...] = ()


@frozen(kw_only=True, eq=False)
class Scores:
    """Log-probabilities for n = ``len(ids) - start - 1`` positions.

    logprobs: [n] of the tokens that are there. top_ids, top_logprobs: [n, top], best first.
    of_logprobs: [n, len(of)].
    """

    logprobs: FloatArray
    top_ids: IntArray
    top_logprobs: FloatArray
    of_logprobs: FloatArray


class NumpyModel:
    """A Llama-architecture model over the mapped tensors of one file."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._layers: int = file.require("llama.block_count")
        self._heads: int = file.require("llama.attention.head_count")
        self._kv_heads: int = file.metadata.get("llama.attention.head_count_kv", self._heads)
        self._epsilon: float = file.require("llama.attention.layer_norm_rms_epsilon")
        width: int = file.require("llama.embedding_length")
        self._head_size: int = file.metadata.get("llama.rope.dimension_count", width // self._heads)
        base: float = file.require("llama.rope.freq_base")
        exponents = np.arange(0, self._head_size, 2, dtype=np.float64) / self._head_size
        self._frequencies = base**-exponents
        tensors = file.tensors
        self._output = tensors.get("output.weight", tensors["token_embd.weight"])

    def score(
        self, requests: Sequence[ScoreRequest], stop_now: Callable[[], bool] = lambda: False
    ) -> list[Scores]:
        """Score several sequences in one pass.

        ``stop_now`` is asked between layers and between chunks of the vocabulary.

        Raises:
            PassAborted: ``stop_now`` became true.
        """
        try:
            return self._pass(requests, stop_now)
        finally:
            self._file.let_go()

    def _pass(self, requests: Sequence[ScoreRequest], stop_now: Callable[[], bool]) -> list[Scores]:
        lengths = [len(request.ids) for request in requests]
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        ids = np.concatenate([np.asarray(request.ids, dtype=np.int64) for request in requests])
        positions = np.concatenate([np.arange(length) for length in lengths])
        angles = positions[:, None] * self._frequencies[None, :]
        cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

        hidden = gather_rows(self._file.tensors["token_embd.weight"], ids)
        spans = [slice(int(low), int(high)) for low, high in itertools.pairwise(bounds)]
        for layer in range(self._layers):
            if stop_now():
                raise PassAborted
            hidden += self._attention(layer, hidden, cosine, sine, spans)
            hidden += self._feed_forward(layer, hidden)
        wanted = np.concatenate(
            [np.arange(b + r.start, b + len(r.ids) - 1) for b, r in zip(bounds, requests, strict=False)]
        )
        targets = ids[wanted + 1]
        final = self._norm("output_norm.weight", hidden[wanted])
        return self._read_out(final, targets, requests, stop_now)

    def _weight(self, layer: int, name: str) -> FloatArray:
        return dequantise(self._file.tensors[f"blk.{layer}.{name}.weight"])

    def _norm(self, name: str, values: FloatArray) -> FloatArray:
        mean_square = np.mean(np.square(values), axis=-1, keepdims=True, dtype=np.float32)
        scale = np.sqrt(mean_square + np.float32(self._epsilon), dtype=np.float32)
        return np.multiply(values / scale, dequantise(self._file.tensors[name]), dtype=np.float32)

    def _attention(
        self, layer: int, hidden: FloatArray, cosine: FloatArray, sine: FloatArray, spans: Sequence[slice]
    ) -> FloatArray:
        normed = self._norm(f"blk.{layer}.attn_norm.weight", hidden)
        count, size = len(hidden), self._head_size
        query = (normed @ self._weight(layer, "attn_q").T).reshape(count, self._heads, size)
        key = (normed @ self._weight(layer, "attn_k").T).reshape(count, self._kv_heads, size)
        value = (normed @ self._weight(layer, "attn_v").T).reshape(count, self._kv_heads, size)
        query, key = _rotate(query, cosine, sine), _rotate(key, cosine, sine)
        mixed = np.empty((count, self._heads * size), dtype=np.float32)
        for span in spans:
            _attend(query[span], key[span], value[span], mixed[span])
        return np.matmul(mixed, self._weight(layer, "attn_output").T, dtype=np.float32)

    def _feed_forward(self, layer: int, hidden: FloatArray) -> FloatArray:
        normed = self._norm(f"blk.{layer}.ffn_norm.weight", hidden)
        gate = normed @ self._weight(layer, "ffn_gate").T
        gate /= 1 + np.exp(-gate)
        gate *= normed @ self._weight(layer, "ffn_up").T
        return np.matmul(gate, self._weight(layer, "ffn_down").T, dtype=np.float32)

    def _read_out(
        self,
        final: FloatArray,
        targets: IntArray,
        requests: Sequence[ScoreRequest],
        stop_now: Callable[[], bool],
    ) -> list[Scores]:
        """Multiply with the output matrix chunk by chunk, keeping only what was asked for."""
        count, vocabulary = len(final), self._output.shape[0]
        top = max(request.top for request in requests)
        of = np.asarray(sorted({number for r in requests for number in r.of}), dtype=np.int64)
        peak = np.full(count, -np.inf, dtype=np.float32)
        total = np.zeros(count, dtype=np.float64)
        target_logits = np.empty(count, dtype=np.float32)
        of_logits = np.empty((count, len(of)), dtype=np.float32)
        best_ids = np.empty((count, 0), dtype=np.int64)
        best_logits = np.empty((count, 0), dtype=np.float32)
        for low in range(0, vocabulary, _VOCABULARY_CHUNK):
            if stop_now():
                raise PassAborted
            high = min(low + _VOCABULARY_CHUNK, vocabulary)
            logits = final @ dequantise(self._output, slice(low, high)).T
            here = np.flatnonzero((targets >= low) & (targets < high))
            target_logits[here] = logits[here, targets[here] - low]
            inside = np.flatnonzero((of >= low) & (of < high))
            of_logits[:, inside] = logits[:, of[inside] - low]
            if top:
                best_ids, best_logits = _merge_top(best_ids, best_logits, logits, low, top)
            new_peak = np.maximum(peak, logits.max(axis=1))
            logits -= new_peak[:, None]
            total = total * np.exp(peak - new_peak) + np.exp(logits, out=logits).sum(axis=1)
            peak = new_peak
        normaliser = (peak + np.log(total)).astype(np.float32)
        results: list[Scores] = []
        row = 0
        for request in requests:
            rows = slice(row, row + len(request.ids) - request.start - 1)
            columns = np.searchsorted(of, np.asarray(request.of, dtype=np.int64))
            shift = normaliser[rows, None]
            results.append(
                Scores(
                    logprobs=target_logits[rows] - normaliser[rows],
                    top_ids=best_ids[rows, : request.top],
                    top_logprobs=best_logits[rows, : request.top] - shift,
                    of_logprobs=of_logits[rows][:, columns] - shift,
                )
            )
            row = rows.stop
        return results


def _rotate(heads: FloatArray, cosine: FloatArray, sine: FloatArray) -> FloatArray:
    """Rotary embedding in GGUF's order: neighbouring values form a pair."""
    even, odd = heads[..., 0::2], heads[..., 1::2]
    turned = np.empty_like(heads)
    turned[..., 0::2] = even * cosine[:, None, :] - odd * sine[:, None, :]
    turned[..., 1::2] = even * sine[:, None, :] + odd * cosine[:, None, :]
    return turned


def _attend(query: FloatArray, key: FloatArray, value: FloatArray, out: FloatArray) -> None:
    """Causal attention within one sequence, grouped heads; writes [tokens, heads × size]."""
    count, heads, size = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    keys = key.transpose(1, 2, 0)[:, None]
    values = value.transpose(1, 0, 2)[:, None]
    grouped = query.reshape(count, kv_heads, group, size).transpose(1, 2, 0, 3)
    for low in range(0, count, _QUERY_CHUNK):
        high = min(low + _QUERY_CHUNK, count)
        scores = np.matmul(grouped[:, :, low:high], keys[..., :high]) / np.float32(np.sqrt(size))
        future = np.arange(high)[None, :] > np.arange(low, high)[:, None]
        scores[:, :, future] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = np.matmul(scores, values[:, :, :high])
        out[low:high] = mixed.transpose(2, 0, 1, 3).reshape(high - low, heads * size)


def _merge_top(
    best_ids: IntArray, best_logits: FloatArray, logits: FloatArray, low: int, top: int
) -> tuple[IntArray, FloatArray]:
    """The ``top`` largest of the best so far and a further chunk, largest first."""
    take = min(top, logits.shape[1])
    chosen = np.argpartition(logits, logits.shape[1] - take, axis=1)[:, -take:]
    ids = np.concatenate([best_ids, chosen + low], axis=1)
    values = np.concatenate([best_logits, np.take_along_axis(logits, chosen, axis=1)], axis=1)
    order = np.argsort(-values, axis=1, kind="stable")[:, :top]
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)
