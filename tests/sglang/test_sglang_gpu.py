"""What only a GPU can show: memory that really leaves the device, also when an engine dies asleep.

Run with ``ROLECALL_SGLANG_DEVICE=cuda``; docs/gpu-runs.md has such a run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from attrs import evolve

from rolecall.api import FromDisk, FromGroup, MemoryTag, WeightsGroup, WeightSource
from rolecall.engines.deadline import Deadline, LoopClock
from rolecall.engines.handover import HandoverLimits, SleepProof, put_to_sleep, wake
from rolecall.errors import CanaryMismatchError
from rolecall.testing.free_port import free_port
from rolecall.testing.shared_engines import SharedEngines
from rolecall_plugins.engines.sglang import SglangBackend
from rolecall_plugins.engines.sglang.members import group_pids
from rolecall_plugins.engines.sglang.options import WeightsAsleep

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(
        os.environ.get("ROLECALL_SGLANG_DEVICE") != "cuda",
        reason="needs a GPU with SGLang; set ROLECALL_SGLANG_DEVICE=cuda there",
    ),
    pytest.mark.asyncio(loop_scope="session"),
]

TAGS = frozenset(MemoryTag)
MIB = 2**20


def used_bytes() -> int:
    import pynvml

    pynvml.nvmlInit()
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used
    finally:
        pynvml.nvmlShutdown()


def gpus() -> int:
    import pynvml

    pynvml.nvmlInit()
    try:
        return pynvml.nvmlDeviceGetCount()
    finally:
        pynvml.nvmlShutdown()


def need_two_gpus() -> None:
    if (found := gpus()) < 2:
        pytest.skip(f"needs two GPUs, this machine has {found}")


def within(seconds: float) -> Deadline:
    return Deadline.after(LoopClock(), seconds)


async def asleep(engine: Any, source: WeightSource) -> SleepProof:
    return await put_to_sleep(
        engine, TAGS, within(60), weight_source=source, grace_s=1, limits=HandoverLimits()
    )


async def awake(engine: Any, proof: SleepProof, source: WeightSource) -> None:
    await wake(
        engine, TAGS, within(60), weight_source=source, expected=proof.identity, limits=HandoverLimits()
    )


async def test_a_sleep_is_proved_by_the_devices_memory(shared_engines: SharedEngines) -> None:
    """Pitfall 2: released means that the device has the memory again."""
    engine = await shared_engines.get(static=True)
    before = used_bytes()
    proof = await asleep(engine, WeightSource.STATIC)
    freed = before - used_bytes()
    assert proof.asleep_bytes < proof.awake_bytes / 2
    assert freed == pytest.approx(proof.awake_bytes - proof.asleep_bytes, rel=0.1)
    await awake(engine, proof, WeightSource.STATIC)
    assert used_bytes() == pytest.approx(before, abs=512 * MIB)


async def test_weights_that_are_not_brought_back_are_noticed(
    shared_engines: SharedEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pitfall 1: an engine that woke without its weights never opens."""
    engine: Any = await shared_engines.take(static=True)

    async def nothing(version: str | None) -> None: ...

    try:
        proof = await asleep(engine, WeightSource.STATIC)
        monkeypatch.setattr(engine._weights, "after_resume", nothing)
        with pytest.raises(CanaryMismatchError):
            await awake(engine, proof, WeightSource.STATIC)
    finally:
        await engine.stop(30)


