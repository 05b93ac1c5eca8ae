"""Parts of the SGLang engine that need no SGLang: its processes, its counts, its ways to sleep, NVML."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from rolecall.api import EngineError, FromGroup, WeightsGroup
from rolecall_plugins.engines.http_control import SglangControl
from rolecall_plugins.engines.sglang import device_memory
from rolecall_plugins.engines.sglang.device_memory import used_device_memory
from rolecall_plugins.engines.sglang.holder_client import WeightsHolder
from rolecall_plugins.engines.sglang.members import EngineMembers, group_pids, listens
from rolecall_plugins.engines.sglang.sleeping_weights import HostCopy, Reload
from rolecall_plugins.engines.sglang.start_failure import raised_in

# --- processes --------------------------------------------------------------------------

LEADER = """
import socket, subprocess, sys
listener = socket.create_server(("127.0.0.1", 0))
for title in ("sglang::scheduler_TP0", "sglang::detokenizer", "compiler"):
    subprocess.Popen([title, "-c", "import time; time.sleep(600)"], executable=sys.executable)
print(listener.getsockname()[1], flush=True)
listener.accept()
"""


@pytest.fixture
def group() -> Iterator[tuple[int, int]]:
    """A process group that looks like SGLang's; its leader's id, and the port that it listens on."""
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER], stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    assert leader.stdout is not None
    port = int(leader.stdout.readline())
    yield leader.pid, port
    os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()
    leader.stdout.close()


def test_a_member_that_ends_is_named_and_helpers_may_come_and_go(group: tuple[int, int]) -> None:
    """Pitfall 23: a dead scheduler is found by its process, whatever the server answers."""
    leader, _ = group
    members = EngineMembers()
    deadline = time.monotonic() + 10
    while len(members.pids) < 2 and time.monotonic() < deadline:
        assert members.look(leader) == []
    scheduler, detokenizer = sorted(members.pids)
    (compiler,) = group_pids(leader) - members.pids - {leader}
    os.kill(compiler, signal.SIGKILL)
    os.kill(detokenizer, signal.SIGKILL)
    while not (ended := members.look(leader)) and time.monotonic() < deadline:
        pass
    assert ended == [f"sglang::detokenizer (pid {detokenizer})"]
    assert members.pids == {scheduler}


def test_a_members_fork_that_comes_and_goes_is_no_member() -> None:
    fork = "import os, time; child = os.fork(); child and print(child, flush=True); time.sleep(600)"
    member = subprocess.Popen(
        ["sglang::scheduler_TP0", "-c", fork],
        executable=sys.executable,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert member.stdout is not None
    try:
        child = int(member.stdout.readline())
        members = EngineMembers()
        assert members.look(member.pid) == []
        assert members.pids == {member.pid}
        os.kill(child, signal.SIGKILL)
        assert members.look(member.pid) == []
    finally:
        os.killpg(member.pid, signal.SIGKILL)
        member.wait()


def test_who_listens(group: tuple[int, int]) -> None:
    leader, port = group
    assert listens(leader, port)
    assert not listens(leader, 1)
    assert not listens(os.getpgid(0), port)


def test_the_first_exception_of_a_failed_start_is_found_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    cause = "torch.cuda.OutOfMemoryError: tried to allocate 20 GiB"
    lines = ["Traceback (most recent call last):", cause, "EOFError", *["more"] * 40]
    log.write_text("\n".join([*lines, cause, "RuntimeError: Rank 0 scheduler died", "no Error: here"]))
    assert raised_in(log) == [cause, "RuntimeError: Rank 0 scheduler died"]
    assert raised_in(tmp_path / "nothing") == []


# --- control calls ----------------------------------------------------------------------


def control(answers: dict[str, tuple[int, Any]], seen: list[tuple[str, Any]] | None = None) -> SglangControl:
    def answer(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append((request.url.path, request.read()))
        status, body = answers.get(request.url.path, (404, {"detail": "Not Found"}))
        return httpx.Response(status, json=body)

    return SglangControl("http://engine", transport=httpx.MockTransport(answer))


@pytest.mark.parametrize(
    ("age_s", "running", "waiting", "counted"),
    [(0.0, 0, 0, 0), (0.1, 3, 2, 5), (60.0, 0, 0, 1), (60.0, 4, 0, 4)],
)
async def test_a_scheduler_that_reports_nothing_new_is_busy(
    age_s: float, running: int, waiting: int, counted: int
) -> None:
    """Pitfall 23: in a long prefill the scheduler writes no count, and must not read as idle."""
    load = {
        "timestamp": time.time() - age_s,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
    }
    engine = control({"/v1/loads": (200, {"loads": [load]})})
    assert await engine.running_requests() == counted


async def test_counts_in_another_form_are_an_error() -> None:
    with pytest.raises(EngineError, match="/v1/loads"):
        await control({"/v1/loads": (200, {"loads": [{"other": 1}]})}).running_requests()


UPDATE = FromGroup(group="g", names=["w"], dtypes=["float32"], shapes=[(2, 3)])


async def test_newer_releases_want_a_session_around_an_update() -> None:
    done = (200, {"success": True, "message": ""})
    path = "/update_weights_from_distributed"
    seen: list[tuple[str, Any]] = []
    newer = {"/begin_weight_update": done, path: done, "/end_weight_update": done}
    await control(newer, seen).update_weights_from_group(UPDATE, weight_version="2")
    assert [each for each, _ in seen] == ["/begin_weight_update", path, "/end_weight_update"]
    seen.clear()
    await control({path: done}, seen).update_weights_from_group(UPDATE, weight_version="2")
    assert [each for each, _ in seen] == ["/begin_weight_update", path]
    with pytest.raises(EngineError, match="no room"):
        await control({path: (400, {"success": False, "message": "no room"})}).update_weights_from_group(
            UPDATE, weight_version="2"
        )


async def test_joining_names_the_trainer() -> None:
    seen: list[tuple[str, Any]] = []
    group = WeightsGroup(name="g", master="[fd00::1]:29500", rank_offset=1, world_size=9, transport="nccl")
    engine = control({"/init_weights_update_group": (200, {"success": True, "message": ""})}, seen)
    await engine.join_weights_group(group)
    ((_, body),) = seen
    assert b'"master_address":"fd00::1"' in body
    assert b'"master_port":29500' in body


# --- sleeping ---------------------------------------------------------------------------


class ScriptedHolder:
    def __init__(self) -> None:
        self.calls: list[str] = []

    async def keep(self) -> None:
        self.calls.append("keep")

    async def restore(self) -> None:
        self.calls.append("restore")


async def sleep_and_wake(weights: HostCopy) -> None:
    await weights.before_release()
    await weights.after_resume(None)


@pytest.mark.parametrize(
    ("static", "calls"),
    [(True, ["keep", "restore", "restore"]), (False, ["keep", "restore", "restore"])],
)
async def test_unchanged_weights_are_copied_down_once(static: bool, calls: list[str]) -> None:
    holder = ScriptedHolder()
    weights = HostCopy(holder, is_static=static)  # pyright: ignore[reportArgumentType]
    await weights.started()
    assert holder.calls == (["keep"] if static else [])
    await sleep_and_wake(weights)
    await sleep_and_wake(weights)
    assert holder.calls == calls


async def test_changed_weights_are_copied_down_again() -> None:
    holder = ScriptedHolder()
    weights = HostCopy(holder, is_static=False)  # pyright: ignore[reportArgumentType]
    await sleep_and_wake(weights)
    await weights.changed(None)
    await sleep_and_wake(weights)
    assert holder.calls == ["keep", "restore", "keep", "restore"]


async def test_reloading_needs_a_checkpoint() -> None:
    """Pitfall 1: weights that nobody could bring back are not released."""
    seen: list[tuple[str, Any]] = []
    done = (200, {"success": True, "message": ""})
    weights = Reload(control({"/update_weights_from_disk": done}, seen), Path("/first"))
    await weights.before_release()
    assert weights.files() == (Path("/first"),)
    await weights.changed(Path("/second"))
    await weights.before_release()
    assert weights.files() == (Path("/second"),)
    await weights.after_resume("7")
    ((_, body),) = seen
    assert b'"model_path":"/second"' in body
    assert b'"weight_version":"7"' in body
    await weights.changed(None)
    assert weights.files() == ()
    with pytest.raises(EngineError, match="would be lost"):
        await weights.before_release()


# --- NVML -------------------------------------------------------------------------------


class NVMLError(Exception):
    pass


@pytest.fixture(autouse=True)
def _nvml_is_not_open_yet() -> None:
    device_memory._initialised.cache_clear()


class ScriptedNvml(SimpleNamespace):
    """Two devices; ``processes`` of each as (pid, bytes), and what each has in use as a whole."""

    NVMLError = NVMLError

    def __init__(self, processes: list[list[tuple[int, int | None]]]) -> None:
        super().__init__(processes=processes, opened=0)

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index >= len(self.processes):
            raise NVMLError("Not Found")
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        return {"GPU-a": 0, "GPU-b": 1}[name]

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes[device]]

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:
        return SimpleNamespace(used=1000 * (device + 1))


@pytest.mark.parametrize(
    ("processes", "devices", "used"),
    [
        ([[(1, 10), (2, 20), (9, 500)], [(1, 7)]], ["0", "1"], 37),
        ([[(1, 10)], [(1, 7)]], ["GPU-b"], 7),
        # In a container NVML may know no process, other ids, or no figures: then the devices' own count.
        ([[], []], ["0", "1"], 3000),
        ([[(4711, 10)], []], ["0"], 1000),
        ([[(1, None)], []], ["0"], 1000),
    ],
)
def test_device_memory_of_the_engines_processes(
    monkeypatch: pytest.MonkeyPatch, processes: Any, devices: list[str], used: int
) -> None:
    """Pitfall 2: what was freed is seen on the device, not in an answer."""
    nvml = ScriptedNvml(processes)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # pyright: ignore[reportArgumentType]
    for _ in range(2):
        assert used_device_memory(devices, {1, 2}) == used
    assert nvml.opened == 1, "starting NVML takes longer than measuring"


def test_a_device_that_nvml_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", ScriptedNvml([[]]))  # pyright: ignore[reportArgumentType]
    with pytest.raises(EngineError, match="device memory of 7 can't be measured: NVML says Not Found"):
        used_device_memory(["7"], {1})


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(EngineError, match=r"install rolecall\[sglang\]"):
        used_device_memory(["0"], {1})


# --- followers ----------------------------------------------------------------------------


def test_a_follower_says_what_its_ranks_reported_last(tmp_path: Path) -> None:
    holder = WeightsHolder(SglangControl("http://127.0.0.1:1"), tmp_path / "reports", ranks=4, ranks_here=2)
    assert holder.last_report().weights_bytes == 0, "the head has commanded nothing yet"
    (tmp_path / "reports").mkdir()
    for pid in (7, 8):
        answer = {"error": None, "weights_bytes": 100, "host_bytes": 0, "seconds": 0.5}
        (tmp_path / "reports" / f"{pid}.json").write_text(json.dumps(answer), encoding="utf-8")
    assert holder.last_report().weights_bytes == 200
