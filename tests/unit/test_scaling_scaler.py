"""Scaling operations over real managers and fake engines, in virtual time: every end that one may come to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from rolecall.engines.deadline import LoopClock
from rolecall.engines.elastic_replicas import QUIET_S
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.worker_handle import WorkerSlot
from rolecall.errors import (
    EngineError,
    ScaleConflictError,
    ScaleRefused,
    TransitionError,
    UnknownScaleOperationError,
)
from rolecall.ids import EngineId, ModelId, RoleName
from rolecall.interfaces.engine_backend import FromDisk, FromTensors
from rolecall.interfaces.role import WeightSource
from rolecall.scaling.change import Bounds
from rolecall.scaling.fleet import ModelFleet
from rolecall.scaling.request import OnPartial, ScaleIn, ScaleOut, ScaleRequest
from rolecall.scaling.scale_state import STARTS, TRANSITIONS, ScaleState
from rolecall.scaling.scaler import REMEMBERED, RoleScaler
from rolecall.testing.fake_engine import Script
from rolecall.testing.fake_workers import fake_slot
from rolecall.testing.manager_rig import ManagerRig, now, ok, within
from rolecall.testing.virtual_time import run_virtual
from rolecall.transitions import require_transition

FIRST, SECOND, THIRD, FOURTH = (f"m/replica-{index}" for index in range(4))
DISK = FromDisk(path=Path("/"))


class Devices:
    """A few devices; ``unreturned`` ones can't be given back yet."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.taken: set[str] = set()
        self.unreturned: set[str] = set()
        self.slow_s = 0.0
        self.looking_s = 0.0

    async def take(self, engine: EngineId) -> Sequence[WorkerSlot]:
        await self.room([engine])
        self.taken.add(engine)
        await asyncio.sleep(self.slow_s)
        return [fake_slot(engine)]

    async def room(self, engines: Sequence[EngineId]) -> None:
        await asyncio.sleep(self.looking_s)
        if len(engines) > self.free - len(self.taken):
            raise ScaleRefused(f"no room for {', '.join(engines)}")

    async def give_back(self, engine: EngineId) -> None:
        if engine in self.unreturned:
            raise EngineError(f"the placement group of {engine} is still there")
        self.taken.discard(engine)


class Scaling:
    """A rig with a scaler; ``most`` replicas, ``free`` devices."""

    def __init__(self, rig: ManagerRig, *, most: int | None = 4, free: int = 3) -> None:
        self.rig = rig
        self.devices = Devices(free)
        fleet = ModelFleet(
            Bounds(model=ModelId("m"), most=most, external=True),
            rig.manager.elastic,
            devices=self.devices,
            at_url=lambda engine, url, _: evolve(fake_slot(engine), url=url),
            drain_grace_s=1.0,
            clock=LoopClock(),
        )
        self.scaler = RoleScaler(RoleName("judge"), {ModelId("m"): fleet}, clock=LoopClock(), emit=rig.emit)

    async def end_of(self, request: ScaleRequest) -> dict[str, Any]:
        begun = await self.scaler.begin(request)
        return await self.scaler.status(begun["id"], wait_s=1e6)

    def members(self) -> dict[str, str]:
        return {entry["engine"]: entry["state"] for entry in self.rig.manager.status()}

    def busy(self, engine: str) -> Callable[[], None]:
        """Have a request stay inside a replica's door; returns what ends it."""
        book = self.rig.worker(engine).door.book
        book.take()
        return book.give_back


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    def run(scenario: Callable[[Scaling], Awaitable[Any]], **options: Any) -> Any:
        scaling = {key: options.pop(key) for key in ("most", "free") if key in options}

        async def main() -> Any:
            settings: dict[str, Any] = {"source": WeightSource.ACTOR, "shared": False, "replicas": 1}
            rig = ManagerRig(tmp_path, **{**settings, **options})
            assert ok(await rig.manager.start())
            return await scenario(Scaling(rig, **scaling))

        return run_virtual(main())

    return run


