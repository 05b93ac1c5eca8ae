"""Files between optimiser and engines: read a model from one, write new weights into another.

The embedded engine takes GGUF, SGLang takes a Hugging Face folder with safetensors. Both are written under a
temporary name first and renamed, so an engine never finds half of one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import gguf
import numpy as np
import torch
from torch import Tensor

from model import Decoder, Shape

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Checkpoint(Protocol):
    """A checkpoint on disk that the policy starts from, and whose form all later ones have."""

    path: Path
    precision: torch.dtype
    """What matrices are kept in, and engines compute with."""

    def precision_of(self, values: Tensor) -> torch.dtype:
        """Return what a tensor is kept in."""
        ...

    def load(self) -> Decoder:
        """Return the model, float32, on the CPU."""
        ...

    def write(self, model: Decoder, path: Path) -> None:
        """Write the model's present weights, rounded, as a checkpoint of its own."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a ``.gguf`` file or a folder with ``config.json`` and safetensors."""
    return GgufCheckpoint(path) if path.suffix == ".gguf" else FolderCheckpoint(path)


class GgufCheckpoint:
    """A Llama in a GGUF file with float16 matrices and float32 norms, as ``make_models.py`` writes it."""

    precision = torch.float16

    def __init__(self, path: Path) -> None:
        self.path = path
        reader = gguf.GGUFReader(path)
        self.shape = gguf_shape(reader)
        self._places = {
            tensor.name: (tensor.data_offset, tuple(int(size) for size in reversed(tensor.shape)))
            for tensor in reader.tensors
        }
        for tensor in reader.tensors:
            if tensor.tensor_type.name != ("F32" if len(tensor.shape) == 1 else "F16"):
                raise ValueError(
                    f"{path}: {tensor.name} is {tensor.tensor_type.name}; float16 matrices and float32 norms "
                    "are what can be trained and published. Make the file with make_models.py"
                )

    def precision_of(self, values: Tensor) -> torch.dtype:
        return torch.float32 if values.ndim == 1 else self.precision

    def load(self) -> Decoder:
        model = Decoder(self.shape)
        model.load_state_dict(
            {
                hf_name(name): from_gguf(name, torch.from_numpy(np.array(values, np.float32)), self.shape)
                for name, values in self._views(self.path, "r")
            }
        )
        return model

    def write(self, model: Decoder, path: Path) -> None:
        """Copy the first file and put the tensors in their places: all else stays, the tokenizer too."""
        state = model.state_dict()
        part = path.with_suffix(".part")
        shutil.copyfile(self.path, part)
        for name, place in self._views(part, "r+"):
            place[:] = to_gguf(name, state[hf_name(name)].cpu(), self.shape).numpy()
            place.flush()
        part.replace(path)

    def _views(self, path: Path, mode: str) -> Iterator[tuple[str, np.memmap]]:
        for name, (offset, shape) in self._places.items():
            dtype = np.float32 if len(shape) == 1 else np.float16
            yield name, np.memmap(path, dtype=dtype, mode=mode, offset=offset, shape=shape)


class FolderCheckpoint:
    """A Qwen3 or Llama as Hugging Face keeps it: ``config.json``, tokenizer, safetensors; bfloat16."""

    precision = torch.bfloat16

    def __init__(self, path: Path) -> None:
        self.path = path
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        if not config["tie_word_embeddings"]:
            raise ValueError(
                f"{path}: the output matrix is not tied to the embedding; model.py has tied ones only"
            )
        rope = config.get("rope_parameters") or {}
        self.shape = Shape(
            vocabulary=config["vocab_size"],
            width=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_size=config["head_dim"],
            feed_forward=config["intermediate_size"],
            epsilon=config["rms_norm_eps"],
            rope_base=rope.get("rope_theta") or config["rope_theta"],
            head_norm=config["model_type"] == "qwen3",
        )

    def precision_of(self, values: Tensor) -> torch.dtype:
        del values
        return self.precision

    def load(self) -> Decoder:
        from safetensors.torch import load_file

        state = load_file(self.path / "model.safetensors")
        state.pop("lm_head.weight", None)
        model = Decoder(self.shape)
        model.load_state_dict({name: values.float() for name, values in state.items()})
        return model

    def write(self, model: Decoder, path: Path) -> None:
        """Write ``model.safetensors`` beside copies of the first folder's other files."""
        from safetensors.torch import save_file

        part = path.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(self.path, part, ignore=shutil.ignore_patterns("*.safetensors"))
        state = {name: values.to("cpu", self.precision) for name, values in model.state_dict().items()}
        save_file(state, part / "model.safetensors", metadata={"format": "pt"})
        shutil.rmtree(path, ignore_errors=True)
        os.replace(part, path)


def gguf_shape(reader: gguf.GGUFReader) -> Shape:
    """Return the shape of a GGUF file's model.

    Raises:
        ValueError: it is no Llama, or its output matrix is not tied.
    """

    def value(key: str):
        return reader.fields[key].contents()

    if value("general.architecture") != "llama" or any(t.name == "output.weight" for t in reader.tensors):
        raise ValueError(
            f"{reader.data.filename}: only a llama with a tied output matrix can be trained here"
        )
    width, heads = value("llama.embedding_length"), value("llama.attention.head_count")
    return Shape(
        vocabulary=int(next(t.shape[1] for t in reader.tensors if t.name == "token_embd.weight")),
        width=width,
        layers=value("llama.block_count"),
        heads=heads,
        kv_heads=value("llama.attention.head_count_kv"),
        head_size=width // heads,
        feed_forward=value("llama.feed_forward_length"),
        epsilon=value("llama.attention.layer_norm_rms_epsilon"),
        rope_base=value("llama.rope.freq_base"),
    )


def hf_name(name: str) -> str:
    """Return Hugging Face's name of a GGUF tensor."""
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, kind, _ = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[kind]}.weight"


def to_gguf(name: str, values: Tensor, shape: Shape) -> Tensor:
    """Reorder the rows of each head of a query or key projection: rotary pairs are (i, i + half) in Hugging
    Face's files and neighbours (2i, 2i + 1) in GGUF."""
    heads = _heads(name, shape)
    return (
        values
        if heads is None
        else values.view(heads, 2, -1, values.shape[1]).transpose(1, 2).reshape_as(values)
    )


def from_gguf(name: str, values: Tensor, shape: Shape) -> Tensor:
    """The inverse of :func:`to_gguf`."""
    heads = _heads(name, shape)
    return (
        values
        if heads is None
        else values.view(heads, -1, 2, values.shape[1]).transpose(1, 2).reshape_as(values)
    )


def _heads(name: str, shape: Shape) -> int | None:
    kind = name.split(".")[-2]
    return {"attn_q": shape.heads, "attn_k": shape.kv_heads}.get(kind)
