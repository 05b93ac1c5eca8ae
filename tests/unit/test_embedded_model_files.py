"""GGUF files, dequantising, the forward pass and checkpoints, on a tiny model made here."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from rolecall_plugins.engines.embedded import checkpoint, forward
from rolecall_plugins.engines.embedded.dequantise import dequantise, gather_rows
from rolecall_plugins.engines.embedded.forward import NumpyModel, PassAborted, ScoreRequest
from rolecall_plugins.engines.embedded.gguf_file import GgufError, GgufFile
from rolecall_plugins.engines.embedded.serving_file import derive, ensure_serving_file, model_file
from rolecall_plugins.engines.embedded.tokenizer import ModelTokenizer

Kind = gguf.GGMLQuantizationType
WIDTH, HEADS, KV_HEADS, SIZE, INNER, LAYERS, VOCABULARY = 64, 4, 2, 16, 96, 2, 270
BASE, EPSILON = 10_000.0, 1e-5

SHAPES = {
    "token_embd": (VOCABULARY, WIDTH),
    "output_norm": (WIDTH,),
    **{
        f"blk.{layer}.{name}": shape
        for layer in range(LAYERS)
        for name, shape in {
            "attn_norm": (WIDTH,),
            "attn_q": (HEADS * SIZE, WIDTH),
            "attn_k": (KV_HEADS * SIZE, WIDTH),
            "attn_v": (KV_HEADS * SIZE, WIDTH),
            "attn_output": (WIDTH, HEADS * SIZE),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (INNER, WIDTH),
            "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER),
        }.items()
    },
}
TOKENS = [*(chr(0x100 + n) for n in range(VOCABULARY - 4)), "ab", "<|im_end|>", "a", "b"]


def write_model(path: Path, kind: Any = Kind.F32, **changes: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Write a random model; return its tensors as the file holds them, dequantised by ``gguf``."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(BASE)
    writer.add_rope_dimension_count(SIZE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("split", "smollm"))
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token == "<|im_end|>" else 1 for token in TOKENS])
    writer.add_token_merges([changes.get("merge", "a b")])
    writer.add_eos_token_id(TOKENS.index("<|im_end|>"))
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for name, shape in SHAPES.items():
        values = random.normal(1 if "norm" in name else 0, 0.3, shape).astype(np.float32)
        if len(shape) == 1 or kind == Kind.F32:
            writer.add_tensor(f"{name}.weight", values)
        else:
            packed = gguf.quantize(values, kind)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
            values = gguf.dequantize(packed, kind)
        tensors[f"{name}.weight"] = values.reshape(shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def log_probabilities(w: dict[str, np.ndarray[Any, Any]], ids: list[int]) -> np.ndarray[Any, Any]:
    """The plain forward pass in float64."""
    count = len(ids)
    angle = np.outer(np.arange(count), BASE ** (-np.arange(0, SIZE, 2) / SIZE))
    turn = np.exp(1j * angle)[:, None]

    def norm(values: Any, weight: Any) -> Any:
        return values / np.sqrt((values**2).mean(-1, keepdims=True) + EPSILON) * weight

    def heads(values: Any, number: int) -> Any:
        pairs = values.reshape(count, number, SIZE // 2, 2)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * turn
        return np.stack([turned.real, turned.imag], -1).reshape(count, number, SIZE)

    x = w["token_embd.weight"][ids].astype(np.float64)
    for layer in range(LAYERS):
        b = f"blk.{layer}."
        h = norm(x, w[b + "attn_norm.weight"])
        q, k = heads(h @ w[b + "attn_q.weight"].T, HEADS), heads(h @ w[b + "attn_k.weight"].T, KV_HEADS)
        v = (h @ w[b + "attn_v.weight"].T).reshape(count, KV_HEADS, SIZE)
        mixed = np.zeros((count, HEADS, SIZE))
        for head in range(HEADS):
            for at in range(count):
                scores = k[: at + 1, head // 2] @ q[at, head] / math.sqrt(SIZE)
                share = np.exp(scores - scores.max())
                mixed[at, head] = share @ v[: at + 1, head // 2] / share.sum()
        x = x + mixed.reshape(count, -1) @ w[b + "attn_output.weight"].T
        h = norm(x, w[b + "ffn_norm.weight"])
        gate = h @ w[b + "ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[b + "ffn_up.weight"].T)) @ w[b + "ffn_down.weight"].T
    logits = norm(x, w["output_norm.weight"]) @ w["token_embd.weight"].T
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
def test_every_kind_of_tensor_is_read_exactly(tmp_path: Path, kind: Any) -> None:
    expected = write_model(tmp_path / "m.gguf", kind)
    file = GgufFile(tmp_path / "m.gguf")
    assert file.metadata["llama.block_count"] == LAYERS
    assert file.metadata["tokenizer.ggml.tokens"] == TOKENS
    assert set(file.tensors) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(dequantise(file.tensors[name]), values)
    some = np.array([5, 0, 269])
    embedding = expected["token_embd.weight"]
    np.testing.assert_array_equal(gather_rows(file.tensors["token_embd.weight"], some), embedding[some])
    np.testing.assert_array_equal(dequantise(file.tensors["token_embd.weight"], slice(3, 7)), embedding[3:7])
    file.touch()
    file.let_go()
    np.testing.assert_array_equal(
        dequantise(file.tensors["output_norm.weight"]), expected["output_norm.weight"]
    )
    assert "tokenizer.ggml.tokens" not in GgufFile(tmp_path / "m.gguf", with_arrays=False).metadata


def test_a_file_that_is_no_gguf_or_is_cut_short_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    broken = tmp_path / "broken.gguf"
    for content, said in (
        (b"", "cannot be mapped"),
        (b"PK\x03\x04" + whole[4:], "not a GGUF file"),
        (whole[:200], "damaged or cut short"),
        (whole[:-100], "cut short"),
    ):
        broken.write_bytes(content)
        with pytest.raises(GgufError, match=said):
            GgufFile(broken)
    with pytest.raises(GgufError, match="cannot be mapped"):
        GgufFile(tmp_path / "absent.gguf")


def test_several_sequences_in_one_pass_equal_the_plain_formulas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "_VOCABULARY_CHUNK", 100)
    monkeypatch.setattr(forward, "_QUERY_CHUNK", 3)
    weights = write_model(tmp_path / "m.gguf", Kind.Q8_0)
    first, second, third = [1, 269, 3, 150, 99, 100, 7, 42], [200, 5, 5], [9]
    results = NumpyModel(GgufFile(tmp_path / "m.gguf")).score(
        [
            ScoreRequest(ids=tuple(first), start=2, top=4, of=(250, 0)),
            ScoreRequest(ids=tuple(second), start=0, of=(7,)),
            ScoreRequest(ids=tuple(third), start=0, top=1),
        ]
    )
    expected = log_probabilities(weights, first)
    found = results[0]
    np.testing.assert_allclose(found.logprobs, [expected[i, first[i + 1]] for i in range(2, 7)], atol=1e-4)
    best = np.argsort(-expected[2:7], axis=1)[:, :4]
    np.testing.assert_array_equal(found.top_ids, best)
    np.testing.assert_allclose(found.top_logprobs, np.take_along_axis(expected[2:7], best, 1), atol=1e-4)
    np.testing.assert_allclose(found.of_logprobs, expected[2:7][:, [250, 0]], atol=1e-4)
    expected = log_probabilities(weights, second)
    np.testing.assert_allclose(results[1].logprobs, [expected[0, 5], expected[1, 5]], atol=1e-4)
    np.testing.assert_allclose(results[1].of_logprobs, expected[:2, [7]], atol=1e-4)
    assert results[1].top_ids.shape == (2, 0)
    assert results[2].logprobs.shape == (0,)


def test_a_pass_stops_between_layers_when_nobody_waits(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf")
    answers = iter([False, True])
    with pytest.raises(PassAborted):
        NumpyModel(GgufFile(tmp_path / "m.gguf")).score(
            [ScoreRequest(ids=(1, 2), start=0)], lambda: next(answers)
        )


def test_the_serving_file_has_the_same_tensors_and_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLECALL_CACHE", str(tmp_path / "cache"))
    expected = write_model(tmp_path / "m.gguf", Kind.Q4_1)
    made = ensure_serving_file(tmp_path / "m.gguf")
    served = GgufFile(made)
    for name, values in expected.items():
        np.testing.assert_array_equal(dequantise(served.tensors[name]), values)
    assert len(set(served.metadata["tokenizer.ggml.tokens"])) == VOCABULARY
    assert all(token.isascii() for token in served.metadata["tokenizer.ggml.tokens"])
    before = made.stat().st_mtime_ns
    assert ensure_serving_file(tmp_path / "m.gguf") == made
    assert made.stat().st_mtime_ns == before


def test_a_model_of_another_architecture_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "m.gguf", architecture="qwen2")
    with pytest.raises(GgufError, match="architecture 'qwen2'; the embedded engine serves 'llama'"):
        derive(GgufFile(tmp_path / "m.gguf"), tmp_path / "out.gguf")
    monkeypatch.setenv("ROLECALL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(GgufError, match="architecture 'qwen2'"):
        ensure_serving_file(tmp_path / "m.gguf")
    assert list((tmp_path / "cache").rglob("*.gguf")) == []


def test_a_folder_has_to_hold_one_model(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    assert model_file(tmp_path) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").touch()
    with pytest.raises(GgufError, match=r"found: a\.gguf, b\.gguf"):
        model_file(tmp_path)


def test_the_tokenizer_keeps_special_tokens_whole(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf")
    tokenizer = ModelTokenizer(GgufFile(tmp_path / "m.gguf"))
    end = TOKENS.index("<|im_end|>")
    assert tokenizer.encode("ab<|im_end|>a") == [TOKENS.index("ab"), end, TOKENS.index("a")]
    assert tokenizer.end_ids == {end}
    assert tokenizer.special_tokens == {"eos_token": "<|im_end|>"}
    assert tokenizer.decode([end], skip_special_tokens=True) == ""
    write_model(tmp_path / "other.gguf", merge="a x")
    with pytest.raises(GgufError, match="vocabulary and merges do not fit"):
        ModelTokenizer(GgufFile(tmp_path / "other.gguf"))
    write_model(tmp_path / "other.gguf", split="qwen2")
    with pytest.raises(GgufError, match="pre-tokenizer 'qwen2' is not supported"):
        ModelTokenizer(GgufFile(tmp_path / "other.gguf"))


def hugging_face(tensors: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
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
    renamed: dict[str, np.ndarray[Any, Any]] = {}
    for name, values in tensors.items():
        *block, part, _ = name.split(".")
        if part in ("attn_q", "attn_k"):
            pairs = values.reshape(len(values) // SIZE, SIZE // 2, 2, -1)
            tensors = {**tensors, name: pairs.swapaxes(1, 2).reshape(values.shape)}
        prefix = f"model.layers.{block[1]}." if block else ""
        renamed[f"{prefix}{names[part]}.weight"] = tensors[name]
    return renamed


def save(path: Path, tensors: dict[str, np.ndarray[Any, Any]], dtype: str = "F32") -> None:
    header, body = {}, b""
    for name, given in tensors.items():
        values = np.ascontiguousarray(given, dtype=np.float32)
        data = (
            (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
            if dtype == "BF16"
            else values.tobytes()
        )
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def test_safetensors_become_the_model_they_are(tmp_path: Path) -> None:
    expected = write_model(tmp_path / "m.gguf", Kind.F16)
    like = GgufFile(tmp_path / "m.gguf")
    renamed = hugging_face(expected)
    folder = tmp_path / "split"
    folder.mkdir()
    halves = [dict(list(renamed.items())[0::2]), dict(list(renamed.items())[1::2])]
    weight_map = {}
    for number, half in enumerate(halves):
        save(folder / f"part-{number}.safetensors", half)
        weight_map |= dict.fromkeys(half, f"part-{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    checkpoint.convert(folder, like, tmp_path / "out.gguf")
    served = GgufFile(tmp_path / "out.gguf")
    for name, values in expected.items():
        np.testing.assert_array_equal(dequantise(served.tensors[name]), values)

    save(
        tmp_path / "one.safetensors",
        {**renamed, "lm_head.weight": renamed["model.embed_tokens.weight"]},
        "BF16",
    )
    checkpoint.convert(tmp_path / "one.safetensors", like, tmp_path / "out.gguf")
    served = GgufFile(tmp_path / "out.gguf")
    np.testing.assert_allclose(
        dequantise(served.tensors["blk.1.attn_q.weight"]), expected["blk.1.attn_q.weight"], rtol=1 / 128
    )
    checkpoint.convert(tmp_path / "m.gguf", like, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model.norm.weight": None}, "it lacks 'output_norm.weight'"),
        ({"model.norm.weight": np.ones(3)}, r"shape \(3,\), \(64,\) is served"),
        ({"model.rotary.weight": np.ones(3)}, "is not part of a Llama model"),
        (
            {"model.layers.2.mlp.up_proj.weight": np.ones(3)},
            "has 'blk.2.ffn_up.weight', which the model does not",
        ),
        ({"model.norm.weight": np.full(WIDTH, np.nan)}, "not finite"),
        ({"lm_head.weight": np.ones((VOCABULARY, WIDTH))}, "lm_head differs from the embedding"),
    ],
)
def test_a_checkpoint_of_another_shape_is_refused(
    tmp_path: Path, change: dict[str, np.ndarray[Any, Any] | None], said: str
) -> None:
    renamed = hugging_face(write_model(tmp_path / "m.gguf"))
    kept = {name: values for name, values in {**renamed, **change}.items() if values is not None}
    save(tmp_path / "bad.safetensors", kept)
    with pytest.raises(GgufError, match=said):
        checkpoint.convert(tmp_path / "bad.safetensors", GgufFile(tmp_path / "m.gguf"), tmp_path / "out.gguf")


def test_damaged_safetensors_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "whole.safetensors", {"model.norm.weight": np.ones(8)})
    whole = (tmp_path / "whole.safetensors").read_bytes()
    for content in (b"", b"\x01", b"\xff" * 64, whole[:-4], whole.replace(b"F32", b"I32")):
        (tmp_path / "bad.safetensors").write_bytes(content)
        with pytest.raises(GgufError):
            checkpoint.read_safetensors(tmp_path / "bad.safetensors")
