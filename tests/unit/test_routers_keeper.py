"""The keeper of a router: what it is told, in which order, and what happens when it dies or lies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rolecall.discovery.snapshot import RouteMode
from rolecall.engines.deadline import LoopClock
from rolecall.errors import RouterError
from rolecall.ids import EngineId, ModelId, RoleName
from rolecall.interfaces.router import RouterWorker
from rolecall.routers.keeper import RouterKeeper, RouterPlace
from rolecall.routers.membership import Member
from rolecall.testing.fake_router import FakeRouterBackend, FakeRouterOptions
from rolecall.testing.virtual_time import run_virtual

A, B = EngineId("m/replica-0"), EngineId("m/replica-1")
URL = {A: "http://a:1", B: "http://b:1"}


def members(*engines: EngineId, generation: int = 1) -> dict[EngineId, Member]:
    return {
        engine: Member(worker=RouterWorker(base_url=URL[engine]), generation=generation) for engine in engines
    }


class Rig:
    def __init__(self, folder: Path) -> None:
        self.backend = FakeRouterBackend()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.changes: list[str | None] = []
        place = RouterPlace(
            role=RoleName("judge"),
            model=ModelId("org/m"),
            served_model_name="served",
            host="127.0.0.1",
            pairs=False,
            log_dir=folder,
            options=FakeRouterOptions(),
        )
        self.keeper = RouterKeeper(
            self.backend, place, clock=LoopClock(), emit=self.emit, changed=self.changed
        )

    def emit(self, kind: str, /, **fields: Any) -> None:
        self.events.append((kind, fields))

    async def changed(self) -> None:
        self.changes.append(self.keeper.router_url)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    def run(scenario: Callable[[Rig], Awaitable[None]]) -> None:
        async def main() -> None:
            rig = Rig(tmp_path)
            await rig.keeper.start()
            try:
                await scenario(rig)
            finally:
                rig.backend.script.stop_error = None
                await rig.keeper.stop()

        run_virtual(main())

    return run


def test_a_url_is_told_only_while_somebody_is_behind_it(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        keeper = rig.keeper
        assert keeper.route_mode is RouteMode.SGLANG_ROUTER
        assert (keeper.router_url, keeper.reaches(A)) == (None, False)
        await keeper.settle(members(A))
        assert (keeper.router_url, keeper.reaches(A)) == (rig.backend.router.base_url, True)
        await keeper.settle(members(A, B))
        await keeper.settle(members(A, B))
        assert rig.backend.router.calls == [f"register {URL[A]}", f"register {URL[B]}"]
        await keeper.settle({})
        assert rig.backend.router.workers == {}
        assert (keeper.router_url, keeper.reaches(A), keeper.problem) == (None, False, None)

    run(scenario)


def test_an_engine_that_came_back_on_its_url_is_taken_out_and_told_again(run: Any) -> None:
    """Pitfall 14: the same URL in another generation is another engine."""

    async def scenario(rig: Rig) -> None:
        await rig.keeper.settle(members(A))
        await rig.keeper.settle(members(A, generation=2))
        assert rig.backend.router.calls == [
            f"register {URL[A]}",
            f"deregister {URL[A]}",
            f"register {URL[A]}",
        ]
        assert rig.keeper.reaches(A)

    run(scenario)


def test_a_router_that_dies_is_replaced_and_told_everything(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.keeper.settle(members(A, B))
        first = rig.backend.router
        first.die()
        await asyncio.sleep(5)
        second = rig.backend.router
        assert second is not first
        assert second.base_url != first.base_url
        assert set(second.workers) == set(URL.values())
        assert rig.changes == [second.base_url]
        assert [kind for kind, _ in rig.events] == ["router.started", "router.ended", "router.started"]
        assert "exit code -9" in rig.events[1][1]["reason"]
        assert rig.keeper.status()["started"] == 2

    run(scenario)


def test_a_router_that_does_not_answer_is_given_three_looks(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        rig.backend.script.silent = True
        await asyncio.sleep(2.5)
        assert len(rig.backend.routers) == 1
        rig.backend.script.silent = False
        await asyncio.sleep(2.5)
        rig.backend.script.silent = True
        await asyncio.sleep(2.0)
        assert len(rig.backend.routers) == 1, "three in a row"
        await asyncio.sleep(1.0)
        rig.backend.script.silent = False
        await asyncio.sleep(1.0)
        assert len(rig.backend.routers) == 2
        assert not rig.backend.routers[0].running

    run(scenario)


def test_a_router_that_keeps_an_engine_that_left_is_ended_itself(run: Any) -> None:
    """Pitfall 13: nobody is asked to stop, or drained, while a router may still bring it requests."""

    async def scenario(rig: Rig) -> None:
        await rig.keeper.settle(members(A, B))
        first = rig.backend.router
        rig.backend.script.keeps = {URL[A]}
        await rig.keeper.settle(members(B))
        assert not first.running
        assert set(rig.backend.router.workers) == {URL[B]}
        assert (rig.keeper.reaches(A), rig.keeper.reaches(B)) == (False, True)
        assert rig.keeper.router_url == rig.backend.router.base_url != first.base_url

    run(scenario)


def test_a_registration_that_fails_is_named_undone_and_tried_again(run: Any) -> None:
    """Pitfall 15: asked for is not done."""

    async def scenario(rig: Rig) -> None:
        rig.backend.script.refuses[URL[B]] = "not listed"
        await rig.keeper.settle(members(A, B))
        assert (rig.keeper.reaches(A), rig.keeper.reaches(B)) == (True, False)
        assert rig.keeper.problem == "not listed"
        assert rig.backend.router.calls[-1] == f"deregister {URL[B]}"
        rig.backend.script.refuses.clear()
        await asyncio.sleep(2)
        assert rig.keeper.reaches(B)
        assert rig.keeper.problem is None
        assert rig.changes == [rig.backend.router.base_url]
        assert len(rig.backend.routers) == 1

    run(scenario)


def test_a_registration_that_may_take_effect_later_costs_the_router(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        rig.backend.script.refuses[URL[B]] = "not listed"
        rig.backend.script.may_come_later.add(URL[B])
        await rig.keeper.settle(members(A, B))
        first = rig.backend.router
        rig.backend.script.refuses.clear()
        await asyncio.sleep(2)
        assert not first.running
        assert set(rig.backend.router.workers) == set(URL.values())

    run(scenario)


def test_a_router_that_cannot_be_had_is_tried_again_after_ever_longer_pauses(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.keeper.settle(members(A))
        rig.backend.script.start_error = "no such program"
        rig.backend.router.die()
        await asyncio.sleep(20)
        assert rig.keeper.router_url is None
        assert not rig.keeper.reaches(A)
        assert rig.keeper.problem == "no such program"
        assert 3 <= len(rig.backend.routers) <= 6
        rig.backend.script.start_error = None
        await asyncio.sleep(40)
        assert rig.keeper.reaches(A)
        assert rig.changes == [None, rig.backend.router.base_url]

    run(scenario)


def test_a_command_that_is_cancelled_leaves_no_half_told_router(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        settling = asyncio.create_task(rig.keeper.settle(members(A, B)))
        await asyncio.sleep(0)
        settling.cancel()
        await asyncio.sleep(0.1)
        assert settling.cancelled()
        assert set(rig.backend.router.workers) == set(URL.values())
        assert rig.keeper.reaches(A)

    run(scenario)


def test_the_newest_set_counts(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        await asyncio.gather(rig.keeper.settle(members(A, B)), rig.keeper.settle(members(B)))
        assert set(rig.backend.router.workers) == {URL[B]}

    run(scenario)


def test_a_first_start_that_fails_is_raised_and_gives_its_ports_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        rig = Rig(tmp_path)
        rig.backend.script.start_error = "no such program"
        with pytest.raises(RouterError, match="no such program"):
            await rig.keeper.start()
        rig.backend.script.start_error = None
        await rig.keeper.start()
        await rig.keeper.start()
        assert len(rig.backend.routers) == 2, "a repeat does nothing"
        assert rig.backend.router.launch.log_path == tmp_path / "judge-org-m-2.log"
        await rig.keeper.stop()
        assert not rig.backend.router.running
        await rig.keeper.stop()

    run_virtual(scenario())


def test_an_end_that_is_not_proved_is_raised(tmp_path: Path) -> None:
    async def scenario() -> None:
        rig = Rig(tmp_path)
        await rig.keeper.start()
        rig.backend.script.stop_error = "still there"
        with pytest.raises(RouterError, match="still there"):
            await rig.keeper.stop()

    run_virtual(scenario())
