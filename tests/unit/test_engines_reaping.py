"""The reaper on real processes: what carries a mark is found and ended, everything else is left alone."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

import psutil
import pytest
from attrs import evolve

from rolecall.engines.deadline import Deadline, LoopClock
from rolecall.engines.device_memory import device_memory_of
from rolecall.engines.reaping import (
    MARK_VARIABLE,
    EngineMark,
    ReapReport,
    RunMark,
    marked_processes,
    reap,
)
from rolecall.ids import EngineId, RoleName
from rolecall.processes.marks import RUN_DIR_VARIABLE

MARK = EngineMark(
    namespace="rolecall-test", role=RoleName("judge"), engine=EngineId("m/replica-0"), incarnation=3
)
FORKS = "import os, signal; os.fork(); os.setsid() if os.getpid() != os.getpgid(0) else None; signal.pause()"


@pytest.fixture
def engines() -> Iterator[Any]:
    started: list[subprocess.Popen[bytes]] = []

    def start(
        mark: EngineMark, program: str = "import signal; signal.pause()", *, run: str = ""
    ) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            env={**mark.variables(), RUN_DIR_VARIABLE: run},
            start_new_session=True,
        )
        started.append(child)
        return child

    yield start
    for child in started:
        for process in marked_processes(MARK):
            process.kill()
        child.kill()
        child.wait()


def within(seconds: float) -> Deadline:
    return Deadline.after(LoopClock(), seconds)


def nobody(pids: Collection[int]) -> Mapping[int, int] | None:
    return None


def test_the_mark_names_one_start_of_one_engine() -> None:
    assert MARK.variables()[MARK_VARIABLE] == "rolecall-test/judge/m/replica-0/3"
    assert MARK.variables()["SPT_NOENV"]


async def test_survivors_are_ended_whatever_group_they_are_in(engines: Any) -> None:
    """Pitfall 24"""
    engines(MARK, FORKS)
    async with asyncio.timeout(10):
        while len(marked_processes(MARK)) < 2:  # noqa: ASYNC110 - another process brings it about
            await asyncio.sleep(0.01)
    pids = {process.pid for process in marked_processes(MARK)}
    report = await reap(MARK, within(20), grace_s=0.0, device_memory=nobody)
    assert set(report.killed) == pids
    assert report.vacant
    assert marked_processes(MARK) == []
    assert "killed process" in str(report)
    assert "device memory was not looked at" in str(report)


async def test_other_starts_other_engines_and_strangers_are_left_alone(engines: Any) -> None:
    others = [
        engines(evolve(MARK, incarnation=4)),
        engines(evolve(MARK, incarnation=33)),
        engines(evolve(MARK, engine=EngineId("m/replica-00"))),
        engines(evolve(MARK, namespace="rolecall-other")),
    ]
    report = await reap(MARK, within(5), grace_s=0.0, device_memory=nobody)
    assert report == ReapReport(killed=(), left=(), left_bytes=0, devices_seen=False)
    assert all(child.poll() is None for child in others)
    for child in others:
        child.kill()


async def test_a_former_run_is_told_by_its_folder_from_other_runs_of_the_job(engines: Any) -> None:
    old, new = engines(MARK, run="/tmp/rc-old"), engines(MARK, run="/tmp/rc-new")
    report = await reap(RunMark(run="/tmp/rc-old"), within(20), grace_s=0.0, device_memory=nobody)
    assert report.killed == (old.pid,)
    assert report.vacant
    assert new.poll() is None


async def test_a_process_that_dies_of_its_parent_in_time_is_not_killed(engines: Any) -> None:
    child = engines(MARK)
    looking = asyncio.ensure_future(reap(MARK, within(20), grace_s=10.0, device_memory=nobody))
    await asyncio.sleep(0.2)
    child.send_signal(signal.SIGTERM)
    child.wait()
    started = time.monotonic()
    report = await looking
    assert report.killed == ()
    assert report.vacant
    assert time.monotonic() - started < 5.0


async def test_device_memory_that_stays_booked_is_no_evidence(engines: Any) -> None:
    """Pitfall 24"""
    child = engines(MARK)
    asked: list[set[int]] = []

    def booked(pids: Collection[int]) -> Mapping[int, int]:
        asked.append(set(pids))
        return {child.pid: 3 * 2**30}

    report = await reap(MARK, within(1.0), grace_s=0.0, device_memory=booked)
    assert not psutil.pid_exists(child.pid) or psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert (report.left, report.left_bytes, report.vacant) == ((), 3 * 2**30, False)
    assert "3,072 MiB of device memory" in str(report)
    assert asked[-1] == {child.pid}


async def test_device_memory_that_leaves_a_moment_later_is_waited_for(engines: Any) -> None:
    child = engines(MARK)
    looks = iter([{child.pid: 100}, {child.pid: 100}, {}])
    report = await reap(MARK, within(10.0), grace_s=0.0, device_memory=lambda pids: next(looks))
    assert report.vacant
    assert report.devices_seen


# --- NVML ---------------------------------------------------------------------------------------


class Nvml(ModuleType):
    """A stand-in for pynvml: two devices, each with processes (pid, bytes)."""

    class NVMLError(Exception):
        pass

    class Process:
        def __init__(self, pid: int, used: int | None) -> None:
            self.pid, self.usedGpuMemory = pid, used

    def __init__(self, *devices: list[tuple[int, int | None]], broken: str = "") -> None:
        super().__init__("pynvml")
        self.devices, self.broken, self.shut = devices, broken, 0

    def nvmlInit(self) -> None:
        if self.broken == "init":
            raise self.NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None:
        self.shut += 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[Process]:
        if self.broken == "processes":
            raise self.NVMLError("Not Supported")
        return [self.Process(*entry) for entry in self.devices[device]]


def test_memory_of_processes_is_added_up_over_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml([(7, 100), (8, 50)], [(7, 20), (9, None)])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert device_memory_of({7, 9, 10}) == {7: 120, 9: 1}
    assert nvml.shut == 1


@pytest.mark.parametrize("broken", ["init", "processes"])
def test_a_driver_that_tells_nothing_is_not_taken_for_free_memory(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml([(7, 100)], broken=broken))
    assert device_memory_of({7}) is None


def test_without_the_library_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert device_memory_of({7}) is None
