"""Engines that fail: what their manager says, does and does not do, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import InferenceRecoveryRequired, LeaseBlockedError
from rolecall.testing.manager_rig import ManagerRig, now, ok, within

A, B = "m/replica-0", "m/replica-1"
JUDGE = "judge"


@pytest.mark.parametrize("command", ["offload", "onload"])
def test_lifecycle_operation_partly_fails(play: Any, command: str) -> None:
    """Each replica's result is recorded apart; one that is FAILED publishes no URL, and no lease is
    granted or given back on half a success."""

    async def scenario(job: Any) -> None:
        role = job.roles[JUDGE]
        await job.coordinator.begin_batch(0)
        if command == "onload":
            role.script(0).loses_weights = True
        else:
            await job.coordinator.activate(0, JUDGE, "wake")
            role.script(0).release_frees = 0.0
        ask = job.coordinator.activate if command == "onload" else job.coordinator.deactivate
        with pytest.raises(LeaseBlockedError) as fenced:
            await ask(0, JUDGE, command)
        assert f"{A} is FAILED" in str(fenced.value)
        assert B not in str(fenced.value), "its part succeeded"
        # A static replica that woke beside a failed one is ended, with evidence.
        assert role.states == ["FAILED", "SLEEPING" if command == "offload" else "FAILED"]
        assert (role.workers.of(B).engine.exit_code() is None) is (command == "offload")
        shown = {engine.engine_id: engine for engine in (await role.discovery()).engines}
        assert shown[A].base_url is None
        assert not any(engine.direct_eligible for engine in shown.values())
        assert (await job.leases())[JUDGE] == "BLOCKED"

    play(scenario, replicas=2)


@pytest.mark.parametrize("then", ["the job goes on", "the job ends"])
def test_engine_actor_confirmed_dead(play_manager: Any, then: str) -> None:
    """The slot, its record and its placement group stay fenced, as long as the job runs: there are no
    further shutdown calls, commands are answered with `InferenceRecoveryRequired`, and nothing is rebuilt
    without proof."""

    async def scenario(rig: ManagerRig) -> None:
        worker = rig.worker(A)
        worker.dead.set()
        rig.reaper.left = (4711,)
        for _ in range(3):
            await rig.manager.reconcile_once()
        assert len(rig.reaper.looks) == 1, "the next look waits for a while"
        (entry,) = rig.manager.status()
        assert (entry["state"], entry["vacant"]) == ("FAILED", False)
        for words in ("127.0.0.1 is dead", "process group", "devices 0", "4711 outlived", "reconcile"):
            assert words in entry["fence"]
        (outcome,) = await rig.onload(1)
        assert (outcome.state, outcome.confirmed) == (ReplicaState.FAILED, False)
        assert outcome.detail == str(InferenceRecoveryRequired(rig.manager.status()[0]["fence"]))
        (outcome,) = await rig.offload(2)
        assert not outcome.confirmed
        for _ in range(5):
            await asyncio.sleep(60.0)
            await rig.manager.reconcile_once()
        assert rig.states() == ["FAILED"]
        if then == "the job ends":
            (outcome,) = await rig.manager.shutdown(within(10))
            assert not outcome.confirmed
            assert rig.states() == ["STOPPING"], "its record is kept, for the next try"
        assert not worker.disposed
        assert rig.worker(A) is worker, "no new worker is put there"
        assert "stop" not in worker.calls
        rig.reaper.left = ()
        if then == "the job ends":
            assert ok(await rig.manager.shutdown(within(10)))
            assert rig.states() == []
        else:
            await asyncio.sleep(60.0)
            await rig.manager.reconcile_once()
            assert rig.manager.status()[0]["vacant"], "a later look has found everything gone"
            assert ok(await rig.onload(3))
            assert rig.worker(A) is not worker

    play_manager(scenario, replicas=1)


@pytest.mark.parametrize("dies", ["engine", "worker", "node"])
def test_follower_of_a_multi_node_replica_dies(play_manager: Any, dies: str) -> None:
    """The replica fails as a whole: what can be confirmed is ended, the rest stays fenced."""

    async def scenario(rig: ManagerRig) -> None:
        head, follower = rig.worker(A), rig.worker(A, 1)
        if dies == "engine":
            follower.engine.kill()
        else:
            follower.dead.set()
        rig.reaper.node_gone = dies == "node"
        await rig.manager.look()
        assert rig.states() == ["FAILED"]
        assert rig.published[-1] == {A: "FAILED"}
        began = now()
        await rig.manager.repair()
        assert now() - began < 60.0
        assert head.backend.engines[0].exit_code() is not None, "a head without its follower is ended, too"
        (entry,) = rig.manager.status()
        if dies == "node":
            assert (entry["state"], entry["vacant"]) == ("FAILED", False)
            assert "devices 1" in entry["fence"], "the follower's node, not the head's"
            assert rig.worker(A, 1) is follower
            rig.reaper.node_gone = False
            await asyncio.sleep(60.0)
            await rig.manager.reconcile_once()
        assert rig.states() == ["READY"], "whole again"
        assert rig.worker(A) is head, "the living worker keeps its place"
        assert (rig.worker(A, 1) is follower) is (dies == "engine")
        engines = [len(rig.worker(A, rank).backend.engines) for rank in (0, 1)]
        assert engines == [2, 2 if dies == "engine" else 1]
        assert rig.manager.view().engines[0].generation == 2

    play_manager(scenario, replicas=1, nodes=2)
