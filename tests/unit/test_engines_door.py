"""The door's place in an engine's life: closed first, opened last, cut at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rolecall.engines.admission import wants_door
from rolecall.engines.deadline import Deadline, DeadlineExceededError, LoopClock
from rolecall.engines.fencing import Stamp
from rolecall.engines.handover import HandoverLimits, put_to_sleep, wake
from rolecall.engines.worker_handle import WorkerHealth
from rolecall.errors import (
    CanaryMismatchError,
    EngineError,
    EngineStartError,
    ReleaseNotProvedError,
)
from rolecall.guard.permits import DoorState
from rolecall.ids import FencingToken
from rolecall.interfaces.engine_backend import Capability, EngineFeatures, MemoryTag
from rolecall.interfaces.role import WeightSource
from rolecall.testing.fake_door import FakeDoor
from rolecall.testing.fake_engine import FAKE_TAGS, FakeEngine, Script, fake_launch
from rolecall.testing.fake_workers import FakeWorker, FakeWorkers, fake_slot
from rolecall.testing.manager_rig import ManagerRig
from rolecall.testing.virtual_time import run_virtual

LOOKS = {"running_requests", "memory"}


class Pair:
    """A started engine and its open door; ``calls`` are both's, in order."""

    def __init__(self, script: Script) -> None:
        self.engine = FakeEngine(fake_launch(), script)
        self.door = FakeDoor()
        self.door.calls = self.engine.calls

    @property
    def steps(self) -> list[str]:
        return [call for call in self.engine.calls if call not in LOOKS]

    async def sleep(self, *, grace_s: float = 0.0, seconds: float = 60.0) -> Any:
        return await put_to_sleep(
            self.engine,
            FAKE_TAGS,
            within(seconds),
            weight_source=WeightSource.STATIC,
            grace_s=grace_s,
            limits=HandoverLimits(),
            door=self.door,
        )

    async def wake(self, proof: Any) -> Any:
        return await wake(
            self.engine,
            FAKE_TAGS,
            within(60.0),
            weight_source=WeightSource.STATIC,
            expected=proof.identity,
            limits=HandoverLimits(),
            door=self.door,
        )


def within(seconds: float) -> Deadline:
    return Deadline.after(LoopClock(), seconds)


def now() -> float:
    return asyncio.get_running_loop().time()


def run_pair(scenario: Callable[[Pair], Awaitable[None]], script: Script | None = None) -> None:
    async def main() -> None:
        pair = Pair(script or Script())
        await pair.engine.start(1.0)
        pair.door.open()
        pair.engine.calls.clear()
        await scenario(pair)

    run_virtual(main())


# --- hand-overs ------------------------------------------------------------------------------


def test_a_sleep_closes_the_door_before_anything_else_and_a_wake_opens_it_after_everything() -> None:
    """Pitfall 4: admission opens only with all tags resident, and verified."""

    async def scenario(pair: Pair) -> None:
        proof = await pair.sleep()
        assert pair.steps == [
            "door.close",
            "canary",
            "pause",
            "abort_all",
            "flush",
            "door.drained",
            "release",
        ]
        assert pair.door.book.state is DoorState.CLOSED
        pair.engine.calls.clear()
        await pair.wake(proof)
        assert pair.engine.calls == [
            "resume weights",
            "resume kv_cache",
            "memory",
            "continue_generation",
            "canary",
            "door.open",
        ]

    run_pair(scenario)


def test_a_tag_that_stays_away_keeps_the_door_closed() -> None:
    """Pitfall 4: weights awake, cache still away: no request may come in."""

    async def scenario(pair: Pair) -> None:
        proof = await pair.sleep()
        with pytest.raises(EngineError, match=r"not resident .*kv_cache"):
            await pair.wake(proof)
        assert "continue_generation" not in pair.engine.calls
        assert pair.door.book.state is DoorState.CLOSED

    run_pair(scenario, Script(resume_leaves_away=frozenset({MemoryTag.KV_CACHE})))


def test_weights_lost_over_the_sleep_keep_the_door_closed() -> None:
    async def scenario(pair: Pair) -> None:
        proof = await pair.sleep()
        with pytest.raises(CanaryMismatchError, match="uniform"):
            await pair.wake(proof)
        assert pair.door.book.state is DoorState.CLOSED
        assert "door.open" not in pair.engine.calls

    run_pair(scenario, Script(loses_weights=True))


