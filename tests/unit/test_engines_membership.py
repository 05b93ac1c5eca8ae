"""Who may be asked is told before it is shown, and who leaves is out of reach before anything else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rolecall.discovery.snapshot import ModelState, RouteMode
from rolecall.discovery.topology import RoleTopology, build_routing, new_epoch
from rolecall.engines.replica_state import ReplicaState
from rolecall.ids import EngineId, RoleName
from rolecall.interfaces.engine_backend import FromDisk
from rolecall.interfaces.role import WeightSource
from rolecall.routers.membership import Member
from rolecall.testing.manager_rig import ManagerRig, ok, within
from rolecall.testing.virtual_time import run_virtual

A, B = EngineId("m/replica-0"), EngineId("m/replica-1")


class Recorder:
    """A membership that writes down what it was told and what the engines had been asked by then."""

    route_mode = RouteMode.SGLANG_ROUTER

    def __init__(self) -> None:
        self.rig: ManagerRig | None = None
        self.history: list[dict[str, str]] = []
        self.calls: list[list[str]] = []
        self.refuses: set[EngineId] = set()
        self.reached: dict[EngineId, Member] = {}

    @property
    def router_url(self) -> str | None:
        return "http://router:1" if self.reached else None

    @property
    def problem(self) -> str | None:
        return "the router refused it" if self.refuses else None

    def reaches(self, engine: EngineId) -> bool:
        return engine in self.reached

    async def settle(self, members: Mapping[EngineId, Member]) -> None:
        assert self.rig is not None
        self.reached = {e: m for e, m in members.items() if e not in self.refuses}
        self.history.append({engine: member.worker.base_url for engine, member in members.items()})
        self.calls.append(list(self.rig.worker(A).calls))
        await asyncio.sleep(0)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    def run(scenario: Callable[[ManagerRig, Recorder], Awaitable[None]], **options: Any) -> None:
        async def main() -> None:
            recorder = Recorder()
            rig = recorder.rig = ManagerRig(tmp_path, membership=recorder, **options)
            await scenario(rig, recorder)

        run_virtual(main())

    return run


def entry(rig: ManagerRig) -> Any:
    routing = build_routing(
        served_names={"m": "served"}, default_model=None, route_keys={}, aliases={}, policy="p"
    )
    topology = RoleTopology(RoleName("judge"), routing, new_epoch())
    return topology.update({"m": rig.manager.view()})[0].models["m"]


def test_a_replica_is_told_before_it_is_shown_and_gone_before_it_is_drained(run: Any) -> None:
    async def scenario(rig: ManagerRig, recorder: Recorder) -> None:
        shown: list[tuple[bool, bool]] = []

        def look() -> None:
            shown.append((rig.states()[0] == "READY", recorder.reaches(A)))

        rig.before_publish = look
        assert ok(await rig.manager.start())
        assert recorder.history[-1].keys() == {A, B}
        assert entry(rig).router_url == "http://router:1"
        recorder.history.clear()
        recorder.calls.clear()
        assert ok(await rig.offload(1))
        assert recorder.history[0] == {}
        assert "sleep" not in recorder.calls[0], "out of reach before the drain begins"
        assert ok(await rig.onload(2))
        assert recorder.history[-1].keys() == {A, B}
        assert all(ready == reached for ready, reached in shown)

    run(scenario)


def test_an_update_is_out_of_reach_while_it_lasts(run: Any, tmp_path: Path) -> None:
    async def scenario(rig: ManagerRig, recorder: Recorder) -> None:
        assert ok(await rig.manager.start())
        recorder.history.clear()
        recorder.calls.clear()
        assert ok(await rig.manager.update_weights(FromDisk(path=tmp_path), "1", within(60)))
        assert recorder.history[0] == {}
        assert "update_weights" not in recorder.calls[0]
        assert recorder.history[-1].keys() == {A, B}

    run(scenario, source=WeightSource.ACTOR)


def test_a_killed_engine_is_taken_out_by_us(run: Any) -> None:
    """Pitfall 13: a killed engine deregisters nothing; its replacement comes in as another life."""

    async def scenario(rig: ManagerRig, recorder: Recorder) -> None:
        assert ok(await rig.manager.start())
        before = recorder.reached[A]
        rig.worker(A).engine.kill()
        await rig.manager.look()
        assert recorder.history[-1].keys() == {B}
        assert entry(rig).state is ModelState.READY
        await rig.manager.repair()
        assert recorder.history[-1].keys() == {A, B}
        assert recorder.reached[A].generation == before.generation + 1

    run(scenario)


def test_a_start_that_nobody_brings_requests_to_is_not_confirmed(run: Any) -> None:
    async def scenario(rig: ManagerRig, recorder: Recorder) -> None:
        recorder.refuses = {B}
        outcomes = await rig.manager.start()
        assert [outcome.confirmed for outcome in outcomes] == [True, False]
        assert "the router refused it" in outcomes[1].detail
        shown = entry(rig)
        assert [engine.direct_eligible for engine in shown.engines] == [True, False]
        assert shown.state is ModelState.READY
        recorder.refuses = {A, B}
        await recorder.settle({})
        assert entry(rig).state is not ModelState.READY

    run(scenario)


@pytest.mark.parametrize("source", WeightSource)
def test_an_onload_reaches_all_or_none(run: Any, source: WeightSource) -> None:
    async def scenario(rig: ManagerRig, recorder: Recorder) -> None:
        assert ok(await rig.manager.start())
        assert ok(await rig.offload(1))
        recorder.refuses = {B}
        outcomes = await rig.onload(2)
        assert not any(outcome.confirmed for outcome in outcomes)
        assert all("the router refused it" in outcome.detail for outcome in outcomes)
        assert recorder.reached == {}
        assert ReplicaState.READY not in rig.states()
        recorder.refuses = set()
        assert ok(await rig.onload(3))

    run(scenario, source=source)


@pytest.mark.parametrize("refused", [frozenset(), frozenset({A})])
def test_an_engine_that_dies_in_the_drain_is_out_of_reach_when_its_next_life_goes_to_sleep(
    run: Any, refused: frozenset[EngineId]
) -> None:
    async def scenario(rig: ManagerRig, recorder: Recorder) -> None:
        assert ok(await rig.manager.start())
        told: list[tuple[str, bool]] = []
        worker = rig.worker(A)
        sleep = worker.sleep

        async def watched(*arguments: Any) -> Any:
            told.append((rig.states()[0], recorder.reaches(A)))
            if len(told) == 1:
                worker.engine.kill()
            return await sleep(*arguments)

        worker.sleep = watched  # type: ignore[method-assign]
        recorder.refuses = set(refused)
        assert ok(await rig.offload(1))
        assert told == [("DRAINING", False)] * 2
        assert recorder.history[-1] == {}

    run(scenario)


def test_a_stopped_replica_is_out_of_reach_first(run: Any) -> None:
    async def scenario(rig: ManagerRig, recorder: Recorder) -> None:
        assert ok(await rig.manager.start())
        recorder.history.clear()
        recorder.calls.clear()
        assert ok(await rig.manager.stop(A, within(60)))
        assert recorder.history[0].keys() == {B}
        assert "stop" not in recorder.calls[0]
        assert ok(await rig.manager.shutdown(within(60)))
        assert recorder.history[-1] == {}

    run(scenario)
