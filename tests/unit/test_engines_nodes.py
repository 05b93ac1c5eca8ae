"""A replica over several nodes: started together, commanded through its head, ended worker by worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import EngineError
from rolecall.ids import EngineId
from rolecall.interfaces.engine_backend import FromDisk, MemoryReport
from rolecall.interfaces.role import WeightSource
from rolecall.testing.fake_engine import AWAKE_BYTES, BASE_BYTES, FakeEngine
from rolecall.testing.manager_rig import ManagerRig, now, ok, within
from rolecall.testing.virtual_time import run_virtual

A = "m/replica-0"


class FollowerEngine(FakeEngine):
    """A fake whose memory follows the head's, and which can't be asked what a follower can't."""

    head: FakeEngine

    async def memory(self) -> MemoryReport:
        self.calls.append("memory")
        held = sum(AWAKE_BYTES.values()) if self.keeps or self.head._resident else 0
        return MemoryReport(resident_tags=frozenset(), resident_bytes=BASE_BYTES + held)

    keeps = False

    async def running_requests(self) -> int:
        raise AssertionError("a follower answers no requests")

    canary = weight_version = pause = abort_all = flush = running_requests  # type: ignore[assignment]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    def run(scenario: Callable[[ManagerRig], Awaitable[Any]], *, started: bool = True, **options: Any) -> Any:
        async def main() -> Any:
            rig = ManagerRig(tmp_path, **{"replicas": 1, "nodes": 2, **options})
            follower = rig.worker(A, 1).backend

            def create(launch: Any) -> FakeEngine:
                engine = FollowerEngine(launch, follower.script)
                engine.head = rig.worker(A).engine
                follower.engines.append(engine)
                return engine

            follower.create = create  # type: ignore[method-assign]
            if started:
                assert ok(await rig.manager.start())
            return await scenario(rig)

        return run_virtual(main())

    return run


def test_both_nodes_start_at_one_rendezvous_and_one_head_is_shown(run: Any) -> None:
    """Pitfall 12"""

    async def scenario(rig: ManagerRig) -> None:
        for rank in (0, 1):
            rig.worker(A, rank).script.start_takes_s = 20.0
        assert ok(await rig.manager.start())
        assert now() < 30.0, "they start at the same time"
        head, follower = (rig.worker(A, rank).engine.launch for rank in (0, 1))
        assert head.rendezvous == follower.rendezvous
        address, port = str(head.rendezvous).split(":")
        assert address == "127.0.0.1"
        assert 27_000 <= int(port) < 28_500
        assert [(launch.nodes, launch.node_rank) for launch in (head, follower)] == [(2, 0), (2, 1)]
        assert head.log_path != follower.log_path
        assert rig.worker(A).calls.count("meet") == 1
        assert "meet" not in rig.worker(A, 1).calls
        (shown,) = rig.manager.view().engines
        assert shown.base_url == (await rig.worker(A).describe(within(1))).base_url
        (status,) = rig.manager.status()
        assert status["followers"] == [{"node": "127.0.0.1", "devices": ["1"]}]
        assert status["resident_bytes"] == 2 * (BASE_BYTES + sum(AWAKE_BYTES.values()))

    run(scenario, started=False)


def test_a_partly_failed_start_ends_all_workers_with_evidence(run: Any) -> None:
    """Pitfall 12"""

    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.start_takes_s = 250.0  # it waits for a peer that never comes
        rig.worker(A, 1).script.start_error = "out of memory"
        (outcome,) = await rig.manager.start()
        assert not outcome.confirmed
        assert "out of memory" in outcome.detail
        assert now() < 20.0, "the head is not waited for"
        (status,) = rig.manager.status()
        assert (status["state"], status["vacant"], status["fence"]) == ("FAILED", True, None)
        assert rig.worker(A).engine.exit_code() is not None
        rig.worker(A).script.start_takes_s = 0.0
        rig.worker(A, 1).script.start_error = None
        await asyncio.sleep(5.0)
        await rig.manager.reconcile_once()
        assert rig.states() == ["READY"]
        first, second = (engine.launch.rendezvous for engine in rig.worker(A).backend.engines)
        assert rig.worker(A, 1).engine.launch.rendezvous == second
        assert first is not None

    run(scenario, started=False)


def test_sleep_and_wake_go_to_the_head_and_every_node_proves(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.offload(1))
        follower = rig.worker(A, 1)
        assert [call for call in follower.calls if call != "prepare"] == [
            "start",
            "measure",
            "measure",
            "prove_released",
        ]
        assert rig.manager.status()[0]["resident_bytes"] == 2 * BASE_BYTES
        assert ok(await rig.onload(2))
        assert follower.calls[-1] == "measure"
        assert "resume weights" not in follower.engine.calls

    run(scenario)


def test_a_replica_on_two_nodes_is_free_when_both_are(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.offload(1))
        assert ok(await rig.vacate(2)), "asleep already: measured again on both nodes"
        rig.worker(A, 1).dead.set()
        rig.reaper.left = (4711,)
        (outcome,) = await rig.vacate(3)
        assert not outcome.confirmed
        assert "4711" in outcome.detail
        rig.reaper.left = ()
        (outcome,) = await rig.vacate(4)
        assert (outcome.state, outcome.confirmed) == (ReplicaState.FAILED, True)

    run(scenario)


def test_a_follower_that_keeps_its_memory_fails_the_sleep(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A, 1).engine.keeps = True  # type: ignore[attr-defined]
        (outcome,) = await rig.offload(1)
        assert (outcome.state, outcome.confirmed) == (ReplicaState.FAILED, False)
        assert "0% freed" in outcome.detail
        assert all(rig.worker(A, rank).engine.exit_code() is not None for rank in (0, 1))

    run(scenario)


def test_weights_change_through_the_head(run: Any, tmp_path: Path) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.manager.update_weights(FromDisk(path=tmp_path), "7", within(60)))
        assert rig.worker(A).calls.count("update_weights") == 1
        assert "update_weights" not in rig.worker(A, 1).calls

    run(scenario, source=WeightSource.ACTOR)


def test_a_pending_stop_is_retried_when_only_a_follower_is_left(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        url = rig.manager.view().engines[0].base_url
        assert url is not None
        rig.worker(A, 1).silent = True
        (outcome,) = await rig.manager.stop(A, within(10))
        assert not outcome.confirmed
        assert rig.worker(A).engine.exit_code() is not None
        assert rig.states() == ["STOPPING"]
        rig.worker(A, 1).silent = False
        assert ok(await rig.manager.stop(url, within(10)))
        assert rig.worker(A).calls.count("stop") == 1, "the head has given its evidence"
        assert rig.states() == []

    run(scenario)


def test_a_node_without_free_ports_fails_the_start_with_words(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        async def full(*_: Any) -> str:
            raise EngineError("no 32 free distributed_init ports in a row on this node")

        rig.worker(A).meet = full  # type: ignore[method-assign]
        (outcome,) = await rig.manager.start()
        assert outcome.engine == EngineId(A)
        assert "ports in a row" in outcome.detail
        assert "start" not in rig.worker(A, 1).calls

    run(scenario, started=False)