def test_a_release_that_lies_leaves_the_door_closed() -> None:
    """Pitfall 2, seen from the callers: nobody is let in to an engine in an unknown condition."""

    async def scenario(pair: Pair) -> None:
        with pytest.raises(ReleaseNotProvedError):
            await pair.sleep()
        assert pair.door.book.state is DoorState.CLOSED

    run_pair(scenario, Script(release_frees=0.0))


def test_requests_inside_may_end_by_themselves_within_the_grace() -> None:
    async def scenario(pair: Pair) -> None:
        pair.door.book.take()
        asyncio.get_running_loop().call_later(4.0, pair.door.book.give_back)
        proof = await pair.sleep(grace_s=10.0)
        assert 3.99 <= now() < 4.5
        assert not proof.aborted
        assert pair.steps.index("door.drained") < pair.steps.index("pause")

    run_pair(scenario)


def test_a_stuck_request_is_aborted_until_its_answer_has_ended() -> None:
    """It needs another decode step: the engine is quiet by its own word before the answer is out."""

    async def scenario(pair: Pair) -> None:
        pair.door.book.take()
        asyncio.get_running_loop().call_later(2.5, pair.door.book.give_back)
        proof = await pair.sleep(grace_s=2.0)
        assert proof.aborted
        assert pair.engine.calls.count("flush") > pair.engine.script.flushes_needed  # type: ignore[operator]
        assert pair.steps[-2:] == ["door.drained", "release"]

    run_pair(scenario, Script(running=1, flushes_needed=3))


def test_a_permit_that_never_returns_is_no_confirmation_and_nothing_is_released() -> None:
    """Pitfall 21: a zombie request must not be released under; the error says what is missing."""

    async def scenario(pair: Pair) -> None:
        pair.door.book.take()
        with pytest.raises(DeadlineExceededError, match="0 requests run, flush succeeds, 1 permits are out"):
            await pair.sleep(grace_s=2.0, seconds=20.0)
        assert now() <= 20.1
        assert "release" not in pair.engine.calls
        with pytest.raises(EngineError, match="1 permits are out"):
            pair.door.open()

    run_pair(scenario)


@pytest.mark.parametrize("script", [Script(running=1, quiet_is_a_lie=True, flushes_needed=9), Script()])
def test_no_request_is_let_in_between_the_close_and_the_opening(script: Script) -> None:
    """Pitfall 20: no dispatch while paused; a caller tries at every step of both hand-overs."""

    async def scenario(pair: Pair) -> None:
        seen: dict[str, DoorState] = {}
        call = pair.engine._call

        async def watched(name: str) -> None:
            seen[name] = pair.door.book.state
            await call(name)

        pair.engine._call = watched  # type: ignore[method-assign]
        await pair.wake(await pair.sleep())
        assert {"canary", "pause", "flush", "release", "resume weights", "continue_generation"} <= set(seen)
        assert DoorState.OPEN not in seen.values()
        assert pair.door.book.state is DoorState.OPEN

    run_pair(scenario, script)


# --- the host ----------------------------------------------------------------------------------


