"""The matrix sees by itself that two roles' engines hold memory at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from fault_matrix.job import until_none
from fault_matrix.memory_watch import AWAKE_BYTES, MemoryWatch

HOLD = f"held = b'x' * {AWAKE_BYTES + 2**20}; input()"
MARKS = {"rollout": "watched-rollout", "teacher": "watched-teacher"}


@pytest.fixture
def watch() -> Iterator[MemoryWatch]:
    watch = MemoryWatch(MARKS)
    yield watch
    watch.close()


def seen(watch: MemoryWatch, roles: set[str]) -> list[str]:
    return [] if set(watch.engines().values()) == roles else [f"{watch.engines()}"]


@pytest.mark.parametrize("together", [True, False])
def test_two_roles_with_memory_at_once_are_seen(watch: MemoryWatch, together: bool):
    assert watch.problems() == ["rollout was never seen awake", "teacher was never seen awake"]
    with ExitStack() as running:
        for role, mark in MARKS.items():
            process = running.enter_context(
                subprocess.Popen([sys.executable, "-c", HOLD, mark], stdin=subprocess.PIPE)
            )
            running.callback(process.kill)
            never = f"{role} was never seen awake"
            assert until_none(lambda never=never: [p for p in watch.problems() if p == never], 20.0) == []
            if not together:
                process.kill()
                process.wait()
                assert until_none(lambda: seen(watch, set()), 10.0) == []
        found = until_none(lambda: [] if watch.problems() else ["nothing"], 2.0) if together else []
        assert found == []
        assert together or watch.problems() == []
