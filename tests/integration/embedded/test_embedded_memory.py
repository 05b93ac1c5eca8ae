"""Sleep, wake and weight updates of the real engine, judged by its resident set and its figures."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import pytest_asyncio

from rolecall.api import EngineError, FromDisk, MemoryTag
from rolecall_plugins.engines.embedded import EmbeddedBackend, EmbeddedOptions
from rolecall_plugins.engines.embedded.engine import EmbeddedEngine

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session")]

TAGS = EmbeddedBackend().features(EmbeddedOptions(), static=True).memory_tags
WEIGHTS, CACHE = frozenset({MemoryTag.WEIGHTS}), frozenset({MemoryTag.KV_CACHE})
MIB = 2**20


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def left_awake(engine: EmbeddedEngine) -> AsyncIterator[None]:
    yield
    await engine.resume(TAGS)
    await engine.continue_generation()


def resident(engine: EmbeddedEngine) -> int:
    assert engine.pid is not None
    return psutil.Process(engine.pid).memory_info().rss


async def until(http: httpx.AsyncClient, count: str) -> None:
    async with asyncio.timeout(30):
        while (await http.get("/server_info")).json()[count] == 0:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.02)


async def asleep(engine: EmbeddedEngine) -> None:
    await engine.pause()
    await engine.abort_all()
    assert await engine.flush()
    await engine.release(TAGS)


async def test_sleep_gives_memory_back_and_waking_brings_the_same_figures(engine: EmbeddedEngine) -> None:
    before = await engine.canary()
    awake = resident(engine)
    sizes = []
    for _ in range(3):
        await asleep(engine)
        report = await engine.memory()
        assert report.resident_tags == frozenset()
        assert report.resident_bytes == pytest.approx(resident(engine), rel=0.05)
        sizes.append(resident(engine))
        await engine.resume(TAGS)
        await engine.continue_generation()
        assert (await engine.memory()).resident_tags == TAGS
        assert await engine.canary() == before
    assert max(sizes) < 0.4 * awake
    assert sizes[-1] < sizes[0] + 8 * MIB, "something stays behind at every sleep"
    assert resident(engine) == pytest.approx(awake, rel=0.1)


async def test_tags_are_apart_and_repeats_do_nothing(engine: EmbeddedEngine, http: httpx.AsyncClient) -> None:
    awake = resident(engine)
    await engine.release(WEIGHTS)
    without_weights = resident(engine)
    assert (await engine.memory()).resident_tags == CACHE
    assert without_weights < awake - 60 * MIB
    await engine.release(WEIGHTS)
    assert resident(engine) == pytest.approx(without_weights, rel=0.03)

    refused = await http.post("/generate", json={"text": "a"})
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) >= 1
    chat = await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}]})
    assert chat.status_code == 503
    assert (await http.get("/health")).status_code == 200
    assert (await http.get("/health_generate")).status_code == 503

    await engine.release(CACHE)
    without_both = resident(engine)
    assert without_both < without_weights - 60 * MIB
    await engine.resume(WEIGHTS)
    assert (await engine.memory()).resident_tags == WEIGHTS
    assert resident(engine) > without_both + 60 * MIB
    assert (await http.post("/generate", json={"text": "a"})).status_code == 503
    await engine.resume(WEIGHTS)
    await engine.resume(CACHE)
    await engine.resume(TAGS)
    assert (await engine.memory()).resident_tags == TAGS
    assert resident(engine) == pytest.approx(awake, rel=0.1)
    assert (await http.post("/generate", json={"text": "a"})).status_code == 200


async def test_no_tags_named_means_all(http: httpx.AsyncClient) -> None:
    assert (await http.post("/release_memory_occupation", json={"tags": ["cuda_graph"]})).status_code == 200
    assert len((await http.get("/server_info")).json()["resident_tags"]) == 2
    assert (await http.post("/release_memory_occupation")).json() is None
    assert (await http.get("/server_info")).json()["resident_tags"] == []
    assert (await http.post("/resume_memory_occupation")).json() is None
    assert len((await http.get("/server_info")).json()["resident_tags"]) == 2


async def test_a_request_that_waits_at_the_door_is_turned_away_by_a_release(
    engine: EmbeddedEngine, http: httpx.AsyncClient
) -> None:
    await engine.pause()
    waiting = asyncio.create_task(http.post("/generate", json={"text": "a"}))
    await until(http, "waiting_requests")
    await engine.release(TAGS)
    assert (await waiting).status_code == 503


async def test_release_is_refused_while_something_runs(
    engine: EmbeddedEngine, http: httpx.AsyncClient
) -> None:
    body = {"text": "a", "sampling_params": {"max_new_tokens": 900, "ignore_eos": True}}
    task = asyncio.create_task(http.post("/generate", json=body))
    await until(http, "running_requests")
    with pytest.raises(EngineError, match="requests run"):
        await engine.release(TAGS)
    assert (await engine.memory()).resident_tags == TAGS
    await engine.abort_all()
    await task


async def test_weights_from_disk_are_served_and_the_old_ones_come_back(
    engine: EmbeddedEngine,
    http: httpx.AsyncClient,
    reference: Any,
    model_path: Path,
    tmp_path: Path,
    save_checkpoint: Any,
    hugging_face: Any,
) -> None:
    before = await engine.canary()
    changed = reference.weights["blk.20.ffn_down.weight"] * np.float32(1.5)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    tensors = hugging_face(reference, {"blk.20.ffn_down.weight": changed})
    save_checkpoint(checkpoint / "model.safetensors", tensors)

    await engine.update_weights(FromDisk(path=checkpoint), "1")
    assert await engine.weight_version() == "1"
    after = await engine.canary()
    assert max(abs(a - b) for a, b in zip(before, after, strict=True)) > 0.05
    body = {
        "text": "The sky is blue because",
        "sampling_params": {"max_new_tokens": 4, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    answer = (await http.post("/generate", json=body)).json()
    assert answer["meta_info"]["weight_version"] == "1"
    entries = answer["meta_info"]["input_token_logprobs"]
    ids = [entry[1] for entry in entries]
    halves = {
        name: values.astype(np.float16).astype(np.float32) if values.ndim > 1 else values
        for name, values in {**reference.weights, "blk.20.ffn_down.weight": changed}.items()
    }
    original, reference.weights = reference.weights, halves
    try:
        expected = reference.log_probabilities(ids + answer["output_ids"])
    finally:
        reference.weights = original
    np.testing.assert_allclose(
        [entry[0] for entry in entries[1:]],
        [expected[i, ids[i + 1]] for i in range(len(ids) - 1)],
        atol=2e-3,
    )
    np.testing.assert_allclose(
        [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]],
        [expected[len(ids) - 1 + i, token] for i, token in enumerate(answer["output_ids"])],
        atol=0.05,
    )

    await asleep(engine)
    await engine.resume(TAGS)
    await engine.continue_generation()
    assert await engine.canary() == after, "sleep lost the updated weights"
    assert await engine.weight_version() == "1"

    await engine.update_weights(FromDisk(path=model_path), "0")
    assert await engine.canary() == before
    assert await engine.weight_version() == "0"


async def test_a_bad_checkpoint_is_refused_and_the_old_weights_serve_on(
    engine: EmbeddedEngine, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    before = await engine.canary()
    header = {"model.norm.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    text = json.dumps(header).encode()
    (tmp_path / "short.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 8)
    (tmp_path / "rubbish.safetensors").write_bytes(b"not a checkpoint")
    (tmp_path / "rubbish.gguf").write_bytes(b"GGUF" + b"\xff" * 64)
    for name, said in (
        ("short.safetensors", "lacks"),
        ("rubbish.safetensors", "not a safetensors file"),
        ("rubbish.gguf", "not a GGUF file"),
        ("absent", "one GGUF file is expected"),
    ):
        with pytest.raises(EngineError, match=said) as caught:
            await engine.update_weights(FromDisk(path=tmp_path / name), "7")
        assert "HTTP 400" in str(caught.value)
    assert await engine.weight_version() == "0"
    assert await engine.canary() == before


async def test_the_version_alone_can_be_set(engine: EmbeddedEngine, http: httpx.AsyncClient) -> None:
    response = await http.post("/update_weight_version", json={"new_version": "5"})
    assert response.json() == {"success": True, "new_version": "5"}
    assert await engine.weight_version() == "5"
    await http.post("/update_weight_version", json={"new_version": "0"})
