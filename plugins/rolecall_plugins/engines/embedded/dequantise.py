"""Turn GGUF tensors into float32, fast enough to do it anew for every forward pass.

Keeping SmolLM2-135M dequantised takes 538 MB; turning one layer at a time into float32 keeps the
process at the size of the quantised file, at about 0.3 s a pass, which a batch of prompts shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .gguf_file import Tensor

FloatArray = np.ndarray[Any, np.dtype[np.float32]]
ByteArray = np.ndarray[Any, np.dtype[np.uint8]]


def dequantise(tensor: Tensor, rows: slice = slice(None)) -> FloatArray:
    """Return the tensor, or some of its rows, as float32 of the tensor's shape."""
    columns = tensor.shape[-1]
    row_bytes = columns // tensor.quantisation.block * tensor.quantisation.block_bytes
    raw = tensor.raw.reshape(-1, row_bytes)[rows]
    values = _KERNELS[tensor.quantisation.name](raw.reshape(-1, tensor.quantisation.block_bytes))
    return values.reshape(-1, columns) if len(tensor.shape) > 1 else values.reshape(-1)


def gather_rows(tensor: Tensor, ids: np.ndarray[Any, np.dtype[np.int64]]) -> FloatArray:
    """Return the rows named by ``ids`` (an embedding look-up) as float32."""
    columns = tensor.shape[-1]
    row_bytes = columns // tensor.quantisation.block * tensor.quantisation.block_bytes
    raw = np.ascontiguousarray(tensor.raw.reshape(-1, row_bytes)[ids])
    values = _KERNELS[tensor.quantisation.name](raw.reshape(-1, tensor.quantisation.block_bytes))
    return values.reshape(-1, columns)


def _f32(raw: ByteArray) -> FloatArray:
    return raw.reshape(-1).view(np.float32)


def _f16(raw: ByteArray) -> FloatArray:
    return raw.reshape(-1).view(np.float16).astype(np.float32)


def _bf16(raw: ByteArray) -> FloatArray:
    return (raw.reshape(-1).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q8_0(raw: ByteArray) -> FloatArray:
    scale = np.ascontiguousarray(raw[:, :2]).view(np.float16).astype(np.float32)
    return np.multiply(raw[:, 2:].view(np.int8), scale, dtype=np.float32)


def _q4_0(raw: ByteArray) -> FloatArray:
    scale = np.ascontiguousarray(raw[:, :2]).view(np.float16).astype(np.float32)
    return _nibbles(raw[:, 2:], scale, -8 * scale)


def _q4_1(raw: ByteArray) -> FloatArray:
    scale_and_minimum = np.ascontiguousarray(raw[:, :4]).view(np.float16).astype(np.float32)
    return _nibbles(raw[:, 4:], scale_and_minimum[:, :1], scale_and_minimum[:, 1:])


def _nibbles(packed: ByteArray, scale: FloatArray, offset: FloatArray) -> FloatArray:
    """Low nibbles are the first half of a block, high nibbles the second."""
    values = np.empty((len(packed), 32), dtype=np.float32)
    np.multiply(packed & 15, scale, out=values[:, :16], dtype=np.float32)
    np.multiply(packed >> 4, scale, out=values[:, 16:], dtype=np.float32)
    values += offset
    return values


_KERNELS: Mapping[str, Callable[[ByteArray], FloatArray]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}
