"""What is done ahead of a role's turn: files in the page cache, backends loaded, workers in place; and that
it takes no device, changes no state and fails nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from rolecall.engines import read_ahead as module
from rolecall.engines.read_ahead import ReadAhead, read_ahead
from rolecall.ids import FencingToken
from rolecall.interfaces.engine_backend import FromDisk
from rolecall.interfaces.role import WeightSource
from rolecall.testing import fake_engine
from rolecall.testing.fake_engine import FakeEngine
from rolecall.testing.manager_rig import ManagerRig, within
from rolecall.testing.virtual_time import run_virtual

A, B = "m/replica-0", "m/replica-1"


# --- reading files ------------------------------------------------------------------------


def forget(*files: Path) -> None:
    """Have the kernel drop what it keeps of the files."""
    for file in files:
        with file.open("rb+") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def in_memory(file: Path, offset: int = 0) -> bool:
    with file.open("rb") as opened:
        try:
            return bool(os.preadv(opened.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT))
        except BlockingIOError:
            return False
        except OSError:
            pytest.skip("this file system can't say what is in memory")


def test_files_and_what_is_right_in_folders_get_into_memory(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "below").mkdir(parents=True)
    files = [folder / "a", folder / "b", tmp_path / "c"]
    for size, file in zip((1, 2, 33), files, strict=True):
        file.write_bytes(bytes(size * 2**20))
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(2**20))
    forget(*files, probe)
    if in_memory(probe):
        pytest.skip("files of this folder are always in memory")
    first = read_ahead([folder, tmp_path / "c", tmp_path / "c"], Event())
    assert (first.bytes, first.read_bytes, first.skipped) == (36 * 2**20, 36 * 2**20, "")
    assert all(in_memory(file, offset) for file in files for offset in range(0, file.stat().st_size, 2**16))
    again = read_ahead([folder, tmp_path / "c"], Event())
    assert (again.bytes, again.read_bytes) == (36 * 2**20, 0), "what is there costs a look"


def test_a_stop_ends_it_between_two_pieces(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(9 * 2**20))
    forget(file)
    stop = Event()
    stop.set()
    assert read_ahead([file], stop).read_bytes == 0


def test_files_that_would_push_each_other_out_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(b"x" * 100)
    monkeypatch.setattr(module, "_SHARE_OF_MEMORY", 0.0)
    left_alone = read_ahead([tmp_path], Event())
    assert left_alone.read_bytes == 0
    assert "of the node's memory is free" in left_alone.skipped


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_ahead([tmp_path / "nothing"], Event())


# --- replicas -----------------------------------------------------------------------------


class Asked:
    """Stands in for the reading; remembers what was to be read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[list[str]] = []
        monkeypatch.setattr(module, "read_ahead", self)

    def __call__(self, paths: Sequence[Path], stop: Event) -> ReadAhead:
        del stop
        self.paths.append([str(path) for path in paths])
        return ReadAhead(bytes=7, read_bytes=3)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def reloads(monkeypatch: pytest.MonkeyPatch, *, error: Exception | None = None, takes_s: float = 0.0) -> None:
    """Have fake engines say which files a resume reads."""

    class ReloadingEngine(FakeEngine):
        async def files_for_resume(self) -> Sequence[Path]:
            self.calls.append("files_for_resume")
            await asyncio.sleep(takes_s)
            if error is not None and self.launch.engine_id == A:
                raise error
            return (Path("/weights"),)

    monkeypatch.setattr(fake_engine, "FakeEngine", ReloadingEngine)


def prepared(rig: ManagerRig) -> list[dict[str, Any]]:
    return [event for event in rig.events if event["kind"] == "replica.prepared"]


async def asleep(log_dir: Path, **options: Any) -> ManagerRig:
    rig = ManagerRig(log_dir, **options)
    await rig.manager.start()
    await rig.offload()
    return rig


