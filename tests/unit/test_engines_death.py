"""Every death at every moment: what was killed is gone or fenced, and the replica is never forgotten.

The matrix: an engine's process or its worker, killed at start, while serving, draining, asleep, waking,
and while weights change; with a reaper that gets rid of everything, and with one that does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolecall.engines import ports
from rolecall.engines.replica_state import ReplicaState
from rolecall.interfaces.engine_backend import FromDisk
from rolecall.interfaces.role import WeightSource
from rolecall.testing.manager_rig import ManagerRig, ok
from rolecall.testing.manager_rig import within as seconds
from rolecall.testing.virtual_time import run_virtual

A = "m/replica-0"
MOMENTS = ("start", "serving", "draining", "asleep", "waking", "updating")
VICTIMS = ("engine", "worker")


@pytest.fixture
def rig_of(tmp_path: Path) -> Callable[[], ManagerRig]:
    return lambda: ManagerRig(tmp_path, replicas=1, source=WeightSource.ACTOR)


async def reach(rig: ManagerRig, moment: str, checkpoint: Path) -> asyncio.Future[Any] | None:
    """Bring the replica to the moment; return the command that is under way then."""
    script = rig.worker(A).script
    command: asyncio.Future[Any] | None = None
    if moment == "start":
        script.start_takes_s = 50.0
        command = asyncio.ensure_future(rig.manager.start())
    else:
        assert ok(await rig.manager.start())
    match moment:
        case "draining":
            script.slow["release"] = 50.0
            command = asyncio.ensure_future(rig.offload(1))
        case "asleep":
            assert ok(await rig.offload(1))
        case "waking":
            assert ok(await rig.offload(1))
            script.slow["resume"] = 50.0
            command = asyncio.ensure_future(rig.onload(2))
        case "updating":
            script.slow["update_weights"] = 50.0
            update = rig.manager.update_weights(FromDisk(path=checkpoint), "7", seconds(100))
            command = asyncio.ensure_future(update)
        case _:
            pass
    await asyncio.sleep(3.0)
    script.start_takes_s = 0.0
    script.slow.clear()
    return command


async def kill(rig: ManagerRig, victim: str) -> None:
    worker = rig.worker(A)
    if victim == "worker":
        worker.dead.set()
    else:
        worker.engine.kill()


def engines_of(rig: ManagerRig, workers: list[Any]) -> list[Any]:
    return [engine for worker in workers for engine in worker.backend.engines]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", VICTIMS)
def test_nothing_is_orphaned_and_the_replica_comes_back(
    rig_of: Callable[[], ManagerRig], tmp_path: Path, victim: str, moment: str
) -> None:
    """Pitfalls 24 and 28"""

    async def scenario() -> None:
        rig = rig_of()
        workers = [rig.worker(A)]
        command = await reach(rig, moment, tmp_path)
        killed = rig.worker(A).engine
        await kill(rig, victim)
        if command is not None:
            await command
        for _ in range(3):
            await rig.manager.reconcile_once()
            await asyncio.sleep(10.0)
        assert killed.exit_code() is not None, "whatever happened, this engine is gone"
        assert [view.engine_id for view in rig.manager.view().engines] == [A], "never forgotten"
        assert rig.manager.status()[0]["fence"] is None
        assert ok(await rig.onload(5))
        workers.append(rig.worker(A))
        (view,) = rig.manager.view().engines
        assert (view.state, view.generation) == (ReplicaState.READY, 2)
        living = [engine for engine in engines_of(rig, workers) if engine.exit_code() is None]
        assert set(living) == {rig.worker(A).engine}
        assert "FAILED" in rig.path(A)
        assert rig.path(A)[-1] == "READY"

    run_virtual(scenario())


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_outlives_its_worker_is_fenced_and_named(
    rig_of: Callable[[], ManagerRig], tmp_path: Path, moment: str
) -> None:
    """Pitfall 24"""

    async def scenario() -> None:
        rig = rig_of()
        rig.reaper.left = (4711,)
        command = await reach(rig, moment, tmp_path)
        worker = rig.worker(A)
        await kill(rig, "worker")
        if command is not None:
            await command
        for _ in range(20):
            await rig.manager.reconcile_once()
            await asyncio.sleep(10.0)
        (status,) = rig.manager.status()
        assert status["state"] == "FAILED"
        assert "4711" in status["fence"]
        assert rig.worker(A) is worker, "nothing is started beside what may be left"
        assert len(worker.backend.engines) == 1
        assert rig.published[-1] == {A: "FAILED"}
        assert not ok(await rig.onload(5))

    run_virtual(scenario())


def test_a_killed_engine_is_out_of_discovery_by_the_next_look(rig_of: Callable[[], ManagerRig]) -> None:
    """Pitfall 13: nobody waits for the engine itself to sign off"""

    async def scenario() -> None:
        rig = rig_of()
        assert ok(await rig.manager.start())
        await kill(rig, "engine")
        await rig.manager.look()
        assert rig.published[-1] == {A: "FAILED"}

    run_virtual(scenario())


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_replacement_on_the_same_port_is_a_new_generation(
    rig_of: Callable[[], ManagerRig], monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """Pitfall 14"""
    monkeypatch.setattr(ports.random, "randrange", lambda stop: 77)

    async def scenario() -> None:
        rig = rig_of()
        assert ok(await rig.manager.start())
        (before,) = rig.manager.view().engines
        if victim == "worker":
            # The kernel gives a dead process's ports back; this one lives in the test.
            await rig.worker(A).host.stop(rig.manager._replicas[before.engine_id].stamp(0), seconds(5))  # type: ignore[arg-type]
        await kill(rig, victim)
        await rig.manager.reconcile_once()
        (after,) = rig.manager.view().engines
        assert after.base_url == before.base_url
        assert (after.state, after.generation) == (ReplicaState.READY, before.generation + 1)
        assert rig.manager.knows(str(before.base_url))

    run_virtual(scenario())