def run_worker(tmp_path: Path, scenario: Callable[[FakeWorker], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(FakeWorkers(tmp_path)(fake_slot("m/replica-0")))

    run_virtual(main())


STAMP = Stamp(incarnation=1, token=FencingToken(0))


async def look(worker: FakeWorker) -> WorkerHealth:
    return await worker.host.health(generate=False, deadline=within(5))


def test_the_published_address_is_the_door_s_and_the_engine_listens_on_loopback(tmp_path: Path) -> None:
    async def scenario(worker: FakeWorker) -> None:
        started = await worker.host.start(STAMP, None, within(30))
        assert started.base_url == worker.door.url != worker.engine.base_url
        assert (await worker.host.describe(within(1))).base_url == worker.door.url
        assert worker.engine.launch.host == "127.0.0.1"
        assert worker.door.engine_url == worker.engine.base_url
        assert worker.door.served_model_name == worker.engine.launch.served_model_name
        assert worker.door.calls == ["door.start", "door.open"]
        assert (await look(worker)).permits == 0
        worker.door.book.take()
        assert (await look(worker)).permits == 1

    run_worker(tmp_path, scenario)


def test_a_start_is_verified_before_the_door_opens(tmp_path: Path) -> None:
    async def scenario(worker: FakeWorker) -> None:
        worker.script.broken["canary"] = EngineError("no canary")
        with pytest.raises(EngineStartError, match="no canary"):
            await worker.host.start(STAMP, None, within(30))
        assert worker.door.calls == ["door.start", "door.stop"]
        assert (await look(worker)).permits is None

    run_worker(tmp_path, scenario)


@pytest.mark.parametrize("step", ["release", "resume", "canary", "pause"])
def test_a_hand_over_that_fails_leaves_the_door_closed_and_only_a_stop_is_left(
    tmp_path: Path, step: str
) -> None:
    """Pitfall 3: a step that timed out is attempted once, then nothing but a stop."""

    async def scenario(worker: FakeWorker) -> None:
        await worker.host.start(STAMP, None, within(30))
        if step == "resume":
            await worker.host.sleep(STAMP, 0.0, within(30))
        worker.script.slow[step] = 1000.0
        command = worker.host.wake if step == "resume" else worker.host.sleep
        with pytest.raises(DeadlineExceededError, match=step):
            await command(STAMP, *((None,) if step == "resume" else (0.0,)), within(20))
        assert worker.door.book.state is not DoorState.OPEN
        worker.script.slow.clear()
        for refused in (
            worker.host.sleep(STAMP, 0.0, within(20)),
            worker.host.wake(STAMP, None, within(20)),
        ):
            with pytest.raises(EngineError, match="only a stop is safe"):
                await refused
        assert len([call for call in worker.engine.calls if call.startswith(step)]) <= (step == "canary") + 1
        await worker.host.stop(STAMP, within(10))
        assert worker.door.calls[-1] == "door.stop"

    run_worker(tmp_path, scenario)


def test_an_opening_that_the_door_refuses_is_a_wake_that_failed(tmp_path: Path) -> None:
    async def scenario(worker: FakeWorker) -> None:
        await worker.host.start(STAMP, None, within(30))
        await worker.host.sleep(STAMP, 0.0, within(30))
        worker.door.book._out = 1  # what must not be: somebody is inside a sleeping engine
        worker.door.book._state = DoorState.DRAINING
        with pytest.raises(EngineError, match="1 permits are out"):
            await worker.host.wake(STAMP, None, within(30))
        with pytest.raises(EngineError, match="only a stop is safe"):
            await worker.host.wake(STAMP, None, within(30))

    run_worker(tmp_path, scenario)


def test_a_stop_cuts_the_door_before_the_engine_and_gives_the_ports_back(tmp_path: Path) -> None:
    async def scenario(worker: FakeWorker) -> None:
        await worker.host.start(STAMP, None, within(30))
        order: list[str] = []
        stop_door, stop_engine = worker.door.stop, worker.engine.stop

        async def door_stops() -> None:
            order.append("door")
            await stop_door()

        async def engine_stops(timeout_s: float) -> None:
            order.append("engine")
            await stop_engine(timeout_s)

        worker.door.stop, worker.engine.stop = door_stops, engine_stops  # type: ignore[method-assign]
        await worker.host.stop(STAMP, within(10))
        assert order == ["door", "engine"]
        assert (await worker.host.describe(within(1))).base_url is None
        await worker.host.start(Stamp(incarnation=2, token=FencingToken(0)), None, within(30))
        assert len(worker.doors) == 2, "a stopped door stays stopped"

    run_worker(tmp_path, scenario)


def test_a_door_that_does_not_stop_does_not_keep_the_engine_alive(tmp_path: Path) -> None:
    async def scenario(worker: FakeWorker) -> None:
        await worker.host.start(STAMP, None, within(30))

        async def never() -> None:
            await asyncio.sleep(10_000)

        worker.door.stop = never  # type: ignore[method-assign]
        assert "no process of its group is left" in await worker.host.stop(STAMP, within(10))
        assert now() <= 10.0

    run_worker(tmp_path, scenario)


def test_status_shows_what_is_inside_at_the_last_look(tmp_path: Path) -> None:
    async def main() -> None:
        rig = ManagerRig(tmp_path, replicas=1)
        await rig.manager.start()
        assert rig.manager.status()[0]["permits"] is None, "nobody has looked yet"
        rig.worker("m/replica-0").door.book.take()
        await rig.manager.reconcile_once()
        assert rig.manager.status()[0]["permits"] == 1
        assert rig.manager.status()[0]["base_url"] == rig.worker("m/replica-0").door.url

    run_virtual(main())


@pytest.mark.parametrize(
    ("capabilities", "wanted"),
    [
        ({Capability.SLEEP}, True),
        ({Capability.UPDATE_FROM_DISK}, True),
        ({Capability.SEVERAL_NODES, Capability.DISAGGREGATION}, False),
        (set(), False),
    ],
)
def test_engines_with_moments_without_requests_have_a_door(capabilities: set[Any], wanted: bool) -> None:
    features = EngineFeatures(capabilities=frozenset(capabilities), memory_tags=frozenset())
    assert wants_door(features) is wanted
