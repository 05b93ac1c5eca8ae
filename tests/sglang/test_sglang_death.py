"""Killing parts of a real engine: what is dead is seen, and nothing of it stays."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from attrs import evolve

from rolecall.api import EngineLaunch
from rolecall.testing.shared_engines import SharedEngines
from rolecall_plugins.engines.sglang import SglangBackend
from rolecall_plugins.engines.sglang.engine import SglangEngine

pytestmark = [pytest.mark.sglang, pytest.mark.asyncio(loop_scope="session")]

GONE_S = 60.0

WORKER = """
import asyncio, pickle, sys
from rolecall_plugins.engines.sglang import SglangBackend

async def work():
    engine = SglangBackend().create(pickle.load(sys.stdin.buffer))
    await engine.start(280)
    print(engine.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(work())
"""


def group_of(pid: int) -> dict[int, str]:
    """Living processes of the group: pid → title or command."""
    found: dict[int, str] = {}
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = " ".join(process.cmdline())
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def member(pid: int, title: str) -> int:
    return next(each for each, command in group_of(pid).items() if command.startswith(title))


async def gone(pid: int) -> None:
    async with asyncio.timeout(GONE_S):
        while group_of(pid):  # noqa: ASYNC110 - the kernel sends no event here
            await asyncio.sleep(0.1)


@pytest_asyncio.fixture(loop_scope="session")
async def own_engine(launch: EngineLaunch) -> AsyncIterator[SglangEngine]:
    engine = SglangBackend().create(launch)
    assert isinstance(engine, SglangEngine)
    await engine.start(280)
    yield engine
    await engine.stop(30)


@pytest.fixture
def launch(shared_engines: SharedEngines, tmp_path: Path, free_ports: tuple[int, int]) -> EngineLaunch:
    port, collectives_port = free_ports
    return evolve(
        shared_engines.launch(static=True),
        port=port,
        collectives_port=collectives_port,
        log_path=tmp_path / "engine.log",
    )


async def test_a_dead_scheduler_behind_a_live_server_is_found(own_engine: SglangEngine) -> None:
    """Pitfall 23: at the first look, also while the server goes on answering."""
    assert own_engine.pid is not None
    os.kill(member(own_engine.pid, "sglang::scheduler"), signal.SIGKILL)
    async with asyncio.timeout(5):
        while (await own_engine.health(generate=False, timeout_s=5)).alive:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    health = await own_engine.health(generate=False, timeout_s=5)
    assert own_engine.exit_code() is None, "SGLang's own server still runs"
    assert "sglang::scheduler" in health.detail
    assert not (await own_engine.health(generate=True, timeout_s=5)).alive
    await own_engine.stop(30)
    assert not group_of(own_engine.pid)


async def test_a_killed_worker_leaves_no_engine(launch: EngineLaunch) -> None:
    """Pitfall 24: SIGKILL the process that owns the engine; server, scheduler and detokenizer end."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(pickle.dumps(launch))
        worker.stdin.write_eof()
        engine_pid = int(await worker.stdout.readline())
        before = " ".join(group_of(engine_pid).values())
        assert "sglang::scheduler" in before
        assert "sglang::detokenizer" in before
    finally:
        worker.kill()
        await worker.wait()
    await gone(engine_pid)
