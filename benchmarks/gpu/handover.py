"""Time putting a large SGLang engine to sleep and waking it, step by step, on one GPU.

usage: python benchmarks/gpu/handover.py MODEL_DIR [--only host_copy] [--cycles 3] [--environment K=V ...]

Two engines, one after the other: weights in SGLang's own CPU backup (``memory_saver``) and in rolecall's
pinned copy (``host_copy``). On the first one the bare SGLang calls are timed too: pause, flush, release,
resume, continue, with no proof of anything. Prints one row a cycle, then medians; all times in seconds.
The folder holds a real checkpoint, e.g. of ``make_checkpoint.py``: SGLang's dummy weights give a uniform
distribution, which the canary takes for lost weights.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import evolve

from rolecall.api import EngineId, EngineLaunch, MemoryTag, ModelId, RoleName, WeightSource
from rolecall.engines.deadline import Deadline, LoopClock
from rolecall.engines.handover import HandoverLimits, put_to_sleep, wake
from rolecall.engines.ports import PortRange, reserve_port
from rolecall_plugins.engines.http_control import SglangControl
from rolecall_plugins.engines.sglang import SglangBackend, SglangOptions
from rolecall_plugins.engines.sglang.options import WeightsAsleep

STEPS = ("canary", "pause", "abort_all", "flush", "release", "memory", "resume", "continue_generation")
GIB = 2**30


class Timed:
    """An engine whose calls are timed; what is not timed passes through."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.seconds: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if name not in STEPS:
            return found

        async def timed(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return await found(*given, **named)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

        return timed


def launch_of(given: argparse.Namespace, folder: Path, asleep: WeightsAsleep) -> EngineLaunch:
    ports = [reserve_port("127.0.0.1", each) for each in (PortRange.SERVER, PortRange.COLLECTIVES)]
    for port in ports:
        port.hand_over()
    return EngineLaunch(
        engine_id=EngineId("large/replica-0"),
        role=RoleName("role"),
        model=ModelId("large"),
        model_path=given.model,
        served_model_name="large",
        host="127.0.0.1",
        port=ports[0].port,
        collectives_port=ports[1].port,
        device_ids=("0",),
        weight_version=None,
        log_path=folder / f"{asleep}.log",
        options=SglangOptions(
            python=given.python,
            weights_while_asleep=asleep,
            environment=dict(pair.split("=", 1) for pair in given.environment),
            server_args={
                "attention_backend": "triton",
                "sampling_backend": "pytorch",
                "mem_fraction_static": given.fraction,
                "cuda_graph_max_bs_decode": 16,
                "disable_prefill_cuda_graph": True,
                **json.loads(given.server_args),
            },
        ),
    )


async def bare(control: SglangControl) -> dict[str, float]:
    """The calls as a user would make them, one after the other."""
    seconds: dict[str, float] = {}

    async def timed(name: str, call: Any) -> None:
        began = time.perf_counter()
        await call
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began

    await timed("pause", control.pause())
    await timed("flush", control.flush())
    await timed("release", control.release(frozenset(MemoryTag)))
    for tag in (MemoryTag.WEIGHTS, MemoryTag.KV_CACHE, MemoryTag.CUDA_GRAPH):
        await timed(f"resume {tag}", control.resume(frozenset({tag})))
    await timed("continue", control.continue_generation())
    return seconds


async def proved(engine: Any, tags: frozenset[MemoryTag]) -> dict[str, float]:
    """The same with drain, proof and canary, as the core does it."""
    limits = HandoverLimits()
    seconds: dict[str, float] = {}
    timed, began = Timed(engine), time.perf_counter()
    proof = await put_to_sleep(
        timed,
        tags,
        Deadline.after(LoopClock(), 120),
        weight_source=WeightSource.STATIC,
        grace_s=1.0,
        limits=limits,
    )
    seconds["asleep"] = time.perf_counter() - began
    seconds |= {f"↓{name}": spent for name, spent in timed.seconds.items()}
    seconds["GiB freed"] = (proof.awake_bytes - proof.asleep_bytes) / GIB
    seconds["GiB left"] = proof.asleep_bytes / GIB
    timed, began = Timed(engine), time.perf_counter()
    await wake(
        timed,
        tags,
        Deadline.after(LoopClock(), 120),
        weight_source=WeightSource.STATIC,
        expected=proof.identity,
        limits=limits,
    )
    seconds["awake"] = time.perf_counter() - began
    seconds |= {f"↑{name}": spent for name, spent in timed.seconds.items()}
    return seconds


def show(title: str, rows: Iterable[dict[str, float]]) -> None:
    rows = list(rows)
    print(f"\n{title}")
    for name in rows[0]:
        values = [row[name] for row in rows if name in row]
        each = "  ".join(f"{value:8.3f}" for value in values)
        print(f"  {name:22s} {each}   median {statistics.median(values):8.3f}")


async def measure(given: argparse.Namespace, folder: Path) -> None:
    backend = SglangBackend()
    for asleep in given.only or (WeightsAsleep.MEMORY_SAVER, WeightsAsleep.HOST_COPY):
        launch = launch_of(given, folder, asleep)
        tags = backend.features(evolve(launch.options), static=False).memory_tags
        engine = backend.create(launch)
        began = time.perf_counter()
        await engine.start(900)
        print(f"\n{asleep}: ready after {time.perf_counter() - began:.1f} s", flush=True)
        try:
            if asleep is WeightsAsleep.MEMORY_SAVER:
                control = SglangControl(engine.base_url)
                show(
                    "bare SGLang calls, memory saver with CPU backup",
                    [await bare(control) for _ in range(given.cycles)],
                )
                await control.close()
            show(f"rolecall, {asleep}", [await proved(engine, tags) for _ in range(given.cycles)])
        finally:
            await engine.stop(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="folder with config.json and a tokenizer")
    parser.add_argument("--only", type=WeightsAsleep, nargs="*", help="where the weights are meanwhile")
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--python", help="interpreter that has SGLang")
    parser.add_argument("--fraction", type=float, default=0.3, help="SGLang's mem_fraction_static")
    parser.add_argument("--server-args", default="{}", help="further flags of SGLang, JSON")
    parser.add_argument("--environment", nargs="*", default=[], metavar="K=V")
    parser.add_argument("--logs", type=Path, default=Path("handover-logs"))
    given = parser.parse_args()
    given.logs.mkdir(parents=True, exist_ok=True)
    asyncio.run(measure(given, given.logs))


if __name__ == "__main__":
    main()
