"""Turn a checkpoint of the served architecture into a serving file, for a weight update.

Reads a GGUF file, one safetensors file, or a folder with either (``model.safetensors.index.json``
included). safetensors tensors go by Hugging Face's Llama names and become F16; every tensor of the
model that is being served has to be there, with its shape, and nothing else. Runs as a process of
its own: converting takes memory that the server shall not keep.
"""

from __future__ import annotations

import argparse
import json
import mmap
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from rolecall.api import die_with_parent

from .gguf_file import GgufError, GgufFile, Tensor
from .serving_file import close_writer, derive, model_file, open_writer

_SUFFIX = ".safetensors"
_INDEX = "model.safetensors.index.json"

_NAMES: Mapping[str, str] = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")
_LAYER_NAMES: Mapping[str, str] = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_HEADS_OF: Mapping[str, str] = {
    "attn_q": "llama.attention.head_count",
    "attn_k": "llama.attention.head_count_kv",
}
"""Projections whose rows GGUF keeps in another order than Hugging Face does."""


@frozen(kw_only=True)
class SafeTensor:
    """One tensor of a safetensors file; ``raw`` is a view of the mapped file."""

    dtype: str
    shape: tuple[int, ...]
    raw: np.ndarray[Any, np.dtype[np.uint8]]

    def values(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The values as float32."""
        if self.dtype == "BF16":
            wide = self.raw.view(np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32).reshape(self.shape)
        return self.raw.view(_DTYPES[self.dtype]).astype(np.float32).reshape(self.shape)


_DTYPES: Mapping[str, Any] = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def read_safetensors(path: Path) -> dict[str, SafeTensor]:
    """Map a safetensors file: its tensors by name.

    Raises:
        GgufError: it is damaged, cut short, or holds a dtype that is no float.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = int.from_bytes(data[:8], "little")
        header: dict[str, Any] = json.loads(data[8 : 8 + size])
        tensors: dict[str, SafeTensor] = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            dtype, shape = entry["dtype"], tuple(entry["shape"])
            low, high = entry["data_offsets"]
            if dtype not in _DTYPES:
                raise GgufError(f"{path}: tensor {name!r} is {dtype}; {', '.join(_DTYPES)} can be read")
            expected = int(np.prod(shape)) * np.dtype(_DTYPES[dtype]).itemsize
            if high - low != expected or 8 + size + high > len(data):
                raise GgufError(f"{path}: tensor {name!r} does not fit into the file: cut short?")
            raw = np.frombuffer(data, dtype=np.uint8, count=high - low, offset=8 + size + low)
            tensors[name] = SafeTensor(dtype=dtype, shape=shape, raw=raw)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GgufError(f"{path}: not a safetensors file: {error}") from error
    return tensors


def convert(checkpoint: Path, like: GgufFile, out: Path) -> None:
    """Write the checkpoint as a serving file of the shape of ``like``.

    Raises:
        GgufError: unreadable, or names and shapes are not those of ``like``.
    """
    files = _safetensors_files(checkpoint)
    if files:
        _convert_safetensors(checkpoint, files, like, out)
        return
    source = GgufFile(model_file(checkpoint), with_arrays=False)
    _compare(checkpoint, {name: tensor.shape for name, tensor in source.tensors.items()}, like)
    derive(source, out)


def _safetensors_files(checkpoint: Path) -> list[Path]:
    if checkpoint.is_file():
        return [checkpoint] if checkpoint.suffix == _SUFFIX else []
    index = checkpoint / _INDEX
    if index.is_file():
        try:
            parts: Any = json.loads(index.read_text())["weight_map"]
            return [checkpoint / name for name in sorted(set(parts.values()))]
        except (ValueError, KeyError, AttributeError) as error:
            raise GgufError(f"{index}: not an index of safetensors files: {error}") from error
    found = sorted(checkpoint.glob(f"*{_SUFFIX}")) if checkpoint.is_dir() else []
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise GgufError(f"{checkpoint}: several safetensors files but no {_INDEX}: {names}")
    return found


def _convert_safetensors(checkpoint: Path, files: list[Path], like: GgufFile, out: Path) -> None:
    named: dict[str, SafeTensor] = {}
    for file in files:
        for name, tensor in read_safetensors(file).items():
            target = _gguf_name(name)
            if target is None:
                raise GgufError(f"{file}: tensor {name!r} is not part of a Llama model")
            named[target] = tensor
    if "output.weight" in named and "output.weight" not in like.tensors:
        # The served model ties its output to the embedding; a checkpoint may spell the copy out.
        tied, embedding = named.pop("output.weight"), named.get("token_embd.weight")
        if embedding is None or not np.array_equal(tied.values(), embedding.values()):
            raise GgufError(f"{checkpoint}: lm_head differs from the embedding, which the model ties")
    _compare(checkpoint, {name: tensor.shape for name, tensor in named.items()}, like)
    writer = open_writer(like, out)
    for name, values in _in_order(named, like):
        # Norms stay float32, as llama.cpp wants them; matrices become float16.
        writer.add_tensor(name, values if values.ndim == 1 else values.astype(np.float16))
    close_writer(writer)


def _in_order(named: Mapping[str, SafeTensor], like: GgufFile) -> Iterator[tuple[str, Any]]:
    for name, model_tensor in like.tensors.items():
        values = named[name].values()
        if not np.isfinite(values).all():
            raise GgufError(f"tensor {name!r} of the checkpoint holds values that are not finite")
        kind = name.split(".")[-2]
        if kind in _HEADS_OF:
            values = _to_neighbour_pairs(values, like.require(_HEADS_OF[kind]))
        assert values.shape == model_tensor.shape
        yield name, values


def _to_neighbour_pairs(
    values: np.ndarray[Any, np.dtype[np.float32]], heads: int
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Reorder each head's rows: rotary pairs are (i, i + half) there and (2i, 2i + 1) in GGUF."""
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _gguf_name(name: str) -> str | None:
    if name in _NAMES:
        return _NAMES[name]
    found = _LAYER.fullmatch(name)
    if found is None or found[2] not in _LAYER_NAMES:
        return None
    return f"blk.{found[1]}.{_LAYER_NAMES[found[2]]}.weight"


def _compare(checkpoint: Path, shapes: Mapping[str, tuple[int, ...]], like: GgufFile) -> None:
    expected: Mapping[str, Tensor] = like.tensors
    missing = sorted(set(expected) - set(shapes))
    unknown = sorted(set(shapes) - set(expected))
    if missing or unknown:
        parts = [f"lacks {_some(missing)}"] if missing else []
        parts += [f"has {_some(unknown)}, which the model does not"] if unknown else []
        raise GgufError(f"{checkpoint}: not a checkpoint of the served model: it {' and '.join(parts)}")
    for name, shape in shapes.items():
        if shape != expected[name].shape:
            raise GgufError(
                f"{checkpoint}: not a checkpoint of the served model: {name!r} has shape {shape}, "
                f"{expected[name].shape} is served"
            )


def _some(names: list[str]) -> str:
    rest = len(names) - 3
    return ", ".join(map(repr, names[:3])) + (f" and {rest} more" if rest > 0 else "")


def main() -> None:
    """Entry point of the converter process."""
    parser = argparse.ArgumentParser(description="Write a checkpoint as a serving file.")
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("like", type=Path, help="serving file that gives names and shapes")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    die_with_parent(given.parent_pid)
    try:
        convert(given.checkpoint, GgufFile(given.like, with_arrays=False), given.out)
    except GgufError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
