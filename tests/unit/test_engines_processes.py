"""Process groups: a leader's exit is no proof, an empty group is."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rolecall.engines.deadline import Deadline, LoopClock
from rolecall.engines.processes import end_group
from rolecall.errors import EngineError
from rolecall.processes.groups import group_members

# A leader with a child; both ignore SIGTERM. The leader ends when its input is closed.
FAMILY = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, sys; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.DEVNULL)
sys.stdin.read()
"""


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", FAMILY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "up\n"
    yield process
    process.stdin.close()
    process.stdout.close()
    if group_members(process.pid):
        process.send_signal(signal.SIGKILL)
    process.wait(10)


async def test_survivors_of_a_dead_leader_are_found_and_ended(leader: subprocess.Popen[str]) -> None:
    assert len(group_members(leader.pid)) == 2
    leader.kill()
    leader.wait(10)
    (survivor,) = group_members(leader.pid)
    assert survivor != leader.pid
    assert await end_group(leader.pid, Deadline.after(LoopClock(), 10)) == (survivor,)
    assert group_members(leader.pid) == ()


async def test_a_zombie_leader_does_not_count(leader: subprocess.Popen[str]) -> None:
    found = await end_group(leader.pid, Deadline.after(LoopClock(), 10))
    assert len(found) == 2
    # Nobody has waited for the leader yet: it is a zombie, and holds nothing.
    assert group_members(leader.pid) == ()
    assert leader.wait(10) == -signal.SIGKILL
    assert await end_group(leader.pid, Deadline.after(LoopClock(), 10)) == ()


async def test_what_outlives_the_kill_is_named(
    leader: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("rolecall.engines.processes.os.killpg", lambda group, number: None)
        with pytest.raises(EngineError, match=rf"{leader.pid}.* outlived SIGKILL"):
            await end_group(leader.pid, Deadline.after(LoopClock(), 0.2))
    await end_group(leader.pid, Deadline.after(LoopClock(), 10))
