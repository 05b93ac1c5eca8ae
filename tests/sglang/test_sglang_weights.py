"""New weights for the real server: from disk, by value, and from a group; and the version in its answers."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from rolecall.api import (
    CapabilityError,
    EngineError,
    FromDisk,
    FromGroup,
    FromTensors,
    MemoryTag,
    WeightsGroup,
)
from rolecall.testing.shared_engines import FIRST_VERSION, SharedEngines
from rolecall_plugins.engines.sglang import SglangBackend
from rolecall_plugins.engines.sglang.engine import SglangEngine

pytestmark = [pytest.mark.sglang, pytest.mark.asyncio(loop_scope="session")]

ON_GPU = os.environ.get("ROLECALL_SGLANG_DEVICE") == "cuda"
TOLERANCE = 0.1 if ON_GPU else 1e-3
"""Engines on a GPU compute in bfloat16, transformers in float32. Two checkpoints differ by far more."""

CANARY_IDS = [11, 83, 29, 101, 47, 5, 97, 61, 19, 73]


@pytest_asyncio.fixture(loop_scope="session")
async def paused(engine: SglangEngine, checkpoints: tuple[Path, Path]) -> AsyncIterator[SglangEngine]:
    """The engine as the core updates it; afterwards it has its first weights again."""
    await engine.pause()
    yield engine
    await engine.update_weights(FromDisk(path=checkpoints[0]), FIRST_VERSION)
    await engine.continue_generation()


async def has_weights_of(engine: SglangEngine, trainer: Any, checkpoint: Path) -> None:
    expected = trainer.ask("score", path=str(checkpoint), ids=CANARY_IDS, top=1)["tokens"]
    assert list(await engine.canary()) == pytest.approx(expected, abs=TOLERANCE)


async def test_from_disk(
    paused: SglangEngine, client: httpx.AsyncClient, trainer: Any, checkpoints: tuple[Path, Path]
) -> None:
    """Pitfall 16: the version is in the next answer, so that nobody takes old weights for new ones."""
    await paused.update_weights(FromDisk(path=checkpoints[1]), "42")
    await paused.continue_generation()
    await has_weights_of(paused, trainer, checkpoints[1])
    assert await paused.weight_version() == "42"
    payload = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 1}}
    answer = (await client.post("/generate", json=payload)).json()
    assert answer["meta_info"]["weight_version"] == "42"


async def test_from_tensors(paused: SglangEngine, trainer: Any, checkpoints: tuple[Path, Path]) -> None:
    serialized = trainer.ask("serialize", path=str(checkpoints[1]))["serialized"]
    await paused.update_weights(FromTensors(serialized=[serialized]), "43")
    await paused.continue_generation()
    await has_weights_of(paused, trainer, checkpoints[1])
    assert await paused.weight_version() == "43"


async def test_from_a_group(paused: SglangEngine, trainer: Any, checkpoints: tuple[Path, Path]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = WeightsGroup(
        name="trainer", master=f"127.0.0.1:{port}", rank_offset=1, world_size=2, transport="gloo"
    )
    trainer.send("join", group="trainer", port=port, world_size=2)
    await paused.join_weights_group(group)
    await asyncio.to_thread(trainer.answer)
    tensors = trainer.ask("names", path=str(checkpoints[1]))
    trainer.send("broadcast", group="trainer", path=str(checkpoints[1]))
    await paused.update_weights(FromGroup(group="trainer", **tensors), "44")
    await asyncio.to_thread(trainer.answer)
    await paused.leave_weights_group("trainer")
    await paused.leave_weights_group("trainer")
    await paused.continue_generation()
    await has_weights_of(paused, trainer, checkpoints[1])
    assert await paused.weight_version() == "44"


@pytest.mark.skipif(ON_GPU, reason="on a GPU the weights have a host copy, and sleep")
async def test_weights_from_memory_cannot_sleep_where_they_would_be_lost(
    paused: SglangEngine, trainer: Any, checkpoints: tuple[Path, Path]
) -> None:
    """Pitfall 1: a sleep that could not bring the weights back is refused before it frees anything."""
    serialized = trainer.ask("serialize", path=str(checkpoints[1]))["serialized"]
    await paused.update_weights(FromTensors(serialized=[serialized]), "43")
    with pytest.raises(EngineError, match="would be lost"):
        await paused.release(frozenset({MemoryTag.WEIGHTS}))
    assert MemoryTag.WEIGHTS in (await paused.memory()).resident_tags
    await paused.continue_generation()
    await has_weights_of(paused, trainer, checkpoints[1])


async def test_a_checkpoint_that_does_not_fit_is_refused(
    paused: SglangEngine, tmp_path: Path, trainer: Any, checkpoints: tuple[Path, Path]
) -> None:
    with pytest.raises(EngineError, match="update_weights_from_disk"):
        await paused.update_weights(FromDisk(path=tmp_path), "45")
    assert await paused.weight_version() == FIRST_VERSION


async def test_static_weights_never_change(shared_engines: SharedEngines) -> None:
    engine = SglangBackend().create(shared_engines.launch(static=True))
    for update in (FromDisk(path=Path("/x")), FromTensors(serialized=["x"])):
        with pytest.raises(CapabilityError, match="static"):
            await engine.update_weights(update, "1")
    await engine.stop(1)
