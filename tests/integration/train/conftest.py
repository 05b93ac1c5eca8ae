"""The example in examples/train as importable modules, and a very small model that it can train."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "train"
sys.path.insert(0, str(EXAMPLE))


@pytest.fixture(scope="session")
def small_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of two layers with seeded weights, as the example trains one: F16 matrices, F32 norms."""
    import gguf
    import numpy as np

    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    width, heads, kv_heads, feed_forward, vocabulary = 64, 4, 2, 96, 300
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(width // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_description("stays as it is")
    chance = np.random.default_rng(5)

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(name, chance.normal(0, 0.15, (rows, columns)).astype(np.float16))

    def norm(name: str) -> None:
        writer.add_tensor(name, chance.uniform(0.5, 1.5, width).astype(np.float32))

    matrix("token_embd.weight", vocabulary, width)
    norm("output_norm.weight")
    kv_width = width // heads * kv_heads
    for layer in range(2):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm.weight")
        norm(f"{block}.ffn_norm.weight")
        matrix(f"{block}.attn_q.weight", width, width)
        matrix(f"{block}.attn_k.weight", kv_width, width)
        matrix(f"{block}.attn_v.weight", kv_width, width)
        matrix(f"{block}.attn_output.weight", width, width)
        matrix(f"{block}.ffn_gate.weight", feed_forward, width)
        matrix(f"{block}.ffn_up.weight", feed_forward, width)
        matrix(f"{block}.ffn_down.weight", width, feed_forward)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
