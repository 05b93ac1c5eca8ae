"""The manager's commands: per-replica outcomes, no-ops, compensation, tokens, shutdown."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import CapabilityError, EngineError, StaleTokenError
from rolecall.ids import EngineId, FencingToken
from rolecall.interfaces.engine_backend import Capability
from rolecall.interfaces.role import WeightSource
from rolecall.testing.manager_rig import ManagerRig, now, ok, within
from rolecall.testing.virtual_time import run_virtual

A, B = "m/replica-0", "m/replica-1"


# --- start, offload, onload ---------------------------------------------------------------


def test_a_cycle_passes_through_the_table_and_proves_each_step(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        asleep = await rig.offload(1)
        assert ok(asleep)
        assert {outcome.state for outcome in asleep} == {ReplicaState.SLEEPING}
        assert "900 MiB awake, 100 MiB asleep" in asleep[0].detail
        awake = await rig.onload(2)
        assert ok(awake)
        assert rig.path(A) == ["STARTING", "READY", "DRAINING", "SLEEPING", "ONLOADING", "READY"]
        memory = [
            (e["awake"], e["resident_bytes"] >> 20)
            for e in rig.events
            if e["kind"] == "replica.memory" and e["engine"] == A
        ]
        assert memory == [(True, 900), (False, 100), (True, 900)]
        first = rig.events[0]
        assert first == {
            "kind": "replica.state",
            "role": "judge",
            "engine": A,
            "from": None,
            "to": "STARTING",
            "reason": "created",
            "generation": 1,
            "incarnation": 1,
            "token": 0,
        }

    run(scenario)


def test_replicas_start_and_sleep_in_parallel(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        for engine in (A, B):
            rig.worker(engine).script.start_takes_s = 20.0
            rig.worker(engine).script.slow["release"] = 20.0
        assert ok(await rig.manager.start())
        assert now() < 25.0
        assert ok(await rig.offload())
        assert now() < 50.0

    run(scenario, started=False)


def test_repeated_commands_do_nothing(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.manager.start())
        assert ok(await rig.offload(1))
        assert ok(await rig.offload(1))
        assert ok(await rig.offload(2))
        assert ok(await rig.onload(3))
        assert ok(await rig.onload(3))
        engine = rig.worker(A).engine
        assert engine.calls.count("release") == 1
        assert engine.calls.count("resume weights") == 1
        assert engine.calls.count("start") == 1
        assert rig.worker(A).calls.count("sleep") == 1

    run(scenario)


def test_a_copy_of_an_offload_starts_nothing_when_others_have_the_devices(run: Any) -> None:
    """An engine died asleep; the command that put it to sleep arrives once more."""

    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.offload(1))
        rig.worker(A).engine.kill()
        await rig.manager.look()
        assert rig.states() == ["FAILED", "SLEEPING"]
        again = await rig.offload(1)
        assert [outcome.confirmed for outcome in again] == [False, True]
        assert rig.worker(A).calls.count("start") == 1
        assert ok(await rig.onload(2)), "it is rebuilt when the role has the devices again"

    run(scenario)


def test_draining_is_published_before_the_drain_begins(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        calls_when_published: list[tuple[str, ...]] = []
        rig.before_publish = lambda: calls_when_published.append(tuple(rig.worker(A).engine.calls))
        rig.published.clear()
        assert ok(await rig.offload())
        draining = rig.published.index({A: "DRAINING", B: "DRAINING"})
        assert "pause" not in calls_when_published[draining]
        await asyncio.sleep(1)  # that it sleeps is told after the answer
        assert "pause" in calls_when_published[-1]
        assert rig.published[-1] == {A: "SLEEPING", B: "SLEEPING"}

    run(scenario)


def test_a_stuck_request_needs_several_flushes_and_the_offload_is_still_confirmed(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.running = 3
        rig.worker(A).script.flushes_needed = 6
        assert ok(await rig.offload())
        assert rig.worker(A).engine.calls.count("flush") == 6

    run(scenario)


def test_an_engine_that_never_gets_quiet_fails_alone_and_within_the_deadline(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.running = 3
        rig.worker(A).script.flushes_needed = None
        start = now()
        bad, good = await rig.offload(seconds=40.0)
        assert now() - start <= 40.0
        assert (bad.state, bad.confirmed) == (ReplicaState.FAILED, False)
        assert "flush says busy" in bad.detail
        assert (good.state, good.confirmed) == (ReplicaState.SLEEPING, True)
        assert rig.manager.view().engines[0].state is ReplicaState.FAILED

    run(scenario)


def test_a_release_that_lies_is_not_confirmed_and_not_repeated(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.release_frees = 0.0
        bad, good = await rig.offload()
        assert not bad.confirmed
        assert "release was answered" in bad.detail
        assert good.confirmed
        assert rig.worker(A).engine.calls.count("release") == 1

    run(scenario)


def test_a_worker_that_gives_no_answer_leaves_the_offload_unconfirmed(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).silent = True
        start = now()
        bad, good = await rig.offload(seconds=40.0)
        assert now() - start <= 40.0
        assert (bad.state, bad.confirmed) == (ReplicaState.FAILED, False)
        assert good.confirmed

    run(scenario)


def test_one_error_that_nobody_expected_does_not_hide_the_other_outcome(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.broken["pause"] = KeyError("surprise")
        bad, good = await rig.offload()
        assert not bad.confirmed
        assert "surprise" in bad.detail
        assert good.confirmed

    run(scenario)


def test_a_backend_that_cannot_sleep_says_so(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        with pytest.raises(CapabilityError, match="can't put engines to sleep"):
            await rig.offload()
        assert rig.states() == ["READY", "READY"]

    run(scenario, capabilities=frozenset())


# --- onload that fails in part --------------------------------------------------------------


def test_lost_weights_fail_a_static_onload_and_the_other_replica_is_stopped(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.offload(1))
        rig.worker(A).script.loses_weights = True
        outcomes = {outcome.engine: outcome for outcome in await rig.onload(2)}
        assert not outcomes[EngineId(A)].confirmed
        assert "uniform" in outcomes[EngineId(A)].detail
        other = outcomes[EngineId(B)]
        assert (other.state, other.confirmed) == (ReplicaState.FAILED, True)
        assert "no process of its group is left" in other.detail
        assert rig.worker(B).engine.exit_code() is not None
        assert "READY" not in rig.path(B)[4:], "an onload that fails opens nobody"
        assert all("READY" not in view.values() for view in rig.published[-2:])

    run(scenario)


def test_after_a_failed_static_onload_the_next_one_rebuilds(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.offload(1))
        rig.worker(A).script.loses_weights = True
        await rig.onload(2)
        # No lease now: the reconciler cleans up, but starts nothing on shared devices.
        await rig.manager.reconcile_once()
        await rig.manager.reconcile_once()
        assert rig.states() == ["FAILED", "FAILED"]
        assert all(entry["vacant"] for entry in rig.manager.status())
        rig.worker(A).script.loses_weights = False
        assert ok(await rig.onload(3))
        assert [view.generation for view in rig.manager.view().engines] == [2, 2]

    run(scenario)


def test_a_restored_versioned_replica_is_offloaded_again(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.offload(1))
        rig.worker(A).script.weight_version_after_wake = "elsewhere"
        outcomes = {outcome.engine: outcome for outcome in await rig.onload(2)}
        assert not outcomes[EngineId(A)].confirmed
        other = outcomes[EngineId(B)]
        assert (other.state, other.confirmed) == (ReplicaState.SLEEPING, True)
        assert rig.path(B)[-3:] == ["ONLOADING", "DRAINING", "SLEEPING"]
        assert rig.worker(B).engine.exit_code() is None
        assert all(view[B] != "READY" for view in rig.published if view[A] == "FAILED")

    run(scenario, source=WeightSource.ACTOR)


def test_a_resume_that_hangs_is_not_repeated_by_a_later_onload(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.offload(1))
        rig.worker(A).script.slow["resume"] = 1000.0
        assert not ok(await rig.onload(2, seconds=30.0))
        rig.worker(A).script.slow.clear()
        old = rig.worker(A).backend.engines[0]
        assert ok(await rig.onload(3))
        resumes = [call for call in old.calls if call.startswith("resume")]
        assert resumes == ["resume weights"]
        assert old.exit_code() is not None
        assert len(rig.worker(A).backend.engines) == 2, "it was rebuilt, not resumed again"

    run(scenario, replicas=1)


def test_a_retraction_takes_back_what_another_model_forbids(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        await rig.offload(1)
        await rig.onload(2)
        outcomes = await rig.manager.retract(FencingToken(2), within(60))
        assert ok(outcomes)
        assert rig.states() == ["SLEEPING", "SLEEPING"]

    run(scenario, source=WeightSource.ACTOR)


# --- tokens and turns -----------------------------------------------------------------------


def test_a_stale_token_is_refused_before_anything_happens(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        await rig.offload(7)
        with pytest.raises(StaleTokenError, match="token 6, but 7"):
            await rig.onload(6)
        assert rig.states() == ["SLEEPING", "SLEEPING"]

    run(scenario)


def test_a_command_that_waits_is_refused_when_a_later_one_has_passed(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.slow["release"] = 20.0
        first = asyncio.ensure_future(rig.offload(1))
        await asyncio.sleep(1.0)
        old = asyncio.ensure_future(rig.onload(2))
        await asyncio.sleep(1.0)
        new = asyncio.ensure_future(rig.offload(3))
        assert ok(await first)
        with pytest.raises(StaleTokenError):
            await old
        assert ok(await new)
        assert rig.states() == ["SLEEPING", "SLEEPING"]

    run(scenario)


def test_a_command_that_does_not_get_its_turn_in_time_is_unconfirmed(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.slow["release"] = 40.0
        first = asyncio.ensure_future(rig.offload(1))
        await asyncio.sleep(1.0)
        start = now()
        outcomes = await rig.onload(1, seconds=10.0)
        assert now() - start <= 10.0
        assert not any(outcome.confirmed for outcome in outcomes)
        assert "waiting for offload" in outcomes[0].detail
        assert ok(await first)

    run(scenario)


# --- stop and shutdown ----------------------------------------------------------------------


def test_shutdown_confirms_disposes_and_forgets(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        outcomes = await rig.manager.shutdown(within(30))
        assert ok(outcomes)
        assert "no process of its group is left" in outcomes[0].detail
        assert all(rig.worker(e).disposed and rig.worker(e).engine.exit_code() is not None for e in (A, B))
        assert rig.manager.view().engines == ()
        assert rig.published[-2:] == [{A: "STOPPING", B: "STOPPING"}, {}] or rig.published[-1] == {}
        assert await rig.manager.shutdown(within(30)) == ()
        with pytest.raises(EngineError, match="shutting down"):
            await rig.onload(9)

    run(scenario)


def test_an_unconfirmed_shutdown_stays_pending_and_the_next_call_retries_it(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).silent = True
        outcomes = {o.engine: o for o in await rig.manager.shutdown(within(10))}
        assert not outcomes[EngineId(A)].confirmed
        assert outcomes[EngineId(B)].confirmed
        assert rig.states() == ["STOPPING"]
        assert not rig.worker(A).disposed, "an unconfirmed worker keeps its handle and its devices"
        rig.worker(A).silent = False
        assert ok(await rig.manager.shutdown(within(10)))
        assert rig.worker(A).disposed
        assert rig.states() == []

    run(scenario)


def test_shutdown_interrupts_a_command_that_takes_long(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.slow["release"] = 500.0
        command = asyncio.ensure_future(rig.offload(1, seconds=600.0))
        await asyncio.sleep(2.0)
        assert ok(await rig.manager.shutdown(within(20)))
        assert now() < 20.0
        outcomes = await command
        assert not any(outcome.confirmed for outcome in outcomes)
        assert "interrupted by a shutdown" in outcomes[0].detail

    run(scenario)


def test_shutdown_interrupts_a_start(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.start_takes_s = 200.0
        command = asyncio.ensure_future(rig.manager.start())
        await asyncio.sleep(2.0)
        assert ok(await rig.manager.shutdown(within(20)))
        assert not ok(await command)
        assert rig.worker(A).engine.exit_code() is not None

    run(scenario, started=False)


def test_one_replica_is_stopped_by_its_id_or_any_url_it_had(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        old_url = rig.manager.view().engines[0].base_url
        assert old_url is not None
        rig.worker(A).engine.kill()
        await rig.manager.reconcile_once()
        assert rig.states() == ["READY", "READY"]
        assert rig.manager.view().engines[0].base_url != old_url
        rig.worker(A).silent = True
        assert not ok(await rig.manager.stop(old_url, within(10)))
        assert rig.states() == ["STOPPING", "READY"]
        rig.worker(A).silent = False
        assert ok(await rig.manager.stop(old_url, within(10)))
        assert rig.states() == ["READY"]
        with pytest.raises(EngineError, match="no replica is or was"):
            await rig.manager.stop(A, within(10))

    run(scenario)


def test_a_replica_over_two_nodes_is_refused_where_the_backend_knows_one_node_only(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(CapabilityError, match="spans 2 nodes"):
            ManagerRig(tmp_path, nodes=2, capabilities=frozenset(Capability) - {Capability.SEVERAL_NODES})

    run_virtual(main())