async def test_killed_asleep_it_leaves_no_memory_behind(shared_engines: SharedEngines) -> None:
    """Pitfall 24: every process of the group and every byte of it is gone."""
    engine = await shared_engines.take(static=True)
    proof = await asleep(engine, WeightSource.STATIC)
    held = used_bytes()
    assert engine.pid is not None
    killed = time.monotonic()
    os.kill(engine.pid, signal.SIGKILL)
    await engine.stop(30)
    # Whoever reaps orphans here may take its time; a process that only waits for that holds nothing.
    living = [pid for pid in group_pids(engine.pid) if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    assert not living
    while used_bytes() > held - proof.asleep_bytes / 2:
        assert time.monotonic() - killed < 30, f"{used_bytes() / MIB:.0f} MiB are still used"
        await asyncio.sleep(0.1)
    print(f"memory back {time.monotonic() - killed:.2f} s after the kill")


@pytest.mark.parametrize("way", list(WeightsAsleep))
async def test_new_weights_survive_a_sleep(
    shared_engines: SharedEngines, checkpoints: tuple[Path, Path], tmp_path: Path, way: WeightsAsleep
) -> None:
    """Versioned weights come back as they were last updated, not as they were loaded."""
    given = shared_engines.launch(static=False)
    launch = evolve(
        given, options=evolve(given.options, weights_while_asleep=way), log_path=tmp_path / "engine.log"
    )
    engine = SglangBackend().create(launch)
    await engine.start(300)
    try:
        first = await engine.canary()
        await engine.update_weights(FromDisk(path=checkpoints[1]), "42")
        second = await engine.canary()
        assert max(abs(a - b) for a, b in zip(first, second, strict=True)) > 0.01
        proof = await asleep(engine, WeightSource.ACTOR)
        await awake(engine, proof, WeightSource.ACTOR)
        assert await engine.weight_version() == "42"
        assert await engine.canary() == pytest.approx(second, abs=1e-3)
    finally:
        await engine.stop(30)


async def test_new_weights_over_nccl(
    shared_engines: SharedEngines, trainer: Any, checkpoints: tuple[Path, Path]
) -> None:
    """A trainer on the second GPU broadcasts; the engine then has what it has from disk."""
    need_two_gpus()
    engine = await shared_engines.take(static=False)
    try:
        await engine.pause()
        await engine.update_weights(FromDisk(path=checkpoints[1]), "42")
        await engine.continue_generation()
        wanted = await engine.canary()
        await engine.pause()
        await engine.update_weights(FromDisk(path=checkpoints[0]), "43")
        port = free_port()
        group = WeightsGroup(
            name="nccl", master=f"127.0.0.1:{port}", rank_offset=1, world_size=2, transport="nccl"
        )
        async with asyncio.timeout(60):
            trainer.send("join", group="nccl", port=port, world_size=2, transport="nccl", device="cuda:1")
            await engine.join_weights_group(group)
            await asyncio.to_thread(trainer.answer)
            tensors = trainer.ask("names", path=str(checkpoints[1]))
            trainer.send("broadcast", group="nccl", path=str(checkpoints[1]))
            await engine.update_weights(FromGroup(group="nccl", **tensors), "44")
            await asyncio.to_thread(trainer.answer)
        await engine.leave_weights_group("nccl")
        await engine.continue_generation()
        assert await engine.weight_version() == "44"
        assert await engine.canary() == pytest.approx(wanted, abs=1e-3)
    finally:
        await engine.stop(30)


async def test_two_tensor_parallel_ranks_sleep_and_wake(
    shared_engines: SharedEngines, tmp_path: Path
) -> None:
    """Each rank has a host copy of its own part, and the proof counts both devices."""
    need_two_gpus()
    given = shared_engines.launch(static=True)
    server_args = {**given.options.server_args, "disable_custom_all_reduce": True}
    launch = evolve(
        given,
        tensor_parallel=2,
        device_ids=("0", "1"),
        options=evolve(given.options, server_args=server_args),
        log_path=tmp_path / "engine.log",
    )
    engine = SglangBackend().create(launch)
    await engine.start(300)
    try:
        for _ in range(2):
            proof = await asleep(engine, WeightSource.STATIC)
            assert proof.asleep_bytes < proof.awake_bytes / 2
            await awake(engine, proof, WeightSource.STATIC)
    finally:
        await engine.stop(30)
