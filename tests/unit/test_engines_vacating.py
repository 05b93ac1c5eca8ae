"""Freeing a fenced role's devices: what is put to sleep, what is ended, and what stays unproved."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rolecall.engines.proof import Proof
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import Outcomes
from rolecall.errors import EngineError, StaleTokenError
from rolecall.interfaces.engine_backend import Capability, MemoryTag
from rolecall.interfaces.role import WeightSource
from rolecall.testing.manager_rig import ManagerRig, now, ok, within

A, B = "m/replica-0", "m/replica-1"
SLEEPING, FAILED = ReplicaState.SLEEPING, ReplicaState.FAILED


def reached(outcomes: Outcomes) -> list[tuple[ReplicaState, bool]]:
    return [(outcome.state, outcome.confirmed) for outcome in outcomes]


def living(rig: ManagerRig, engine: str) -> int:
    """How many engine processes of a replica there are."""
    return sum(e.pid is not None and e.exit_code() is None for e in rig.worker(engine).backend.engines)


def test_awake_replicas_are_put_to_sleep_with_proof(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert reached(await rig.vacate(9)) == [(SLEEPING, True)] * 2
        assert rig.path(A)[-2:] == ["DRAINING", "SLEEPING"]
        await asyncio.sleep(1)  # told after the answer
        assert rig.published[-1] == {A: "SLEEPING", B: "SLEEPING"}
        assert reached(await rig.vacate(10)) == [(SLEEPING, True)] * 2, "a repeat looks again"
        assert ok(await rig.onload(11)), "the role can be woken afterwards"

    run(scenario)


def test_one_that_can_not_sleep_is_ended(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert reached(await rig.vacate(9)) == [(FAILED, True)]
        assert rig.worker(A).engine.exit_code() is not None
        assert "release" not in rig.worker(A).engine.calls
        await rig.manager.reconcile_once()
        assert rig.states() == ["FAILED"], "nothing is started: the devices are somebody else's now"

    run(scenario, replicas=1, capabilities=frozenset(Capability) - {Capability.SLEEP})


def test_one_that_does_not_release_is_ended_and_the_other_sleeps(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.release_keeps = frozenset({MemoryTag("weights")})
        outcomes = await rig.vacate(9)
        assert reached(outcomes) == [(FAILED, True), (SLEEPING, True)]
        assert "no process" in outcomes[0].detail, outcomes[0].detail
        assert living(rig, A) == 0

    run(scenario)


def test_a_sleeping_replica_is_not_taken_at_its_word(run: Any) -> None:
    """Its release was proved once; the fence asks whether it still holds."""

    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.offload(1))
        rig.worker(A).engine.kill()
        rig.worker(B).silent = True
        first, second = await rig.vacate(9)
        assert (first.state, first.confirmed) == (FAILED, True)
        assert (second.state, second.confirmed) == (FAILED, False)
        assert "did not end it: no answer to stop" in second.detail
        rig.worker(B).silent = False
        assert reached(await rig.vacate(10)) == [(FAILED, True)] * 2

    run(scenario)


@pytest.mark.parametrize("source", [WeightSource.STATIC, WeightSource.ACTOR])
def test_a_wake_without_answer_is_undone(run: Any, source: WeightSource) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.offload(1))
        rig.worker(A).silent = True
        assert not ok(await rig.onload(2, 20.0))
        rig.worker(A).silent = False
        assert living(rig, A) == 1
        assert "resume weights" in rig.worker(A).engine.calls, "it woke, and nobody heard of it"
        assert reached(await rig.vacate(9)) == [(FAILED, True)]
        assert living(rig, A) == 0

    run(scenario, replicas=1, source=source)


def test_it_waits_for_the_command_that_runs_and_names_it_if_that_takes_too_long(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.slow["release"] = 30.0
        offload = asyncio.ensure_future(rig.offload(1))
        await asyncio.sleep(1.0)
        (early,) = await rig.vacate(2, 5.0)
        assert not early.confirmed
        assert "waiting for offload" in early.detail
        assert now() < 7.0
        (late,) = await rig.vacate(3)
        assert (late.state, late.confirmed) == (SLEEPING, True)
        assert ok(await offload)

    run(scenario, replicas=1)


def test_commands_of_lower_tokens_are_refused_from_then_on(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.vacate(5))
        with pytest.raises(StaleTokenError):
            await rig.onload(4)
        with pytest.raises(StaleTokenError):
            await rig.vacate(4)
        assert rig.states() == ["SLEEPING"] * 2

    run(scenario)


# --- dead workers ---------------------------------------------------------------------------


def test_what_a_dead_worker_left_is_ended(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).dead.set()
        outcomes = await rig.vacate(9)
        assert reached(outcomes) == [(FAILED, True), (SLEEPING, True)]
        assert "killed process" in outcomes[0].detail
        assert ok(await rig.onload(10)), "with a new worker in the dead one's place"

    run(scenario)


@pytest.mark.parametrize("proof", Proof)
def test_what_outlives_the_kill_keeps_the_fence_whatever_is_claimed(run: Any, proof: Proof) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).dead.set()
        rig.reaper.left = (4711,)
        (outcome,) = await rig.vacate(9, proof=proof)
        assert (outcome.state, outcome.confirmed) == (FAILED, False)
        assert "process 4711 outlived SIGKILL" in outcome.detail
        rig.reaper.left = ()
        assert ok(await rig.vacate(9, proof=proof))

    run(scenario, replicas=1)


def test_a_gone_node_counts_only_with_the_operators_word(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).dead.set()
        rig.reaper.node_gone = True
        (outcome,) = await rig.vacate(9)
        assert not outcome.confirmed
        assert "has left the cluster" in outcome.detail
        assert "rolecall reconcile judge --proof node-gone" in outcome.detail
        (outcome,) = await rig.vacate(9, proof=Proof.NODE_GONE)
        assert outcome.confirmed
        assert outcome.detail.endswith("has left the cluster, and an operator says that its machine is gone")

    run(scenario, replicas=1)


# --- fences of single replicas --------------------------------------------------------------


def test_only_fenced_replicas_are_looked_at_when_fences_are_lifted(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert await rig.manager.lift_fences(within(10), proof=Proof.NODE_GONE) == ()
        old = rig.worker(A)
        old.dead.set()
        rig.reaper.node_gone = True
        await rig.manager.reconcile_once()
        (outcome,) = await rig.manager.lift_fences(within(10), proof=Proof.PROCESS_GONE)
        assert not outcome.confirmed
        (outcome,) = await rig.manager.lift_fences(within(10), proof=Proof.NODE_GONE)
        assert (outcome.engine, outcome.confirmed) == (A, True)
        assert rig.states() == ["FAILED", "READY"], "the other one serves on"
        await rig.manager.reconcile_once()
        assert rig.worker(A) is not old
        assert rig.states() == ["READY", "READY"]
        assert rig.manager.view().engines[0].generation == 2

    run(scenario)


def test_nothing_is_vacated_once_the_role_shuts_down(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.manager.shutdown(within(60)))
        with pytest.raises(EngineError, match="shutting down"):
            await rig.vacate(9)

    run(scenario)