# --- out --------------------------------------------------------------------------------


def test_out_to_a_total_and_in_again_the_last_first(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        out = await s.end_of(ScaleOut(total=4))
        assert (out["state"], out["before"], out["reached"], out["left"]) == ("DONE", 1, 4, {})
        assert s.members() == dict.fromkeys((FIRST, SECOND, THIRD, FOURTH), "READY")
        assert s.devices.taken == {SECOND, THIRD, FOURTH}
        back = await s.end_of(ScaleIn(total=2))
        assert (back["state"], back["reached"]) == ("DONE", 2)
        assert [step["engine"] for step in back["replicas"]] == [FOURTH, THIRD], "last in, first out"
        assert s.members() == dict.fromkeys((FIRST, SECOND), "READY")
        assert s.devices.taken == {SECOND}
        assert s.rig.worker(FOURTH).disposed
        again = await s.end_of(ScaleOut(total=3))
        assert [step["engine"] for step in again["replicas"]] == ["m/replica-4"], "no name is used twice"

    run(scenario)


def test_what_is_met_already_is_done_at_once(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        for request in (ScaleOut(total=1), ScaleIn(total=1)):
            done = await s.end_of(request)
            assert (done["state"], done["replicas"], done["reason"]) == ("DONE", [], "nothing was to be done")

    run(scenario)


def test_a_newcomer_has_the_current_weights_before_anybody_hears_of_it(run: Any) -> None:
    """Pitfall 16"""

    async def scenario(s: Scaling) -> None:
        assert ok(await s.rig.manager.update_weights(DISK, "7", within(60)))
        s.rig.published.clear()
        assert (await s.end_of(ScaleOut(total=2)))["state"] == "DONE"
        assert s.rig.worker(SECOND).engine._version == "7"
        assert s.rig.path(SECOND) == ["STARTING", "ONLOADING", "READY"]
        calls = [call.split()[0] for call in s.rig.worker(SECOND).engine.calls]
        assert "update_weights" in calls
        shown = [states[SECOND] for states in s.rig.published if SECOND in states]
        assert list(dict.fromkeys(shown)) == ["STARTING", "READY"]

    run(scenario)


def test_a_newcomer_waits_for_weights_that_can_not_be_had_again(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        assert ok(await s.rig.manager.update_weights(FromTensors(serialized=("0",)), "7", within(60)))
        out = await s.end_of(ScaleOut(total=2))
        assert out["state"] == "DONE"
        assert "the next update brings it back" in out["replicas"][0]["detail"]
        assert s.members()[SECOND] == "ONLOADING"
        assert ok(await s.rig.manager.update_weights(DISK, "8", within(60)))
        assert s.members()[SECOND] == "READY"

    run(scenario)


def test_a_start_that_takes_long_holds_up_neither_updates_nor_hand_overs(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        s.rig.workers.scripts[SECOND] = Script(start_takes_s=200.0)
        begun = await s.scaler.begin(ScaleOut(total=2))
        await asyncio.sleep(10)
        before = now()
        assert ok(await s.rig.manager.update_weights(DISK, "7", within(60)))
        assert ok(await s.rig.offload())
        assert ok(await s.rig.onload(token=2))
        assert now() - before < 60
        assert s.members() == {FIRST: "READY", SECOND: "STARTING"}
        assert (await s.scaler.status(begun["id"], 1e6))["state"] == "DONE"
        assert s.rig.worker(SECOND).engine._version == "7"

    run(scenario)


def test_a_role_asleep_scales_its_sleeping_replicas(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        assert ok(await s.rig.offload(token=1))
        assert (await s.end_of(ScaleOut(total=3)))["state"] == "DONE"
        assert s.members() == dict.fromkeys((FIRST, SECOND, THIRD), "SLEEPING")
        assert "READY" not in s.rig.path(SECOND)
        assert (await s.end_of(ScaleIn(total=2)))["state"] == "DONE"
        assert ok(await s.rig.onload(token=2))
        assert s.members() == dict.fromkeys((FIRST, SECOND), "READY")

    run(scenario, shared=True)


def test_a_failed_newcomer_is_ended_and_the_others_are_kept(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        s.rig.workers.scripts[THIRD] = Script(start_error="out of memory")
        out = await s.end_of(ScaleOut(total=4))
        assert (out["state"], out["reached"], out["wanted"], out["left"]) == ("PARTIAL", 3, 4, {})
        assert "out of memory" in out["reason"]
        assert s.members() == dict.fromkeys((FIRST, SECOND, FOURTH), "READY")
        assert s.devices.taken == {SECOND, FOURTH}

    run(scenario)


def test_by_policy_all_come_or_none(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        s.rig.workers.scripts[THIRD] = Script(start_error="out of memory")
        out = await s.end_of(ScaleOut(total=4, on_partial=OnPartial.ROLL_BACK))
        assert (out["state"], out["reached"], out["left"]) == ("ROLLED_BACK", 1, {})
        assert [step["undone"] for step in out["replicas"]] == [True, False, True]
        assert s.members() == {FIRST: "READY"}
        assert not s.devices.taken

    run(scenario)


def test_if_none_comes_it_failed(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        s.rig.workers.scripts[SECOND] = Script(start_error="out of memory")
        for policy in OnPartial:
            s.rig.workers.scripts[THIRD] = Script(start_error="out of memory")
            out = await s.end_of(ScaleOut(total=2, on_partial=policy))
            assert (out["state"], out["reached"]) == ("FAILED", 1)
        assert s.members() == {FIRST: "READY"}
        assert not s.devices.taken

    run(scenario)


def test_what_could_not_be_cleaned_is_named_and_tried_by_the_next_operation(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        s.rig.workers.scripts[SECOND] = Script(start_error="out of memory")
        s.devices.unreturned.add(SECOND)
        out = await s.end_of(ScaleOut(total=2))
        assert out["state"] == "FAILED"
        assert "still there" in out["left"][SECOND]
        again = await s.end_of(ScaleOut(total=1))
        assert again["state"] == "PARTIAL"
        assert SECOND in again["left"]
        s.devices.unreturned.clear()
        assert (await s.end_of(ScaleOut(total=1)))["left"] == {}
        assert not s.devices.taken

    run(scenario)


def test_an_end_that_is_not_confirmed_keeps_the_devices(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        assert (await s.end_of(ScaleOut(total=2)))["state"] == "DONE"
        s.rig.worker(SECOND).silent = True
        back = await s.end_of(ScaleIn(total=1, force=True))
        assert back["state"] == "PARTIAL"
        assert "keeps its devices" in back["left"][SECOND]
        assert s.members() == {FIRST: "READY", SECOND: "STOPPING"}
        assert s.devices.taken == {SECOND}
        s.rig.worker(SECOND).silent = False
        assert (await s.end_of(ScaleIn(total=1)))["left"] == {}
        assert s.members() == {FIRST: "READY"}
        assert not s.devices.taken

    run(scenario)


# --- in, under traffic ------------------------------------------------------------------


def test_one_that_goes_leaves_discovery_first_and_waits_for_its_requests(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        assert (await s.end_of(ScaleOut(total=2)))["state"] == "DONE"
        permit = s.busy(SECOND)
        door = s.rig.worker(SECOND).door
        door.calls.clear()
        begun = await s.scaler.begin(ScaleIn(total=1))
        await asyncio.sleep(30)
        assert s.rig.published[-1] == {FIRST: "READY", SECOND: "DRAINING"}
        assert door.calls == [], "whoever is on the way still gets in"
        late = s.busy(SECOND)
        permit()
        await asyncio.sleep(30)
        assert s.members()[SECOND] == "DRAINING"
        late()
        quiet_s = now()
        assert (await s.scaler.status(begun["id"], 1e6))["state"] == "DONE"
        assert now() - quiet_s >= QUIET_S
        assert door.calls == ["door.stop"]

    run(scenario)


def test_one_that_stays_busy_stays_unless_it_is_forced(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        assert (await s.end_of(ScaleOut(total=2)))["state"] == "DONE"
        s.busy(SECOND)
        back = await s.end_of(ScaleIn(total=1, timeout_s=100))
        assert (back["state"], back["reached"]) == ("FAILED", 2)
        assert "stays after all" in back["reason"]
        assert s.members() == {FIRST: "READY", SECOND: "READY"}
        assert "door.close" not in s.rig.worker(SECOND).door.calls
        began = now()
        assert (await s.end_of(ScaleIn(total=1, force=True)))["state"] == "DONE"
        assert now() - began < 10
        assert s.members() == {FIRST: "READY"}

    run(scenario)


def test_one_that_was_put_back_has_the_weights_that_came_meanwhile(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        assert (await s.end_of(ScaleOut(total=2)))["state"] == "DONE"
        permit = s.busy(SECOND)
        begun = await s.scaler.begin(ScaleIn(total=1))
        await asyncio.sleep(10)
        assert ok(await s.rig.manager.update_weights(DISK, "7", within(60)))
        assert s.rig.worker(SECOND).engine._version == "0", "it is apart, and answers whom it has"
        await s.scaler.cancel(begun["id"])
        asyncio.get_running_loop().call_later(5, permit)
        back = await s.scaler.status(begun["id"], 1e6)
        assert (back["state"], back["reached"]) == ("CANCELLED", 2)
        assert s.members()[SECOND] == "READY"
        assert s.rig.worker(SECOND).engine._version == "7"

    run(scenario)


def test_by_policy_all_go_or_none(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        assert (await s.end_of(ScaleOut(total=3)))["state"] == "DONE"
        s.busy(SECOND)
        back = await s.end_of(ScaleIn(total=1, timeout_s=60, on_partial=OnPartial.ROLL_BACK))
        assert (back["state"], back["reached"]) == ("ROLLED_BACK", 3)
        assert s.members() == dict.fromkeys((FIRST, SECOND, THIRD), "READY")
        kept = await s.end_of(ScaleIn(total=1, timeout_s=60))
        assert (kept["state"], kept["reached"]) == ("PARTIAL", 2)
        assert s.members() == dict.fromkeys((FIRST, SECOND), "READY")

    run(scenario)


def test_a_replica_that_dies_while_it_is_drained_is_gone(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        assert (await s.end_of(ScaleOut(total=2)))["state"] == "DONE"
        s.busy(SECOND)
        begun = await s.scaler.begin(ScaleIn(total=1))
        await asyncio.sleep(5)
        s.rig.worker(SECOND).dead.set()
        assert (await s.scaler.status(begun["id"], 1e6))["state"] == "DONE"
        assert s.members() == {FIRST: "READY"}
        assert not s.devices.taken

    run(scenario)


# --- one at a time, cancel, status ------------------------------------------------------


def test_a_concurrent_operation_is_refused_and_a_dry_run_is_not(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        s.rig.workers.scripts[SECOND] = Script(start_takes_s=50.0)
        begun = await s.scaler.begin(ScaleOut(total=2))
        for request in (ScaleOut(total=3), ScaleIn(total=1)):
            with pytest.raises(ScaleConflictError, match=begun["id"]):
                await s.scaler.begin(request)
        dry = await s.scaler.begin(ScaleOut(total=3, dry_run=True))
        assert (dry["id"], dry["state"], dry["wanted"]) == (None, "PLANNED", 3)
        assert (await s.scaler.status(begun["id"], 1e6))["state"] == "DONE"
        assert len(s.scaler.operations()) == 1
        assert (await s.end_of(ScaleIn(total=1)))["state"] == "DONE"

    run(scenario)


def test_two_that_begin_in_the_same_moment_are_one(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        both = await asyncio.gather(
            *(s.scaler.begin(ScaleOut(total=2)) for _ in range(2)), return_exceptions=True
        )
        assert sum(isinstance(each, ScaleConflictError) for each in both) == 1

    run(scenario)


@pytest.mark.parametrize("slow_s", [0.0, 20.0])
def test_cancelling_gives_up_what_starts_and_keeps_what_has_come(run: Any, slow_s: float) -> None:
    async def scenario(s: Scaling) -> None:
        s.rig.workers.scripts[THIRD] = Script(start_takes_s=500.0)
        s.devices.slow_s = slow_s
        begun = await s.scaler.begin(ScaleOut(total=3))
        await asyncio.sleep(10)
        assert (await s.scaler.cancel(begun["id"]))["state"] == "CANCELLING"
        assert (await s.scaler.cancel(begun["id"]))["state"] == "CANCELLING", "a repeat does nothing"
        ended = await s.scaler.status(begun["id"], 1e6)
        reached = 1 if slow_s else 2
        assert (ended["state"], ended["reached"]) == ("CANCELLED", reached)
        assert now() < 200
        assert len(s.members()) == reached
        assert len(s.devices.taken) == reached - 1
        assert (await s.scaler.cancel(begun["id"]))["state"] == "CANCELLED"

    run(scenario)


def test_cancelled_with_roll_back_none_has_come(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        s.rig.workers.scripts[THIRD] = Script(start_takes_s=500.0)
        begun = await s.scaler.begin(ScaleOut(total=3, on_partial=OnPartial.ROLL_BACK))
        await asyncio.sleep(10)
        await s.scaler.cancel(begun["id"])
        assert (await s.scaler.status(begun["id"], 1e6))["state"] == "ROLLED_BACK"
        assert s.members() == {FIRST: "READY"}
        assert not s.devices.taken

    run(scenario)


def test_the_time_of_an_operation_ends(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        s.rig.workers.scripts[SECOND] = Script(start_takes_s=5000.0)
        out = await s.end_of(ScaleOut(total=2, timeout_s=100))
        assert out["state"] == "FAILED"
        assert now() < 300
        assert s.members() == {FIRST: "READY"}
        assert not s.devices.taken

    run(scenario)


def test_a_status_waits_and_unknown_operations_are_told(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        s.rig.workers.scripts[SECOND] = Script(start_takes_s=50.0)
        begun = await s.scaler.begin(ScaleOut(total=2))
        assert (await s.scaler.status(begun["id"], wait_s=10))["state"] == "RUNNING"
        with pytest.raises(UnknownScaleOperationError, match=begun["id"]):
            await s.scaler.status("other")
        with pytest.raises(UnknownScaleOperationError):
            await s.scaler.cancel("other")
        await s.scaler.status(begun["id"], 1e6)
        for _ in range(REMEMBERED):
            await s.end_of(ScaleOut(total=2))
        with pytest.raises(UnknownScaleOperationError):
            await s.scaler.status(begun["id"])

    run(scenario)


def test_a_role_that_shuts_down_leaves_no_newcomer(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        s.rig.workers.scripts[SECOND] = Script(start_takes_s=500.0)
        await s.scaler.begin(ScaleOut(total=2))
        await asyncio.sleep(10)
        await s.scaler.close()
        assert ok(await s.rig.manager.shutdown(within(60)))
        assert s.members() == {}
        assert s.rig.worker(SECOND).disposed
        with pytest.raises(ScaleRefused, match="shutting down"):
            await s.scaler.begin(ScaleOut(total=2))

    run(scenario)


def test_what_looks_for_room_while_the_role_shuts_down_begins_nothing(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        s.devices.looking_s = 5.0
        begun = asyncio.create_task(s.scaler.begin(ScaleOut(total=2)))
        await asyncio.sleep(1)
        await s.scaler.close()
        assert ok(await s.rig.manager.shutdown(within(60)))
        with pytest.raises(ScaleRefused, match="shutting down"):
            await begun
        await asyncio.sleep(60)
        assert (s.members(), s.devices.taken) == ({}, set())

    run(scenario)


# --- what is allowed --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (ScaleOut(total=5), "max_replicas is 4"),
        (ScaleOut(total=4), "no room for m/replica-1, m/replica-2, m/replica-3"),
        (ScaleIn(total=3), "fewer than the 3"),
        (ScaleOut(), "either a total, or URLs"),
        (ScaleOut(total=2, urls=("http://a:1",)), "either a total, or URLs"),
        (ScaleOut(total=2, model="other"), "has no model 'other'; it has: m"),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_what_is_not_allowed_changes_nothing(
    run: Any, request_: ScaleRequest, why: str, dry_run: bool
) -> None:
    async def scenario(s: Scaling) -> None:
        with pytest.raises(ScaleRefused, match=why):
            await s.scaler.begin(evolve(request_, dry_run=dry_run))
        assert s.members() == {FIRST: "READY"}
        assert s.scaler.operations() == []

    run(scenario, free=2)


def test_the_replicas_of_the_job_file_stay(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        for force in (False, True):
            with pytest.raises(ScaleRefused, match="the 2 that the job file asks for stay"):
                await s.scaler.begin(ScaleIn(total=1, force=force))
        with pytest.raises(ScaleRefused, match="to have fewer, scale in"):
            await s.scaler.begin(ScaleOut(total=1))

    run(scenario, replicas=2)


def test_a_model_without_max_replicas_is_not_scaled(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        for request in (ScaleOut(total=2), ScaleIn(total=1)):
            with pytest.raises(ScaleRefused, match="max_replicas in its table"):
                await s.scaler.begin(request)

    run(scenario, most=None)


def test_engines_elsewhere_come_by_url_once_and_take_no_device(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        urls = ("http://a:1", "http://b:1")
        out = await s.end_of(ScaleOut(urls=urls))
        assert [step["url"] for step in out["replicas"]] == list(urls)
        assert not s.devices.taken
        again = await s.end_of(ScaleOut(urls=(*urls, "http://c:1")))
        assert [step["url"] for step in again["replicas"]] == ["http://c:1"]
        assert (await s.end_of(ScaleIn(total=1)))["reached"] == 1

    run(scenario, free=0)


# --- the machine ------------------------------------------------------------------------


@pytest.mark.parametrize("before", ScaleState)
@pytest.mark.parametrize("after", ScaleState)
def test_the_door_asks_the_table(run: Any, before: ScaleState, after: ScaleState) -> None:
    if after in TRANSITIONS[before]:
        require_transition("it", TRANSITIONS, before, after)
    else:
        with pytest.raises(TransitionError):
            require_transition("it", TRANSITIONS, before, after)


def test_every_state_is_reached_and_told(run: Any) -> None:
    reached = set(STARTS)
    for state in ScaleState:
        reached |= set(TRANSITIONS[state])
    assert reached == set(ScaleState)

    async def scenario(s: Scaling) -> None:
        await s.end_of(ScaleOut(total=2))
        told = [event for event in s.rig.events if event["kind"] == "scale.state"]
        assert [(event["from"], event["to"]) for event in told] == [(None, "RUNNING"), ("RUNNING", "DONE")]
        assert told[0]["engines"] == [SECOND]

    run(scenario)


def test_replicas_apart_are_shown_but_never_commanded(run: Any) -> None:
    async def scenario(s: Scaling) -> None:
        s.rig.workers.scripts[SECOND] = Script(start_takes_s=100.0)
        await s.scaler.begin(ScaleOut(total=2))
        await asyncio.sleep(10)
        outcomes = await s.rig.offload()
        assert [outcome.engine for outcome in outcomes] == [FIRST]
        assert s.members()[SECOND] == ReplicaState.STARTING

    run(scenario)