def test_a_sleeping_engine_that_reloads_files_has_them_read_ahead(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    reloads(monkeypatch)

    async def scenario() -> None:
        rig = await asleep(tmp_path)
        before = [len(rig.worker(engine).engine.calls) for engine in (A, B)]
        paths = [rig.path(engine) for engine in (A, B)]
        await rig.manager.prepare(within(30.0))
        assert asked.paths == [["/weights"]] * 2
        for engine, calls, path in zip((A, B), before, paths, strict=True):
            assert rig.worker(engine).engine.calls[calls:] == ["files_for_resume"], "nothing but a question"
            assert rig.path(engine) == path, "no state has changed"
        assert [(e["engine"], e["bytes"], e["read_bytes"], e["problem"]) for e in prepared(rig)] == [
            (A, 7, 3, None),
            (B, 7, 3, None),
        ]
        assert all(outcome.confirmed for outcome in await rig.onload(2))

    run_virtual(scenario())


def test_an_engine_that_says_nothing_of_files_goes_on_working(tmp_path: Path, asked: Asked) -> None:
    async def scenario() -> None:
        rig = await asleep(tmp_path)
        await rig.manager.prepare(within(30.0))
        assert asked.paths == []
        assert [event["problem"] for event in prepared(rig)] == [None, None]
        assert all(outcome.confirmed for outcome in await rig.onload(2))

    run_virtual(scenario())


def test_an_awake_replica_is_left_alone(tmp_path: Path, asked: Asked) -> None:
    async def scenario() -> None:
        rig = ManagerRig(tmp_path)
        await rig.manager.start()
        await rig.manager.prepare(within(30.0))
        assert asked.paths == []
        assert prepared(rig) == []

    run_virtual(scenario())


def test_weights_that_follow_the_wake_are_read_ahead(tmp_path: Path, asked: Asked) -> None:
    async def scenario() -> None:
        rig = await asleep(tmp_path, source=WeightSource.ACTOR)
        await rig.manager.update_weights(FromDisk(path=tmp_path), "1", within(30.0))
        await rig.manager.prepare(within(30.0))
        assert asked.paths == [[str(tmp_path)]] * 2

    run_virtual(scenario())


@pytest.mark.parametrize("what", ["error", "silent", "dead"])
def test_no_failure_of_it_is_one_of_the_role(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    reloads(monkeypatch, error=RuntimeError("no such page") if what == "error" else None)

    async def scenario() -> None:
        rig = await asleep(tmp_path)
        worker = rig.worker(A)
        if what == "silent":
            worker.silent = True
        if what == "dead":
            worker.dead.set()
        await rig.manager.prepare(within(30.0))
        assert rig.states() == ["SLEEPING", "SLEEPING"]
        assert [status["fence"] for status in rig.manager.status()] == [None, None]
        problems = {event["engine"]: event["problem"] for event in prepared(rig)}
        assert (bool(problems[A]), problems[B]) == (True, None)
        if what != "dead":
            worker.silent = False
            assert all(outcome.confirmed for outcome in await rig.onload(2))

    run_virtual(scenario())


def test_a_replica_to_be_rebuilt_gets_its_worker_and_its_model_ahead(tmp_path: Path, asked: Asked) -> None:
    async def scenario() -> None:
        rig = await asleep(tmp_path, replicas=1)
        dead = rig.worker(A)
        dead.dead.set()
        await rig.manager.reconcile_once()
        assert rig.states() == ["FAILED"]
        await rig.manager.prepare(within(30.0))
        assert rig.worker(A) is not dead
        assert asked.paths == [["/model"]]
        assert rig.worker(A).backend.engines == [], "no engine was started"
        assert rig.states() == ["FAILED"]
        assert all(outcome.confirmed for outcome in await rig.onload(2))
        assert rig.states() == ["READY"]

    run_virtual(scenario())


def test_a_fenced_replica_gets_nothing(tmp_path: Path, asked: Asked) -> None:
    async def scenario() -> None:
        rig = await asleep(tmp_path, replicas=1)
        rig.reaper.left = (4711,)
        fenced = rig.worker(A)
        fenced.dead.set()
        await rig.manager.reconcile_once()
        assert rig.manager.status()[0]["fence"] is not None
        await rig.manager.prepare(within(30.0))
        assert rig.worker(A) is fenced
        assert asked.paths == []

    run_virtual(scenario())


def test_a_command_does_not_wait_for_it(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    reloads(monkeypatch, takes_s=1000)

    async def scenario() -> None:
        rig = await asleep(tmp_path)
        ahead = asyncio.create_task(rig.manager.prepare(within(2000.0)))
        await asyncio.sleep(1)
        began_s = asyncio.get_running_loop().time()
        assert all(o.confirmed for o in await rig.manager.onload(FencingToken(2), within(60.0)))
        assert asyncio.get_running_loop().time() - began_s < 10
        await ahead

    run_virtual(scenario())
