"""The pytest plugin of the kit, as a stranger meets it: in a process of its own, without configuration."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from rolecall.placement.group_port import PoolGroup
from rolecall.testing.fake_groups import FakeGroups
from rolecall.testing.virtual_time import VirtualClock

IMPORTS = """
import sys
import pytest
before = set(sys.modules)
import rolecall.testing.pytest_plugin
new = {name for name in set(sys.modules) - before if name.partition(".")[0] not in sys.stdlib_module_names}
print(*sorted(new))
"""

PROJECT = """
import asyncio

from rolecall.testing import BatchSinkContract, RewardAdapterContract
from rolecall_plugins.rewards.exact_match import ExactMatch
from rolecall_plugins.sinks.jsonl.sink import JsonlSink


class TestAdapter(RewardAdapterContract):
    plugin = ExactMatch

    async def test_of_the_author(self):
        await asyncio.sleep(0)


class Short(JsonlSink):
    def read(self, partition):
        return super().read(partition)[:1]


class TestSink(BatchSinkContract):
    plugin = Short


def test_fixtures(rolecall_clock, rolecall_cluster, rolecall_engine_server):
    assert rolecall_cluster.offer("device_slot").free == 8
"""


def test_loading_it_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["rolecall", "rolecall.testing", "rolecall.testing.pytest_plugin"]


def test_a_project_needs_no_configuration_and_sees_what_failed(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = strict\n")
    (tmp_path / "test_mine.py").write_text(PROJECT)
    command = [sys.executable, "-m", "pytest", "-rA", "--strict-markers", "-p", "no:cacheprovider"]
    command += ["-W", "error::pytest.PytestAssertRewriteWarning"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    lines = done.stdout.splitlines()
    assert "PASSED test_mine.py::test_fixtures" in lines, done.stdout
    assert "PASSED test_mine.py::TestAdapter::test_of_the_author" in lines
    assert [line for line in lines if line.startswith("FAILED test_mine.py::TestAdapter")] == []
    assert not [line for line in lines if "async def functions are not natively supported" in line]
    assert "E       assert 1 == 3" in lines, "assertions of a contract tell what they compared"


def test_the_clock_jumps(rolecall_clock: VirtualClock) -> None:
    async def an_hour() -> str:
        await rolecall_clock.sleep(1800)
        await asyncio.sleep(1800)
        return "done"

    assert rolecall_clock.now_s() == 0
    assert rolecall_clock.run(an_hour()) == "done"
    assert rolecall_clock.now_s() == 3600
    with pytest.raises(TimeoutError):
        rolecall_clock.run(asyncio.wait_for(asyncio.sleep(1e6), timeout=60))
    assert rolecall_clock.now_s() == 3660


def test_the_cluster_gives_what_it_has(rolecall_cluster: FakeGroups) -> None:
    group = rolecall_cluster.create("pool", [{"device_slot": 1}] * 5)
    assert rolecall_cluster.wait_ready(group, 10)
    pool = PoolGroup(pool_id="pool", resource="device_slot", bundles=5, handle=group)
    assert {probe.node_id for probe in rolecall_cluster.probe([pool], 1)} == {"node-a", "node-b"}
    assert not rolecall_cluster.wait_ready(rolecall_cluster.create("more", [{"device_slot": 1}] * 4), 10)
    assert rolecall_cluster.clock.now_s() == 10
