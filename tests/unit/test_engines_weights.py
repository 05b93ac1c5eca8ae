"""New weights: who takes them, what a replica that lacks them may do, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.weight_operations import NEEDS, WeightOperation
from rolecall.errors import CapabilityError, EngineError
from rolecall.ids import EngineId, FencingToken
from rolecall.interfaces.engine_backend import (
    Capability,
    FromDisk,
    FromGroup,
    FromTensors,
    WeightsGroup,
    WeightUpdate,
)
from rolecall.interfaces.role import WeightSource
from rolecall.testing.manager_rig import ManagerRig, ok, within
from rolecall.testing.virtual_time import run_virtual

A, B = "m/replica-0", "m/replica-1"
READY, ONLOADING, SLEEPING, FAILED = (
    ReplicaState.READY,
    ReplicaState.ONLOADING,
    ReplicaState.SLEEPING,
    ReplicaState.FAILED,
)
TENSORS = FromTensors(serialized=("rank 0",))
BROADCAST = FromGroup(group="g", names=("w",), dtypes=("float32",), shapes=((2, 2),))
GROUP = WeightsGroup(name="g", master="10.0.0.1:29500", rank_offset=1, world_size=3, transport="gloo")


@pytest.fixture
def disk(tmp_path: Path) -> FromDisk:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    return FromDisk(path=folder)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    def run(scenario: Callable[[ManagerRig], Awaitable[Any]], **options: Any) -> Any:
        async def main() -> Any:
            rig = ManagerRig(tmp_path, **{"source": WeightSource.ACTOR, "shared": False, **options})
            assert ok(await rig.manager.start())
            return await scenario(rig)

        return run_virtual(main())

    return run


async def update(rig: ManagerRig, what: WeightUpdate, version: str, seconds: float = 60.0) -> Any:
    return await rig.manager.update_weights(what, version, within(seconds))


def versions(rig: ManagerRig) -> list[str | None]:
    """What the engines themselves report."""
    return [rig.worker(engine).engine._version for engine in (A, B)]


# --- the way of an update -----------------------------------------------------------------------


def test_replicas_are_fenced_drained_updated_and_opened_together(run: Any, disk: FromDisk) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.published.clear()
        rig.worker(B).script.slow["update_weights"] = 20.0
        assert ok(await update(rig, disk, "7"))
        assert rig.published == [{A: ONLOADING, B: ONLOADING}, {A: READY, B: READY}]
        assert versions(rig) == ["7", "7"]
        view = rig.manager.view()
        assert view.weight_version == "7"
        assert [engine.generation for engine in view.engines] == [1, 1], "the endpoint is the same"
        calls = [call.split()[0] for call in rig.worker(A).engine.calls]
        way = ["pause", "abort_all", "flush", "update_weights", "continue_generation", "weight_version"]
        assert [calls.index(name, calls.index("pause")) for name in way] == sorted(
            calls.index(name, calls.index("pause")) for name in way
        )
        (told,) = [event for event in rig.events if event["kind"] == "weights.update"]
        assert (told["source"], told["current"], told["updated"]) == ("disk", "7", [A, B])

    run(scenario)


def test_running_requests_end_before_the_weights_change(run: Any, disk: FromDisk) -> None:
    """Pitfall 20"""

    async def scenario(rig: ManagerRig) -> None:
        script = rig.worker(A).script
        script.running, script.flushes_needed = 3, 4
        assert ok(await update(rig, disk, "7"))
        calls = [call.split()[0] for call in rig.worker(A).engine.calls]
        assert calls.count("flush") == 4
        assert calls.index("update_weights") > max(i for i, call in enumerate(calls) if call == "flush")

    run(scenario)


def test_an_engine_that_reports_another_version_is_out_until_a_later_update(run: Any, disk: FromDisk) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.weight_version_after_update = "elsewhere"
        outcomes = {outcome.engine: outcome for outcome in await update(rig, disk, "7")}
        assert (outcomes[EngineId(A)].state, outcomes[EngineId(A)].confirmed) == (FAILED, False)
        assert "reports version 'elsewhere'" in outcomes[EngineId(A)].detail
        assert (outcomes[EngineId(B)].state, outcomes[EngineId(B)].confirmed) == (READY, True)
        assert rig.manager.view().weight_version == "7", "one replica has proved it"
        rig.worker(A).script.weight_version_after_update = None
        await asyncio.sleep(5.0)
        await rig.manager.reconcile_once()
        assert rig.states() == [READY, READY]
        assert versions(rig) == ["7", "7"]

    run(scenario)


def test_an_update_that_no_replica_took_leaves_the_version_as_it_was(run: Any, disk: FromDisk) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.broken["update_weights"] = EngineError("wrong shape")
        rig.worker(B).script.broken["update_weights"] = EngineError("wrong shape")
        assert not any(outcome.confirmed for outcome in await update(rig, disk, "7"))
        assert rig.states() == [FAILED, FAILED]
        assert rig.manager.view().weight_version == "0"
        await asyncio.sleep(5.0)
        await rig.manager.reconcile_once()
        assert rig.states() == [READY, READY]
        assert versions(rig) == ["0", "0"]

    run(scenario)


def test_files_that_are_not_there_touch_nothing(run: Any, tmp_path: Path) -> None:
    async def scenario(rig: ManagerRig) -> None:
        outcomes = await update(rig, FromDisk(path=tmp_path / "no such folder"), "7")
        assert not ok(outcomes)
        assert "does not exist on node 127.0.0.1" in outcomes[0].detail
        assert rig.states() == [READY, READY]
        assert versions(rig) == ["0", "0"]
        assert "pause" not in rig.worker(A).engine.calls

    run(scenario)


def test_an_engine_that_dies_in_an_update_is_rebuilt_with_the_new_weights(run: Any, disk: FromDisk) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.slow["update_weights"] = 50.0
        command = asyncio.ensure_future(update(rig, disk, "7"))
        await asyncio.sleep(5.0)
        rig.worker(A).engine.kill()
        rig.worker(A).script.slow.clear()
        outcomes = {outcome.engine: outcome for outcome in await command}
        assert not outcomes[EngineId(A)].confirmed
        await asyncio.sleep(5.0)
        await rig.manager.reconcile_once()
        assert rig.states() == [READY, READY]
        assert versions(rig) == ["7", "7"]
        assert rig.path(A)[-4:] == ["FAILED", "STARTING", "ONLOADING", "READY"]

    run(scenario)


# --- replicas that come back --------------------------------------------------------------------


def test_a_rebuilt_replica_has_the_current_weights_before_it_serves(run: Any, disk: FromDisk) -> None:
    """Pitfall 16"""

    async def scenario(rig: ManagerRig) -> None:
        assert ok(await update(rig, disk, "7"))
        rig.worker(A).engine.kill()
        rig.published.clear()
        opened: list[str | None] = []
        rig.before_publish = lambda: opened.extend(
            rig.worker(A).engine._version for view in rig.manager.view().engines[:1] if view.state is READY
        )
        await rig.manager.reconcile_once()
        assert rig.states() == [READY, READY]
        assert opened
        assert set(opened) == {"7"}, "READY was never shown with other weights"
        assert rig.path(A)[-4:] == ["FAILED", "STARTING", "ONLOADING", "READY"]
        assert rig.worker(A).engine.launch.weight_version == "0", "it started with the source's"

    run(scenario)


@pytest.mark.parametrize("kind", ["tensors", "group"])
def test_weights_that_cannot_be_had_again_keep_a_rebuilt_replica_out(run: Any, kind: str) -> None:
    """Pitfall 16"""

    async def scenario(rig: ManagerRig) -> None:
        if kind == "group":
            assert ok(await rig.manager.join_weights_group(GROUP, within(60)))
        assert ok(await update(rig, TENSORS if kind == "tensors" else BROADCAST, "7"))
        rig.worker(A).engine.kill()
        for _ in range(3):
            await rig.manager.reconcile_once()
            await asyncio.sleep(60.0)
        status = rig.manager.status()[0]
        assert status["state"] == "ONLOADING"
        assert "the next update brings it back" in status["reason"]
        assert len(rig.worker(A).backend.engines) == 2, "it waits, it is not started again and again"
        assert rig.worker(A).engine.calls.count("health_generate") >= 2, "it is looked at meanwhile"
        assert ok(await update(rig, TENSORS, "8"))
        assert rig.states() == [READY, READY]
        assert versions(rig) == ["8", "8"]

    run(scenario)


def test_a_waiting_replica_that_dies_is_rebuilt_and_waits_again(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await update(rig, TENSORS, "7"))
        rig.worker(A).engine.kill()
        await rig.manager.reconcile_once()
        rig.worker(A).engine.kill()
        await rig.manager.reconcile_once()
        assert rig.states() == [ONLOADING, READY]
        assert rig.manager.view().engines[0].generation == 3

    run(scenario)


def test_a_checkpoint_that_was_removed_keeps_a_rebuilt_replica_out(run: Any, disk: FromDisk) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await update(rig, disk, "7"))
        disk.path.rmdir()
        rig.worker(A).engine.kill()
        await rig.manager.reconcile_once()
        status = rig.manager.status()[0]
        assert status["state"] == "ONLOADING"
        assert f"{disk.path} does not exist" in status["reason"]
        disk.path.mkdir()
        await asyncio.sleep(5.0)
        await rig.manager.repair()
        assert rig.states() == [READY, READY]
        assert versions(rig) == ["7", "7"]

    run(scenario)


# --- sleepers -----------------------------------------------------------------------------------


def test_a_sleeper_gets_weights_from_disk_when_it_wakes(run: Any, disk: FromDisk) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.offload(1))
        outcomes = await update(rig, disk, "7")
        assert ok(outcomes)
        assert "gets weights '7' before it is opened" in outcomes[0].detail
        assert rig.states() == [SLEEPING, SLEEPING]
        assert rig.manager.view().weight_version == "7"
        assert versions(rig) == ["0", "0"]
        rig.published.clear()
        assert ok(await rig.onload(2))
        assert versions(rig) == ["7", "7"]
        assert rig.states() == [READY, READY]

    run(scenario, shared=True)


@pytest.mark.parametrize("what", [TENSORS, BROADCAST])
def test_what_cannot_be_kept_for_a_sleeper_is_refused(run: Any, what: WeightUpdate) -> None:
    async def scenario(rig: ManagerRig) -> None:
        if isinstance(what, FromGroup):
            assert ok(await rig.manager.join_weights_group(GROUP, within(60)))
        assert ok(await rig.offload(1))
        with pytest.raises(EngineError, match="wake the role first, or update from disk"):
            await update(rig, what, "7")
        assert rig.manager.view().weight_version == "0"
        assert rig.states() == [SLEEPING, SLEEPING]

    run(scenario, shared=True)


def test_a_waiting_replica_sleeps_and_wakes_without_being_opened(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await update(rig, TENSORS, "7"))
        rig.worker(A).engine.kill()
        await rig.manager.reconcile_once()
        assert rig.states() == [ONLOADING, READY]
        assert ok(await rig.offload(1))
        assert rig.states() == [SLEEPING, SLEEPING]
        outcomes = {outcome.engine: outcome for outcome in await rig.onload(2)}
        assert (outcomes[EngineId(A)].state, outcomes[EngineId(A)].confirmed) == (ONLOADING, True)
        assert "the next update brings it back" in outcomes[EngineId(A)].detail
        assert outcomes[EngineId(B)].state is READY
        assert ok(await update(rig, TENSORS, "8"))
        assert rig.states() == [READY, READY]

    run(scenario, shared=True)


def test_a_waiting_replica_is_taken_back_with_the_others(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await update(rig, TENSORS, "7"))
        rig.worker(A).engine.kill()
        await rig.manager.reconcile_once()
        assert ok(await rig.manager.retract(FencingToken(1), within(60)))
        assert rig.states() == [SLEEPING, SLEEPING]

    run(scenario, shared=True)


def test_an_engine_that_died_asleep_comes_back_with_the_promised_weights(run: Any, disk: FromDisk) -> None:
    """Pitfall 16"""

    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.offload(1))
        assert ok(await update(rig, disk, "7"))
        rig.worker(A).engine.kill()
        await rig.manager.reconcile_once()
        assert rig.states() == [FAILED, SLEEPING]
        assert ok(await rig.onload(2))
        assert versions(rig) == ["7", "7"]
        assert rig.worker(A).engine.calls.count("resume weights") == 0

    run(scenario, shared=True)


# --- names of versions --------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["", "  ", " 7", "default", "0"])
def test_a_version_has_to_be_a_name_for_new_weights(run: Any, disk: FromDisk, version: str) -> None:
    async def scenario(rig: ManagerRig) -> None:
        with pytest.raises(EngineError):
            await update(rig, disk, version)
        assert rig.path(A) == ["STARTING", "READY"]

    run(scenario)


def test_a_repeat_serves_who_lacks_the_weights_and_disturbs_nobody_else(run: Any, disk: FromDisk) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert ok(await update(rig, disk, "7"))
        paths = [rig.path(A), rig.path(B)]
        assert ok(await update(rig, disk, "7"))
        assert [rig.path(A), rig.path(B)] == paths

    run(scenario)


def test_a_version_names_weights_once_and_for_all(run: Any, disk: FromDisk, tmp_path: Path) -> None:
    """Pitfall 17"""

    async def scenario(rig: ManagerRig) -> None:
        other = FromDisk(path=tmp_path)
        assert ok(await update(rig, disk, "7"))
        for what in (other, TENSORS):
            with pytest.raises(EngineError, match="'7' is the version it has now"):
                await update(rig, what, "7")
        assert ok(await update(rig, other, "8"))
        with pytest.raises(EngineError, match="'7' is a version it has had"):
            await update(rig, other, "7")
        assert ok(await update(rig, disk, "7")), "back to the same files is no lie"

    run(scenario)


def test_two_updates_at_once_of_one_name_do_not_overwrite_each_other(run: Any, disk: FromDisk) -> None:
    """Pitfall 17"""

    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.slow["update_weights"] = 10.0
        first = asyncio.ensure_future(update(rig, disk, "7"))
        await asyncio.sleep(1.0)
        with pytest.raises(EngineError, match="'7' is the version it has now"):
            await update(rig, TENSORS, "7")
        assert ok(await first)

    run(scenario)


def test_models_that_share_their_served_name_keep_their_own_versions(
    run: Any, disk: FromDisk, tmp_path: Path
) -> None:
    """Pitfall 17"""

    async def scenario(rig: ManagerRig) -> None:
        (tmp_path / "other").mkdir()
        other = ManagerRig(tmp_path / "other", source=WeightSource.ACTOR, shared=False)
        assert ok(await other.manager.start())
        assert ok(await update(rig, disk, "7"))
        assert (rig.manager.view().weight_version, other.manager.view().weight_version) == ("7", "0")
        assert ok(await update(other, TENSORS, "7"))
        assert ok(await update(rig, disk, "8"))
        assert (rig.manager.view().weight_version, other.manager.view().weight_version) == ("8", "7")

    run(scenario)


# --- groups -------------------------------------------------------------------------------------


def test_replicas_join_with_ranks_of_their_own_and_stand_aside_for_it(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        joined: list[WeightsGroup] = []
        for engine in (A, B):
            target = rig.worker(engine).engine

            async def join(group: WeightsGroup) -> None:
                joined.append(group)

            target.join_weights_group = join  # type: ignore[method-assign]
        rig.published.clear()
        assert ok(await rig.manager.join_weights_group(GROUP, within(60)))
        assert [group.rank_offset for group in joined] == [1, 2]
        assert rig.published[0] == {A: ONLOADING, B: ONLOADING}
        assert rig.states() == [READY, READY]
        assert ok(await update(rig, BROADCAST, "7"))
        assert ok(await rig.manager.leave_weights_group("g", within(60)))
        assert "leave_weights_group g" in rig.worker(B).engine.calls
        assert await rig.manager.leave_weights_group("g", within(60)) == ()

    run(scenario)


def test_a_broadcast_to_a_replica_that_did_not_join_is_refused(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        with pytest.raises(EngineError, match="is not in group 'g'"):
            await update(rig, BROADCAST, "7")
        assert ok(await rig.manager.join_weights_group(GROUP, within(60)))
        rig.worker(A).engine.kill()
        await rig.manager.reconcile_once()
        with pytest.raises(EngineError, match=r"replica-0 .* is not in group 'g'"):
            await update(rig, BROADCAST, "7")
        assert rig.states() == [READY, READY]

    run(scenario)


def test_a_join_that_hangs_ends_by_its_deadline_and_costs_the_engine(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        rig.worker(A).script.slow["join_weights_group"] = 1000.0
        outcomes = {o.engine: o for o in await rig.manager.join_weights_group(GROUP, within(20))}
        assert (outcomes[EngineId(A)].state, outcomes[EngineId(A)].confirmed) == (FAILED, False)
        assert outcomes[EngineId(B)].confirmed
        rig.worker(A).script.slow.clear()
        await rig.manager.reconcile_once()
        assert rig.states() == [READY, READY]

    run(scenario)


# --- what is refused at the door ------------------------------------------------------------------


@pytest.mark.parametrize("operation", WeightOperation)
def test_static_weights_refuse_every_operation_by_name(run: Any, operation: WeightOperation) -> None:
    async def scenario(rig: ManagerRig) -> None:
        with pytest.raises(CapabilityError, match=f"{operation} is refused, its weights are STATIC"):
            rig.manager.require(operation)

    run(scenario, source=WeightSource.STATIC)


def test_static_models_publish_no_version_and_take_none(run: Any, disk: FromDisk) -> None:
    async def scenario(rig: ManagerRig) -> None:
        assert rig.manager.view().weight_version is None
        for work in (
            update(rig, disk, "7"),
            update(rig, TENSORS, "7"),
            update(rig, BROADCAST, "7"),
            rig.manager.join_weights_group(GROUP, within(5)),
            rig.manager.leave_weights_group("g", within(5)),
        ):
            with pytest.raises(CapabilityError, match="STATIC"):
                await work
        assert rig.path(A) == ["STARTING", "READY"]

    run(scenario, source=WeightSource.STATIC)


@pytest.mark.parametrize("operation", [each for each in WeightOperation if NEEDS[each] is None])
def test_what_rolecall_does_not_offer_is_refused_for_versioned_models_too(
    run: Any, operation: WeightOperation
) -> None:
    async def scenario(rig: ManagerRig) -> None:
        with pytest.raises(CapabilityError, match=f"{operation} is not offered; there is: .*from disk"):
            rig.manager.require(operation)

    run(scenario)


def test_what_the_backend_cannot_do_is_refused_before_anything_happens(run: Any) -> None:
    async def scenario(rig: ManagerRig) -> None:
        with pytest.raises(CapabilityError, match=r"can't do weight update from tensors; it can do: .*disk"):
            await update(rig, TENSORS, "7")
        assert rig.path(A) == ["STARTING", "READY"]

    run(scenario, capabilities=frozenset({Capability.SLEEP, Capability.UPDATE_FROM_DISK}))
