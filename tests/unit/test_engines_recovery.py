"""Death, doubt and repair: what the manager concludes from what it sees, and what it may do then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rolecall.engines.health_policy import HealthPolicy, Verdict, judge, judge_silence
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.worker_handle import WorkerHealth
from rolecall.ids import EngineId
from rolecall.interfaces.engine_backend import MemoryTag
from rolecall.interfaces.role import WeightSource
from rolecall.testing.manager_rig import ManagerRig, now, ok, within
from rolecall.testing.virtual_time import run_virtual

A, B = "m/replica-0", "m/replica-1"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    def run(scenario: Callable[[ManagerRig], Awaitable[Any]], *, started: bool = True, **options: Any) -> Any:
        async def main() -> Any:
            rig = ManagerRig(tmp_path, **{"replicas": 1, **options})
            if started:
                assert ok(await rig.manager.start())
            return await scenario(rig)

        return run_virtual(main())

    return run


# --- death of the engine process ------------------------------------------------------------


def test_an_engine_that_dies_while_ready_is_rebuilt_with_a_higher_generation(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        old = rig.manager.view().engines[0]
        rig.worker(A).engine.kill()
        rig.published.clear()
        await rig.manager.reconcile_once()
        new = rig.manager.view().engines[0]
        assert (new.state, new.generation) == (ReplicaState.READY, old.generation + 1)
        assert new.base_url != old.base_url
        assert rig.path(A) == ["STARTING", "READY", "FAILED", "STARTING", "READY"]
        assert rig.published[0] == {A: "FAILED"}, "the dead one is taken out before it is replaced"
        failed = next(e for e in rig.events if e.get("to") == "FAILED")
        assert "exit code -9" in failed["reason"]
        assert (failed["incarnation"], failed["generation"]) == (1, 1)
        assert (rig.events[-1]["incarnation"], rig.events[-1]["generation"]) == (2, 2)

    run(scenario)


def test_an_engine_that_dies_asleep_on_shared_devices_is_rebuilt_by_the_next_onload(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        await rig.offload(1)
        rig.worker(A).engine.kill()
        for _ in range(3):
            await rig.manager.reconcile_once()
        assert rig.states() == ["FAILED"]
        assert rig.manager.status()[0]["vacant"], "its end is certain"
        assert len(rig.worker(A).backend.engines) == 1, "nothing is started without the lease"
        assert ok(await rig.onload(2))
        assert rig.manager.view().engines[0].generation == 2

    run(scenario)


def test_an_engine_that_dies_asleep_on_its_own_devices_goes_back_to_sleep(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        await rig.offload(1)
        rig.worker(A).engine.kill()
        await rig.manager.reconcile_once()
        assert rig.states() == ["SLEEPING"]
        assert rig.path(A)[-4:] == ["STARTING", "READY", "DRAINING", "SLEEPING"]
        assert rig.worker(A).engine.calls.count("release") == 1

    run(scenario, shared=False)


def test_an_engine_that_dies_while_draining_is_restored_and_sleeps(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.slow["release"] = 100.0
        command = asyncio.ensure_future(rig.offload(1))
        await asyncio.sleep(5.0)
        rig.worker(A).script.slow.clear()
        rig.worker(A).engine.kill()
        outcomes = await command
        assert now() < 15.0, "its death is noticed at once"
        assert ok(outcomes)
        assert rig.path(A)[2:] == ["DRAINING", "FAILED", "STARTING", "READY", "DRAINING", "SLEEPING"]

    run(scenario)


def test_an_engine_that_dies_before_the_drain_is_restored_and_sleeps(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).engine.kill()
        assert ok(await rig.offload(1))
        assert rig.states() == ["SLEEPING"]

    run(scenario)


def test_an_engine_that_dies_while_waking_fails_the_onload(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        await rig.offload(1)
        rig.worker(A).script.slow["resume"] = 100.0
        command = asyncio.ensure_future(rig.onload(2))
        await asyncio.sleep(5.0)
        rig.worker(A).engine.kill()
        (outcome,) = await command
        assert now() < 15.0
        assert (outcome.state, outcome.confirmed) == (ReplicaState.FAILED, False)
        assert "exit code -9 during wake" in outcome.detail
        assert rig.manager.status()[0]["vacant"]
        rig.worker(A).script.slow.clear()
        await rig.manager.reconcile_once()
        assert rig.states() == ["FAILED"], "the onload gave up the devices"
        assert ok(await rig.onload(3))

    run(scenario)


def test_an_engine_that_does_not_start_is_tried_again_with_growing_pauses(run: Any) -> None:
    """Pitfall 28"""

    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.start_error = "out of memory"
        (outcome,) = await rig.manager.start()
        assert not outcome.confirmed
        assert "out of memory" in outcome.detail
        starts: list[float] = []
        tried = 1
        while now() < 100.0:
            await rig.manager.reconcile_once()
            if (count := len(rig.worker(A).backend.engines)) > tried:
                starts.append(round(now()))
                tried = count
            await asyncio.sleep(1.0)
        assert starts == [2, 6, 14, 30, 62]
        rig.worker(A).script.start_error = None
        await asyncio.sleep(60.0)
        await rig.manager.reconcile_once()
        assert rig.states() == ["READY"]

    run(scenario, started=False)


# --- doubt ------------------------------------------------------------------------------------


def test_a_busy_engine_that_answers_late_is_not_dead(run: Any) -> None:
    """Pitfall 23"""

    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.running = 8
        rig.worker(A).script.slow["health_generate"] = 60.0
        for _ in range(20):
            await rig.manager.reconcile_once()
        assert rig.states() == ["READY"]
        rig.worker(A).script.running = 0
        rig.worker(A).script.slow.clear()
        await rig.manager.reconcile_once()
        assert rig.path(A) == ["STARTING", "READY"]

    run(scenario)


def test_a_dead_scheduler_behind_a_live_server_is_found_and_replaced(run: Any) -> None:
    """Pitfall 23"""

    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.slow = {"health_generate": 60.0, "running_requests": 60.0}
        await rig.manager.reconcile_once()
        await rig.manager.reconcile_once()
        assert rig.states() == ["READY"]
        engine = rig.worker(A).engine
        rig.before_publish = rig.worker(A).script.slow.clear
        await rig.manager.reconcile_once()
        assert engine.exit_code() is not None
        assert rig.path(A) == ["STARTING", "READY", "FAILED", "STARTING", "READY"]

    run(scenario)


def test_failed_looks_count_only_in_a_row(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        for healthy in (False, False, True, False, False, True):
            rig.worker(A).script.healthy = healthy
            await rig.manager.reconcile_once()
        assert rig.states() == ["READY"]

    run(scenario)


def test_a_worker_that_gives_no_answer_is_not_routed_to_but_not_dead(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        worker = rig.worker(A)
        worker.silent = True
        await rig.manager.reconcile_once()
        await rig.manager.reconcile_once()
        assert rig.states() == ["READY"]
        await rig.manager.reconcile_once()
        (entry,) = rig.manager.status()
        assert (entry["state"], entry["fence"], entry["vacant"]) == ("FAILED", None, False)
        assert "does not mean dead" in entry["reason"]
        assert len(worker.backend.engines) == 1, "nothing is started beside an engine that may live"
        worker.silent = False
        await rig.manager.reconcile_once()
        assert rig.states() == ["READY"]
        assert worker.backend.engines[0].exit_code() is not None

    run(scenario)


def test_a_sleeper_that_somebody_else_woke_is_ended(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.offload(1))
        engine = rig.worker(A).engine
        await engine.resume(frozenset({MemoryTag.KV_CACHE}))
        for _ in range(3):
            await rig.manager.reconcile_once()
        assert engine.exit_code() is not None
        (entry,) = rig.manager.status()
        assert (entry["state"], entry["vacant"]) == ("FAILED", True)
        assert "should be asleep, but holds kv_cache" in entry["reason"]

    run(scenario)


def test_a_failed_offload_is_cleaned_up_but_not_restarted_without_the_lease(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.release_frees = 0.0
        assert not ok(await rig.offload(1))
        engine = rig.worker(A).engine
        await rig.manager.reconcile_once()
        assert engine.exit_code() is not None
        assert engine.calls.count("release") == 1
        (entry,) = rig.manager.status()
        assert (entry["state"], entry["vacant"], entry["resident_bytes"]) == ("FAILED", True, 0)

    run(scenario)


def test_an_engine_whose_end_is_not_confirmed_is_not_replaced(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        worker = rig.worker(A)
        worker.script.release_frees = 0.0
        assert not ok(await rig.offload(1))
        worker.silent = True
        (outcome,) = await rig.onload(2)
        assert not outcome.confirmed
        assert "not confirmed gone" in outcome.detail
        assert len(worker.backend.engines) == 1
        (entry,) = rig.manager.status()
        assert (entry["state"], entry["incarnation"]) == ("FAILED", 1)

    run(scenario)


# --- death of the worker ----------------------------------------------------------------------


def test_a_dead_worker_whose_engine_the_reaper_ends_is_replaced(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        old = rig.worker(A)
        old.dead.set()
        await rig.manager.look()
        (entry,) = rig.manager.status()
        assert entry["state"] == "FAILED"
        assert "nobody has looked yet" in entry["fence"]
        assert rig.worker(A) is old, "nothing is started before the look"
        await rig.manager.repair()
        assert rig.reaper.looks == [(A, 0, 1)]
        assert old.engine.exit_code() == -9, "it ran on, as an orphan"
        assert rig.worker(A) is not old
        (entry,) = rig.manager.status()
        assert (entry["state"], entry["fence"], entry["generation"]) == ("READY", None, 2)
        (reaped,) = [event for event in rig.events if event["kind"] == "engine.reaped"]
        assert (reaped["incarnation"], reaped["vacant"], len(reaped["killed"])) == (1, True, 1)
        assert old.calls.count("health") == 1, "a dead worker is not called again"
        assert old.calls.count("stop") == 0

    run(scenario)


def test_a_node_that_left_the_cluster_is_no_evidence(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).dead.set()
        rig.reaper.node_gone = True
        await rig.manager.reconcile_once()
        (entry,) = rig.manager.status()
        assert (entry["state"], entry["vacant"]) == ("FAILED", False)
        assert "has left the cluster" in entry["fence"]
        assert not [event for event in rig.events if event["kind"] == "engine.reaped"]

    run(scenario)


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("moment", ["sleep", "wake", "start"])
def test_a_worker_that_dies_during_a_command(run: Any, moment: str, stubborn: bool) -> None:
    async def scenario(rig: ManagerRig) -> None:
        worker = rig.worker(A)
        if stubborn:
            rig.reaper.left = (4711,)
        if moment == "start":
            worker.script.start_takes_s = 20.0
            command = asyncio.ensure_future(rig.manager.start())
        else:
            assert ok(await rig.manager.start())
            worker.script.slow["release" if moment == "sleep" else "resume"] = 20.0
            if moment == "wake":
                assert ok(await rig.offload(1))
            command = asyncio.ensure_future(rig.offload(2) if moment == "sleep" else rig.onload(2))
        await asyncio.sleep(5.0)
        worker.dead.set()
        (outcome,) = await command
        assert now() < 10.0
        (entry,) = rig.manager.status()
        if stubborn:
            assert (outcome.state, outcome.confirmed) == (ReplicaState.FAILED, False)
            assert "4711" in entry["fence"]
        elif moment == "sleep":
            assert (outcome.state, outcome.confirmed) == (ReplicaState.SLEEPING, True)
            assert rig.path(A)[2:] == ["DRAINING", "FAILED", "STARTING", "READY", "DRAINING", "SLEEPING"]
        else:
            assert (outcome.state, outcome.confirmed) == (ReplicaState.FAILED, False)
            assert (entry["fence"], entry["vacant"]) == (None, True)

    run(scenario, started=False)


# --- late answers -----------------------------------------------------------------------------


def test_a_look_that_began_before_an_offload_changes_nothing_after_it(run: Any) -> None:
    """Pitfall 26"""

    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.slow["health_generate"] = 4.0
        rig.worker(A).script.healthy = False
        for _ in range(2):
            await rig.manager.reconcile_once()
        look = asyncio.ensure_future(rig.manager.reconcile_once())
        await asyncio.sleep(1.0)
        assert ok(await rig.offload(1))
        await look
        assert rig.states() == ["SLEEPING"]

    run(scenario)


def test_an_answer_of_an_old_incarnation_is_dropped(run: Any) -> None:
    """Pitfall 26"""

    async def scenario(rig: ManagerRig) -> None:
        worker = rig.worker(A)
        replica = rig.manager._replicas[EngineId(A)]
        answer: asyncio.Future[WorkerHealth] = asyncio.get_running_loop().create_future()
        health = worker.health

        async def late(**_: Any) -> WorkerHealth:
            worker.health = health  # type: ignore[method-assign]
            return await answer

        worker.health = late  # type: ignore[method-assign]
        look = asyncio.ensure_future(rig.manager._driver.probe(replica))
        await asyncio.sleep(1.0)
        worker.engine.kill()
        await rig.manager.reconcile_once()
        assert (replica.state, replica.incarnation) == (ReplicaState.READY, 2)
        answer.set_result(
            WorkerHealth(
                incarnation=1, has_engine=True, exit_code=-9, alive=False, running=None, detail="dead"
            )
        )
        await look
        assert (replica.state, replica.incarnation) == (ReplicaState.READY, 2)

    run(scenario)


def test_a_start_that_ends_after_its_replica_was_given_up_marks_nothing_healthy(run: Any) -> None:
    """Pitfall 26"""

    async def scenario(rig: ManagerRig) -> None:
        worker = rig.worker(A)
        worker.engine.kill()
        worker.script.start_takes_s = 20.0
        repair = asyncio.ensure_future(rig.manager.reconcile_once())
        await asyncio.sleep(5.0)
        replica = rig.manager._replicas[EngineId(A)]
        assert replica.state is ReplicaState.STARTING
        replica.enter_state(ReplicaState.FAILED, "given up meanwhile")
        await repair
        assert replica.state is ReplicaState.FAILED
        assert replica.base_url is None

    run(scenario)


def test_reconciling_leaves_a_running_command_alone(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.release_frees = 0.0
        rig.worker(B).script.slow["release"] = 40.0
        command = asyncio.ensure_future(rig.offload(1))
        await asyncio.sleep(25.0)
        assert rig.states() == ["FAILED", "DRAINING"]
        start = now()
        await rig.manager.reconcile_once()
        assert now() - start < 1.0, "it does not wait for the command"
        assert rig.worker(A).engine.exit_code() is None
        await command
        await rig.manager.reconcile_once()
        assert rig.worker(A).engine.exit_code() is not None

    run(scenario, replicas=2)


def test_a_repair_that_takes_long_blinds_nobody(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.start_takes_s = 100.0
        rig.worker(A).engine.kill()
        repair = asyncio.ensure_future(rig.manager.reconcile_once())
        await asyncio.sleep(5.0)
        assert rig.states() == ["STARTING", "READY"]
        rig.worker(B).engine.kill()
        await rig.manager.look()
        assert rig.states() == ["STARTING", "FAILED"]
        assert rig.published[-1] == {A: "STARTING", B: "FAILED"}
        await rig.manager.repair()
        assert now() < 10.0, "a second repair does not wait for the first"
        await repair
        await rig.manager.repair()
        assert rig.states() == ["READY", "READY"]

    run(scenario, replicas=2)


def test_after_shutdown_nothing_is_looked_at_or_rebuilt(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        worker = rig.worker(A)
        worker.silent = True
        await rig.manager.shutdown(within(5))
        worker.silent = False
        calls = len(worker.calls)
        await rig.manager.reconcile_once()
        assert len(worker.calls) == calls
        assert len(worker.backend.engines) == 1

    run(scenario)


def test_a_versioned_replica_is_rebuilt_with_its_version(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).engine.kill()
        await rig.manager.reconcile_once()
        assert rig.worker(A).engine.launch.weight_version == "0"
        assert rig.manager.view().weight_version == "0"

    run(scenario, source=WeightSource.ACTOR)


# --- the policy alone -------------------------------------------------------------------------


def _look(**changes: Any) -> WorkerHealth:
    values: dict[str, Any] = {
        "incarnation": 3,
        "has_engine": True,
        "exit_code": None,
        "alive": True,
        "running": 0,
        "detail": "",
    }
    return WorkerHealth(**{**values, **changes})


@pytest.mark.parametrize(
    ("look", "failed_before", "verdict"),
    [
        (_look(), 9, Verdict.WELL),
        (_look(exit_code=0), 0, Verdict.BROKEN),
        (_look(exit_code=-9, running=5), 0, Verdict.BROKEN),
        (_look(has_engine=False), 0, Verdict.BROKEN),
        (_look(incarnation=2), 0, Verdict.BROKEN),
        (_look(alive=False), 1, Verdict.DOUBTFUL),
        (_look(alive=False), 2, Verdict.BROKEN),
        (_look(alive=False, running=None), 2, Verdict.BROKEN),
        (_look(alive=False, running=1), 2, Verdict.DOUBTFUL),
        (_look(alive=False, running=1), 8, Verdict.DOUBTFUL),
        (_look(alive=False, running=1), 9, Verdict.BROKEN),
    ],
)
def test_verdicts(look: WorkerHealth, failed_before: int, verdict: Verdict) -> None:
    policy = HealthPolicy(failures=3, busy_failures=10)
    assert judge(look, incarnation=3, failed_before=failed_before, policy=policy) is verdict


def test_silence_is_doubt_first() -> None:
    policy = HealthPolicy(failures=2)
    assert judge_silence(failed_before=0, policy=policy) is Verdict.DOUBTFUL
    assert judge_silence(failed_before=1, policy=policy) is Verdict.BROKEN
