"""A child process: its group, its exit, its words, and the end of all of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rolecall.api import ChildProcess, EngineError
from rolecall.processes import bound_exec

pytestmark = pytest.mark.timeout(60)

STUBBORN = (
    "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "os.fork(); print('up', flush=True); time.sleep(600)"
)


def process(tmp_path: Path, code: str, **environment: str) -> ChildProcess:
    return ChildProcess(
        [sys.executable, "-I", "-c", code], environment=environment, log_path=tmp_path / "x" / "log"
    )


async def until(fits: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not fits():  # noqa: ASYNC110 - other processes tell no event
            await asyncio.sleep(0.01)


async def test_a_process_that_ends_is_seen_and_its_words_are_kept(tmp_path: Path) -> None:
    child = process(tmp_path, "import os, sys; print(os.environ['WORD']); sys.exit(3)", WORD="hello")
    assert child.pid is None
    assert child.exit_code() is None
    child.start()
    await until(lambda: child.exit_code() is not None)
    assert child.exit_code() == 3
    assert child.log_tail() == "hello"
    with pytest.raises(EngineError, match="was started before"):
        child.start()
    await child.stop(1)


async def test_a_group_that_ignores_sigterm_is_killed_whole(tmp_path: Path) -> None:
    child = process(tmp_path, STUBBORN)
    child.start()
    await until(lambda: child.log_tail() == "up\nup")
    assert child.pid is not None
    assert os.getsid(child.pid) == child.pid
    await child.stop(1)
    assert child.exit_code() == -signal.SIGKILL
    assert not child.group_alive()
    await child.stop(1)


async def test_a_member_that_outlives_its_leader_is_not_forgotten(tmp_path: Path) -> None:
    child = process(tmp_path, STUBBORN)
    child.start()
    await until(lambda: child.log_tail() == "up\nup")
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    await until(lambda: child.exit_code() is not None)
    assert child.group_alive()
    await child.stop(2)
    assert not child.group_alive()


async def test_what_cannot_be_stopped_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = process(tmp_path, "import time; time.sleep(600)")
    child.start()
    with monkeypatch.context() as patch:
        patch.setattr(child, "_signal", lambda number: None)
        with pytest.raises(EngineError, match=f"process group {child.pid} is still there"):
            await child.stop(0.1)
    await child.stop(5)
    assert not child.group_alive()


def test_a_program_that_does_not_exist_ends_with_its_reason(tmp_path: Path) -> None:
    child = ChildProcess(["/no/such/program"], environment={}, log_path=tmp_path / "log")
    child.start()
    asyncio.run(until(lambda: child.exit_code() is not None))
    assert "No such file" in child.log_tail()


def test_the_race_with_a_parent_that_has_already_died_is_settled() -> None:
    """A pid that is not the parent's stands for a parent that ended first."""
    command = [sys.executable, "-I", "-S", bound_exec.__file__, "1", sys.executable, "-c", "print('ran')"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "has ended" in done.stderr
