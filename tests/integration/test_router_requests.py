"""Requests through the real sglang-router: gateway and direct client in front, scripted engines behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from attrs import define

from rolecall.client.inference_client import InferenceClient
from rolecall.discovery.snapshot import RouteMode
from rolecall.discovery.topology import EngineView, ModelView, RoleTopology, build_routing, new_epoch
from rolecall.engines.deadline import LoopClock
from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import PayloadError
from rolecall.events.event import discard
from rolecall.ids import EngineId, ModelId, engine_id
from rolecall.interfaces.engine_backend import Disaggregation
from rolecall.interfaces.role import WeightSource
from rolecall.interfaces.router import RouterWorker
from rolecall.routers.keeper import RouterKeeper, RouterPlace, RouterTimes
from rolecall.routers.membership import Member
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import Plane, plane
from rolecall.testing.scripted_engine import ScriptedEngine
from rolecall_routing.sglang_router import SglangRouterBackend, SglangRouterOptions, SglangRouterPolicy

pytestmark = pytest.mark.timeout(120)


CRITIC = PlainRole(policy=SglangRouterPolicy)
SOON_S = 20.0


@define
class Routed:
    """A plane whose engines stand behind a router; ``show`` does what a manager and a role service do."""

    plane: Plane
    keeper: RouterKeeper
    halves: Sequence[Disaggregation | None]
    topology: RoleTopology
    http: httpx.AsyncClient
    generations: list[int]
    changes: int = 0

    async def show(self, *ready: int) -> None:
        """Settle the router on these engines, then publish."""
        ids = [engine_id(ModelId("m"), index) for index in range(len(self.plane.urls))]
        await self.keeper.settle(
            {
                ids[index]: Member(worker=self.worker(index), generation=self.generations[index])
                for index in ready
            }
        )
        self.publish([self.view(id, index, index in ready) for index, id in enumerate(ids)])

    def publish(self, engines: Sequence[EngineView]) -> None:
        view = ModelView(
            served_model_name="served",
            weight_source=WeightSource.STATIC,
            engines=tuple(engines),
            route_mode=RouteMode.SGLANG_ROUTER,
            router_url=self.keeper.router_url,
        )
        self.shown = engines
        self.plane.registry.publish(CRITIC.name, self.topology.update({"m": view})[0].to_json())

    async def changed(self) -> None:
        self.changes += 1
        self.publish(self.shown)

    shown: Sequence[EngineView] = ()

    def worker(self, index: int) -> RouterWorker:
        half = self.halves[index]
        port = 8998 if half is Disaggregation.PREFILL else None
        return RouterWorker(base_url=self.plane.urls[index], half=half, bootstrap_port=port)

    def view(self, id: EngineId, index: int, ready: bool) -> EngineView:
        return EngineView(
            engine_id=id,
            base_url=self.plane.urls[index],
            state=ReplicaState.READY if ready else ReplicaState.FAILED,
            generation=self.generations[index],
            reached=self.keeper.reaches(id),
            half=self.halves[index],
        )

    def client(self) -> InferenceClient:
        return InferenceClient(self.plane.url, role="critic")

    async def generate(self, **payload: Any) -> httpx.Response:
        return await self.http.post("/generate", json={"text": "x", **payload})


@asynccontextmanager
async def routed(folder: Path, *halves: Disaggregation | None) -> AsyncGenerator[Routed]:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(plane(CRITIC, engines=len(halves)))
        place = RouterPlace(
            role=CRITIC.name,
            model=ModelId("m"),
            served_model_name="served",
            host="127.0.0.1",
            pairs=any(halves),
            log_dir=folder,
            options=SglangRouterOptions(),
        )
        routing = build_routing(
            served_names={"m": "served"},
            default_model=None,
            route_keys={},
            aliases={},
            policy=SglangRouterPolicy.name,
        )
        world: Routed | None = None

        async def changed() -> None:
            assert world is not None
            await world.changed()

        keeper = RouterKeeper(
            SglangRouterBackend(),
            place,
            clock=LoopClock(),
            emit=discard,
            changed=changed,
            times=RouterTimes(look_interval_s=0.1),
        )
        await keeper.start()
        stack.push_async_callback(keeper.stop)
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=running.url, timeout=SOON_S))
        topology = RoleTopology(CRITIC.name, routing, new_epoch())
        world = Routed(running, keeper, halves, topology, http, [1] * len(halves))
        await world.show(*range(len(halves)))
        yield world


async def test_gateway_and_client_go_through_the_router_and_keys_stay(tmp_path: Path) -> None:
    async with routed(tmp_path, None, None) as world, world.client() as client:
        answer = await world.generate()
        assert answer.status_code == 200, answer.text
        assert "x-rolecall-engine" not in answer.headers
        assert (await client.generate({"text": "x"}))["output_ids"] == answer.json()["output_ids"]
        assert (await client.resolve()).base_url == world.keeper.router_url
        messages = [{"role": "user", "content": "x"}]
        chat = {"model": "m", "messages": messages}
        assert (await world.http.post("/v1/chat/completions", json=chat)).status_code == 200
        assert await client.chat(messages) != ""
        homes: dict[str, set[str]] = {}
        for _ in range(3):
            for key in "abcdefghijklmnop":
                for engine in world.plane.engines:
                    engine.received.clear()
                await client.generate({"text": "x"}, affinity_key=key)
                (asked,) = [engine.name for engine in world.plane.engines if engine.received]
                homes.setdefault(key, set()).add(asked)
        assert all(len(engines) == 1 for engines in homes.values())
        assert len(set().union(*homes.values())) == 2, "both are somebody's home"
        refused = await world.generate(return_routed_experts=True)
        assert refused.status_code == 400
        assert refused.json()["error"]["field"] == "return_routed_experts"
        with pytest.raises(PayloadError, match="return_routed_experts"):
            await client.generate({"text": "x", "return_routed_experts": True})


async def test_an_abandoned_request_is_aborted_at_its_engine(tmp_path: Path) -> None:
    """Pitfall 19: the router answers 404 to an abort; the engine gets it all the same, by our own call."""
    async with routed(tmp_path, None, None) as world, world.client() as client:
        engines = world.plane.engines
        for engine in engines:
            engine.behaviour.stuck = True
        for stream in (False, True):
            for engine in engines:
                engine.aborts.clear()
            with pytest.raises(httpx.ReadTimeout):
                await world.http.post("/generate", json={"text": "x", "stream": stream}, timeout=0.5)
            await _all_quiet(engines)
            (rid,) = {rid for engine in engines for rid in engine.aborts}
            assert all(rid in engine.aborts for engine in engines), "nobody knows who has it, so all are told"
        asking = asyncio.create_task(client.generate({"text": "x", "rid": "mine"}))
        await _until(lambda: any(engine.running for engine in engines))
        asking.cancel()
        await _all_quiet(engines)
        assert all("mine" in engine.aborts for engine in engines)
        assert all(engine.cuts == [] for engine in engines), "they were aborted, not cut"


async def test_a_chat_or_a_pair_is_stopped_by_its_cut_connection(tmp_path: Path) -> None:
    """Pitfall 19, where no abort can reach: the router drops a chat's id, and hides the halves of pairs."""
    halves = (Disaggregation.PREFILL, Disaggregation.DECODE)
    chat = {"messages": [{"role": "user", "content": "x"}]}
    for shape, path, body in (((None,), "/v1/chat/completions", chat), (halves, "/generate", {"text": "x"})):
        async with routed(tmp_path, *shape) as world:
            engines = world.plane.engines
            for engine in engines:
                engine.behaviour.stuck = engine.behaviour.notices_cuts = True
            with pytest.raises(httpx.ReadTimeout):
                await world.http.post(path, json=body, timeout=0.5)
            # At once: it does not wait for an abort that can't come.
            await _until(lambda: all(engine.cuts for engine in engines), 1.5)  # noqa: B023
            if any(shape):
                payloads = [engine.received[0].payload for engine in engines]
                assert {payload["bootstrap_port"] for payload in payloads} == {8998}
                assert len({payload["bootstrap_room"] for payload in payloads}) == 1
                shown = (await world.http.get("/engines")).json()["models"]["m"]
                assert (shown["state"], shown["engines"]) == ("READY", [])


