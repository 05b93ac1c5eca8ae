"""Back-pressure: no replica gets more at once than it may, who waits is seen, and a queue has an end."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.api import EngineId, ModelUnavailableError, RoleName
from rolecall.client.inference_client import InferenceClient
from rolecall.config.specs import RoleConfig
from rolecall.engines.replica_state import ReplicaState
from rolecall.gateway.settings import GatewaySettings, settings_for_role
from rolecall.routing.replica_slots import ReplicaSlots
from rolecall.routing.resolver import Target
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import Plane, plane
from rolecall_routing.round_robin import RoundRobin

JUDGE = PlainRole(name=RoleName("genrm"), policy=RoundRobin)
BODY = {"text": "x", "sampling_params": {"max_new_tokens": 2}}


def target(name: str = "m/replica-0", generation: int = 1) -> Target:
    return Target(
        model="m", served_model_name="m", base_url="u", engine_id=EngineId(name), generation=generation
    )


async def test_they_come_in_order_and_each_incarnation_has_its_own_slots() -> None:
    slots = ReplicaSlots(1)
    first = await slots.take(target())
    assert slots.is_full(target())
    assert not slots.is_full(target(generation=2))
    (await slots.take(target(generation=2)))()
    came: list[int] = []

    async def wait(number: int) -> None:
        give_back = await slots.take(target())
        came.append(number)
        give_back()

    waiting = [asyncio.create_task(wait(number)) for number in range(4)]
    await asyncio.sleep(0)
    assert slots.queued["m"] == 4
    waiting[1].cancel()
    first()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert came == [0, 2, 3]
    assert slots.queued["m"] == 0
    assert not slots.is_full(target())


async def test_a_queue_that_is_full_refuses_and_no_limit_limits_nothing() -> None:
    slots = ReplicaSlots(1, most_waiting=1)
    await slots.take(target())
    waiting = asyncio.create_task(slots.take(target()))
    await asyncio.sleep(0)
    with pytest.raises(ModelUnavailableError, match="1 wait for it, which is as many as may"):
        await slots.take(target())
    waiting.cancel()
    free = ReplicaSlots()
    for _ in range(100):
        await free.take(target())
    assert not free.is_full(target())


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_whoever_leaves_and_whenever_no_slot_is_lost_or_made(
    steps: list[tuple[int, bool]], limit: int
) -> None:
    """A step lets the loop go round some times, then ends the oldest that is under way, or cancels it."""

    async def play() -> None:
        slots = ReplicaSlots(limit)
        at_once = most = 0
        gates: list[asyncio.Event] = []

        async def work(gate: asyncio.Event) -> None:
            nonlocal at_once, most
            give_back = await slots.take(target())
            at_once += 1
            most = max(most, at_once)
            try:
                await gate.wait()
            finally:
                at_once -= 1
                give_back()

        tasks: list[asyncio.Task[None]] = []
        for turns, cancels in steps:
            gates.append(asyncio.Event())
            tasks.append(asyncio.create_task(work(gates[-1])))
            for _ in range(turns):
                await asyncio.sleep(0)
            oldest = len(tasks) // 2
            if cancels:
                tasks[oldest].cancel()
            else:
                gates[oldest].set()
        for gate in gates:
            gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert most <= limit
        assert (at_once, slots.queued["m"], slots.is_full(target())) == (0, 0, False)

    asyncio.run(play())


def test_a_role_s_limits_are_those_of_its_gateway() -> None:
    role = RoleConfig(max_in_flight_per_replica=3, max_queued_per_replica=7)
    found = settings_for_role(GatewaySettings(max_body_bytes=5), role)
    assert (found.max_in_flight_per_replica, found.max_queued_per_replica, found.max_body_bytes) == (3, 7, 5)
    assert settings_for_role(found, RoleConfig()).max_in_flight_per_replica is None


async def queued(http: httpx.AsyncClient) -> float:
    text = (await http.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("rolecall_gateway_queued{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def until_queued(http: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(10):
        while await queued(http) != count:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.01)


def stuck(running: Plane) -> None:
    for engine in running.engines:
        engine.behaviour.stuck = True


async def test_a_gateway_bounds_each_replica_shows_who_waits_and_refuses_beyond() -> None:
    limits = GatewaySettings(max_in_flight_per_replica=2, max_queued_per_replica=1)
    async with (
        plane(JUDGE, engines=2, settings=limits) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        stuck(running)
        asking = [asyncio.create_task(http.post("/generate", json=BODY)) for _ in range(6)]
        for engine in running.engines:
            await engine.until_running(2)
        await until_queued(http, 2)
        refused = await http.post("/generate", json=BODY)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert [len(engine.received) for engine in running.engines] == [2, 2]
        for engine in running.engines:
            engine.behaviour.stuck = False
            for aborted in list(engine.running.values()):
                aborted.set()
        answers = await asyncio.gather(*asking)
        assert [answer.status_code for answer in answers] == [200] * 6
        assert await queued(http) == 0
        assert [len(engine.received) for engine in running.engines] == [3, 3]


async def test_who_waited_for_a_replica_that_left_is_told_to_come_again() -> None:
    limits = GatewaySettings(max_in_flight_per_replica=1)
    async with (
        plane(JUDGE, settings=limits) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        stuck(running)
        asking = [asyncio.create_task(http.post("/generate", json=BODY)) for _ in range(2)]
        (engine,) = running.engines
        await engine.until_running(1)
        await until_queued(http, 1)
        running.publish(ReplicaState.SLEEPING)
        while (await http.get("/health")).status_code == 200:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.01)
        for aborted in list(engine.running.values()):
            aborted.set()
        assert sorted(answer.status_code for answer in await asyncio.gather(*asking)) == [200, 503]
        assert len(engine.received) == 1, "nothing is sent to a replica that sleeps"


async def test_a_client_bounds_each_replica_too() -> None:
    async with (
        plane(JUDGE, engines=2) as running,
        InferenceClient(running.url, policy=RoundRobin, max_in_flight_per_replica=1) as client,
    ):
        stuck(running)
        asking = [asyncio.create_task(client.generate(BODY)) for _ in range(6)]
        for engine in running.engines:
            await engine.until_running(1)
        assert client.queued == 4
        asking[5].cancel()
        for engine in running.engines:
            engine.behaviour.stuck = False
            for aborted in list(engine.running.values()):
                aborted.set()
        await asyncio.gather(*asking[:5])
        assert client.queued == 0
        assert sum(len(engine.received) for engine in running.engines) == 5
