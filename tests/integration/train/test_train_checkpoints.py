"""Weights on their way through files: what is written is what the optimiser has and engines compute with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.transferqueue
torch = pytest.importorskip("torch", reason="comes with rolecall[transferqueue]")

import gguf  # noqa: E402

from checkpoints import GgufCheckpoint, from_gguf, hf_name, to_gguf  # noqa: E402
from publish import Publisher, WrongWeights, own_log_probs  # noqa: E402
from rolecall_plugins.engines.embedded.forward import NumpyModel, ScoreRequest  # noqa: E402
from rolecall_plugins.engines.embedded.gguf_file import GgufFile  # noqa: E402

IDS = (5, 250, 17, 17, 3, 99, 120, 4, 288, 0, 61, 75)


def changed(checkpoint: GgufCheckpoint):
    model = checkpoint.load()
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=source))
    return model


def engine_log_probs(path: Path) -> np.ndarray:
    (scores,) = NumpyModel(GgufFile(path)).score([ScoreRequest(ids=IDS, start=0)])
    return scores.logprobs


def test_a_published_file_holds_the_modules_tensors_and_everything_else_of_the_first(
    small_gguf, tmp_path
) -> None:
    checkpoint = GgufCheckpoint(small_gguf)
    model = changed(checkpoint)
    checkpoint.write(model, tmp_path / "new.gguf")
    state = model.state_dict()
    first, new = gguf.GGUFReader(small_gguf), gguf.GGUFReader(tmp_path / "new.gguf")
    assert {name: field.contents() for name, field in new.fields.items()} == {
        name: field.contents() for name, field in first.fields.items()
    }
    for tensor, before in zip(new.tensors, first.tensors, strict=True):
        assert (tensor.name, tensor.tensor_type) == (before.name, before.tensor_type)
        back = from_gguf(tensor.name, torch.from_numpy(np.array(tensor.data)), checkpoint.shape)
        own = state.pop(hf_name(tensor.name))
        assert torch.equal(back, own if own.ndim == 1 else own.half()), tensor.name
        assert not np.array_equal(tensor.data, before.data), tensor.name
    assert not state
    assert [path.name for path in tmp_path.iterdir()] == ["new.gguf"]


def test_the_embedded_engines_log_probs_of_a_published_file_are_the_modules(small_gguf, tmp_path) -> None:
    checkpoint = GgufCheckpoint(small_gguf)
    own = own_log_probs(checkpoint.load(), torch.tensor(IDS)).numpy()
    assert np.abs(engine_log_probs(small_gguf) - own).max() < 1e-4
    model = changed(checkpoint)
    checkpoint.write(model, tmp_path / "new.gguf")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(checkpoint.precision_of(parameter)))
    new = own_log_probs(model, torch.tensor(IDS)).numpy()
    assert np.abs(engine_log_probs(tmp_path / "new.gguf") - new).max() < 1e-4
    assert np.abs(new - own).max() > 0.1


def test_rows_of_queries_and_keys_change_places_head_by_head(small_gguf) -> None:
    shape = GgufCheckpoint(small_gguf).shape
    size = shape.head_size
    rows = torch.arange(shape.kv_heads * size)[:, None] * torch.ones(1, 3, dtype=torch.long)
    moved = to_gguf("blk.0.attn_k.weight", rows, shape)
    # pair i of head h: rows i and i + size/2 of that head become its neighbours 2i and 2i + 1
    for head in range(shape.kv_heads):
        for pair in range(size // 2):
            assert moved[head * size + 2 * pair, 0] == head * size + pair
            assert moved[head * size + 2 * pair + 1, 0] == head * size + pair + size // 2
    assert torch.equal(from_gguf("blk.0.attn_k.weight", moved, shape), rows)
    assert to_gguf("blk.0.attn_v.weight", rows, shape) is rows
    wrong = to_gguf("blk.0.attn_q.weight", torch.cat([rows, rows]), shape)
    assert not torch.equal(wrong[: len(rows)], torch.cat([rows, rows])[: len(rows)])


def test_quantised_files_are_refused(tmp_path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "llama")
    writer.add_block_count(0)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(1e4)
    writer.add_layer_norm_rms_eps(1e-5)
    block = gguf.quants.quantize(np.ones((8, 32), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", block, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"token_embd\.weight is Q8_0; float16 matrices .* make_models\.py"):
        GgufCheckpoint(tmp_path / "q.gguf")


class FakeJob:
    gateway_url = ""

    def __init__(self) -> None:
        self.updates: list[tuple[str, Path, str]] = []

    async def update_weights(self, role, update, version) -> None:
        assert update.path.exists()
        self.updates.append((role, update.path, version))


async def test_versions_have_paths_of_their_own_and_only_the_last_two_stay(small_gguf, tmp_path) -> None:
    job = FakeJob()
    checkpoint = GgufCheckpoint(small_gguf)
    publisher = Publisher(job, checkpoint, tmp_path)
    assert publisher.version == "0"
    for step in (1, 2, 4):
        await publisher.publish(publisher.write(checkpoint.load(), step), step)
    assert publisher.version == "step-4"
    assert [(role, path.name, version) for role, path, version in job.updates] == [
        ("rollout", "step-0001.gguf", "step-1"),
        ("rollout", "step-0002.gguf", "step-2"),
        ("rollout", "step-0004.gguf", "step-4"),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0002.gguf", "step-0004.gguf"]


@pytest.mark.parametrize("step", [2, 1, 0])
async def test_a_version_that_is_not_newer_is_not_even_written(small_gguf, tmp_path, step) -> None:
    checkpoint = GgufCheckpoint(small_gguf)
    publisher = Publisher(FakeJob(), checkpoint, tmp_path)
    await publisher.publish(publisher.write(checkpoint.load(), 2), 2)
    before = (tmp_path / "step-0002.gguf").stat().st_mtime_ns
    with pytest.raises(WrongWeights, match=f"weights of step {step} can't be published: step 2 is"):
        publisher.write(changed(checkpoint), step)
    assert [path.name for path in tmp_path.iterdir()] == ["step-0002.gguf"]
    assert (tmp_path / "step-0002.gguf").stat().st_mtime_ns == before


def test_a_qwen3_folder_comes_back_and_computes_what_transformers_does(tmp_path) -> None:
    pytest.importorskip("safetensors", reason="comes with SGLang and transformers")
    transformers = pytest.importorskip("transformers", reason="comes with SGLang")
    from checkpoints import FolderCheckpoint
    from make_models import make_qwen3

    make_qwen3(tmp_path / "teacher", tmp_path / "student", noise=0.1, seed=3, size="tiny")
    checkpoint = FolderCheckpoint(tmp_path / "student")
    model = checkpoint.load()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "student", dtype=torch.float32)
    ids = torch.tensor(IDS)
    with torch.no_grad():
        expected = theirs(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None]).squeeze(1)
    assert torch.allclose(own_log_probs(model, ids), expected, atol=1e-4)
    checkpoint.write(model, tmp_path / "step-0001")
    again = FolderCheckpoint(tmp_path / "step-0001").load().state_dict()
    assert all(torch.equal(again[name], values) for name, values in model.state_dict().items())
    assert json.loads((tmp_path / "step-0001" / "config.json").read_text())["model_type"] == "qwen3"
    assert (tmp_path / "step-0001" / "tokenizer.json").exists()
    assert not (tmp_path / "step-0001.part").exists()