async def test_a_dead_router_is_replaced_and_a_dead_engine_taken_out(tmp_path: Path) -> None:
    """Pitfalls 13 and 14: a killed engine gets nothing more; back on its URL it is served once."""
    async with routed(tmp_path, None, None) as world:
        first_url = world.keeper.router_url
        pid = world.keeper.status()["pid"]
        os.killpg(pid, signal.SIGKILL)
        await _until(lambda: world.changes > 0)
        assert world.keeper.router_url not in {None, first_url}
        assert world.keeper.status()["engines"] == ["m/replica-0", "m/replica-1"]
        async with asyncio.timeout(SOON_S):  # the gateway hears of it by its long poll
            while (await world.generate()).status_code != 200:
                pass
        victim, other = world.plane.engines
        await world.show(1)
        seen = len(victim.received)
        for _ in range(10):
            assert (await world.generate()).status_code == 200
        assert len(victim.received) == seen
        world.generations[0] = 2
        await world.show(0, 1)
        other.received.clear()
        victim.received.clear()
        for _ in range(20):
            assert (await world.generate()).status_code == 200
        assert victim.received
        assert len(victim.received) + len(other.received) == 20


async def test_what_is_asleep_is_503_and_nothing_reaches_an_engine(tmp_path: Path) -> None:
    async with routed(tmp_path, None) as world:
        await world.show()
        answer = await world.generate()
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert world.plane.engines[0].received == []
        assert (await world.http.get("/health")).status_code == 503


async def _until(came: Callable[[], bool], seconds: float = SOON_S) -> None:
    async with asyncio.timeout(seconds):
        while not came():  # noqa: ASYNC110 - processes tell no event
            await asyncio.sleep(0.02)


async def _all_quiet(engines: Sequence[ScriptedEngine]) -> None:
    await _until(lambda: not any(engine.running for engine in engines))
