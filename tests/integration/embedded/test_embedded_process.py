"""The engine as a process: start that fails, death of its parent, several starting at once."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import attrs
import psutil
import pytest

from rolecall.api import EngineId, EngineLaunch, EngineStartError, ModelId, RoleName
from rolecall_plugins.engines.embedded import EmbeddedBackend, EmbeddedOptions

pytestmark = pytest.mark.model

SMALL = EmbeddedOptions(context_tokens=256, parallel_requests=1)


def launch(model_path: Path, tmp_path: Path, port: int) -> EngineLaunch:
    return EngineLaunch(
        engine_id=EngineId("model/replica-0"),
        role=RoleName("role"),
        model=ModelId("model"),
        model_path=model_path,
        served_model_name="smollm2",
        host="127.0.0.1",
        port=port,
        device_ids=("0",),
        weight_version=None,
        log_path=tmp_path / "logs" / "engine.log",
        options=SMALL,
    )


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


PARENT = dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from rolecall.api import EngineLaunch
    from rolecall_plugins.engines.embedded import EmbeddedBackend, EmbeddedOptions

    async def main(model, log, port):
        engine = EmbeddedBackend().create(EngineLaunch(
            engine_id="model/replica-0", role="role", model="model", model_path=Path(model),
            served_model_name="smollm2", host="127.0.0.1", port=int(port), device_ids=(),
            weight_version=None, log_path=Path(log),
            options=EmbeddedOptions(context_tokens=256, parallel_requests=1),
        ))
        await engine.start(120)
        print(engine.pid, flush=True)
        await asyncio.sleep(600)

    asyncio.run(main(*sys.argv[1:]))
    """
)


def gone(process: psutil.Process, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def living(group: int) -> list[psutil.Process]:
    """Processes of the group, without those that only wait to be reaped."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def test_no_engine_outlives_a_killed_parent(model_path: Path, tmp_path: Path, port: int) -> None:
    command = [sys.executable, "-c", PARENT, str(model_path), str(tmp_path / "log"), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            engine = psutil.Process(int(parent.stdout.readline()))
            assert os.getpgid(engine.pid) == engine.pid, "it leads a group of its own"
        finally:
            parent.send_signal(signal.SIGKILL)
    assert gone(engine, 10)


async def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path: Path, port: int) -> None:
    rubbish = tmp_path / "model.gguf"
    rubbish.write_bytes(b"GGUF" + b"\0" * 100)
    engine: Any = EmbeddedBackend().create(launch(rubbish, tmp_path, port))
    with pytest.raises(EngineStartError, match="not a GGUF file") as caught:
        await engine.start(60)
    assert "engine model/replica-0 ended with code 1" in str(caught.value)
    assert engine.exit_code() == 1
    await engine.stop(5)


async def test_a_start_that_takes_too_long_is_stopped(model_path: Path, tmp_path: Path, port: int) -> None:
    engine: Any = EmbeddedBackend().create(launch(model_path, tmp_path, port))
    with pytest.raises(EngineStartError, match=r"was not ready within 0\.2 s"):
        await engine.start(0.2)
    assert engine.exit_code() is not None
    assert living(engine.pid) == []


async def test_a_cancelled_start_leaves_no_process(model_path: Path, tmp_path: Path, port: int) -> None:
    engine: Any = EmbeddedBackend().create(launch(model_path, tmp_path, port))
    task = asyncio.create_task(engine.start(60))
    await asyncio.sleep(0)
    assert engine.pid is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert living(engine.pid) == []


async def test_a_taken_port_is_no_engine_of_ours(model_path: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        engine: Any = EmbeddedBackend().create(launch(model_path, tmp_path, taken.getsockname()[1]))
        with pytest.raises(EngineStartError, match="address already in use"):
            await engine.start(60)


async def test_two_engines_make_the_serving_file_once(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both start on an empty cache: one converts, the other waits for it."""
    monkeypatch.setenv("ROLECALL_CACHE", str(tmp_path / "cache"))
    ports: list[int] = []
    with socket.socket() as one, socket.socket() as two:
        for probe in (one, two):
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    engines: list[Any] = [
        EmbeddedBackend().create(
            attrs.evolve(launch(model_path, tmp_path, port), log_path=tmp_path / f"{port}.log")
        )
        for port in ports
    ]
    try:
        await asyncio.gather(*(engine.start(120) for engine in engines))
        first, second = [await engine.canary() for engine in engines]
        assert first == second
    finally:
        for engine in engines:
            await engine.stop(10)
    kept = sorted(path.suffix for path in (tmp_path / "cache" / "embedded-engine").iterdir())
    assert kept == [".gguf", ".lock"]
