"""Where a role's replicas stand, as a restarted coordinator asks: what is confirmed, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import StaleTokenError
from rolecall.testing.manager_rig import ManagerRig, now, ok

A, B = "m/replica-0", "m/replica-1"


def test_replicas_that_are_awake_or_asleep_are_confirmed_and_stay_as_they_are(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        awake = await rig.account(1)
        assert ok(awake)
        assert {outcome.state for outcome in awake} == {ReplicaState.READY}
        assert ok(await rig.offload(2))
        told = len(rig.events)
        asleep = await rig.account(3)
        assert ok(asleep)
        assert {outcome.state for outcome in asleep} == {ReplicaState.SLEEPING}
        assert len(rig.events) == told, "it changes nothing"

    run(scenario)


def test_an_engine_that_the_look_finds_otherwise_is_not_confirmed(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).engine.kill()
        first, second = await rig.account(1)
        assert not first.confirmed
        assert "ended" in first.detail
        assert second.confirmed
        assert rig.states() == ["READY", "READY"], "what it means for the replica is the next look's to say"

    run(scenario)


def test_a_worker_without_an_answer_and_a_failed_replica_are_not_confirmed(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).silent = True
        rig.worker(B).dead.set()
        assert [outcome.confirmed for outcome in await rig.account(1)] == [False, False]
        await rig.manager.look()
        assert rig.states()[1] == "FAILED"
        assert [outcome.confirmed for outcome in await rig.account(2)] == [False, False]

    run(scenario)


def test_it_waits_for_what_runs_and_then_tells_how_that_ended(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.slow["release"] = 20.0
        offload = asyncio.ensure_future(rig.offload(1))
        await asyncio.sleep(1.0)
        account = await rig.account(2)
        assert now() >= 20.0
        assert offload.done()
        assert {outcome.state for outcome in account} == {ReplicaState.SLEEPING}
        assert ok(account)

    run(scenario)


def test_what_does_not_end_in_time_is_not_confirmed(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.slow["release"] = 50.0
        offload = asyncio.ensure_future(rig.offload(1, seconds=100.0))
        await asyncio.sleep(1.0)
        assert not any(outcome.confirmed for outcome in await rig.account(2, seconds=10.0))
        await offload

    run(scenario)


def test_no_command_of_the_former_coordinator_is_taken_any_more(run: Any) -> None:
    """Neither one that comes late nor one that waits for its turn."""

    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.slow["release"] = 20.0
        running = asyncio.ensure_future(rig.offload(1))
        await asyncio.sleep(1.0)
        waiting = asyncio.ensure_future(rig.onload(2))
        await asyncio.sleep(1.0)
        account = await rig.account(3)
        with pytest.raises(StaleTokenError):
            await waiting
        with pytest.raises(StaleTokenError):
            await rig.onload(2)
        assert ok(await running)
        assert {outcome.state for outcome in account} == {ReplicaState.SLEEPING}
        assert rig.states() == ["SLEEPING", "SLEEPING"]

    run(scenario)
