"""What a policy is told of prompts and of load: only if it asks, the same in gateways and direct clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.api import (
    ROLECALL_API,
    Candidate,
    EngineId,
    Need,
    RouterBackend,
    RoutingRequest,
)
from rolecall.client.inference_client import InferenceClient
from rolecall.errors import RequestError
from rolecall.routing.in_flight import InFlight
from rolecall.routing.prompt import prompt_in
from rolecall.routing.resolver import RouteResolver
from rolecall.testing.free_port import free_port
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import Plane, plane
from rolecall.testing.snapshots import model_entry, snapshot_of

FLEET = snapshot_of({"m": model_entry("m", ["http://h:1", "http://h:2"])}, policy="first", default_model="m")
ID = EngineId("m/replica-0")


def incarnation(generation: int, engine: str = ID) -> Candidate:
    return Candidate(engine_id=EngineId(engine), base_url="http://h", generation=generation)


class First:
    """Always the first; keeps what it was told."""

    name: ClassVar[str] = "first"
    api_version: ClassVar[int] = ROLECALL_API
    needs: ClassVar[frozenset[Need]] = frozenset()
    router: ClassVar[type[RouterBackend] | None] = None
    prompts: ClassVar[list[Any]] = []
    loads: ClassVar[list[list[int]]] = []

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate:
        self.prompts.append(request.prompt)
        self.loads.append([request.load.at(candidate) for candidate in candidates])
        return candidates[0]


class Asking(First):
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PROMPT, Need.LOAD})


@pytest.fixture(autouse=True)
def told() -> None:
    First.prompts.clear()
    First.loads.clear()


# --- the resolver -----------------------------------------------------------------------


def test_a_policy_that_asks_for_nothing_is_told_nothing() -> None:
    resolver = RouteResolver(First)
    for _ in range(2):
        target = resolver.resolve(FLEET, payload={"text": "hello"})
        resolver.in_flight.sent(target.model, target.engine_id, target.generation)
    assert First.prompts == [None, None]
    assert First.loads == [[0, 0], [0, 0]]


def test_load_is_what_was_sent_and_not_settled() -> None:
    resolver = RouteResolver(Asking)
    settle: list[Callable[[], None]] = []
    for _ in range(3):
        target = resolver.resolve(FLEET)
        settle.append(resolver.in_flight.sent(target.model, target.engine_id, target.generation))
    settle[0]()
    resolver.resolve(FLEET)
    assert First.loads == [[0, 0], [1, 0], [2, 0], [2, 0]]


def test_what_an_engine_left_undone_does_not_burden_its_next_incarnation() -> None:
    counts = InFlight()
    load = counts.of("m")
    settled = counts.sent("m", ID, 1)
    assert (load.at(incarnation(1)), load.at(incarnation(2)), load.total) == (1, 0, 1)
    settled()
    settled()
    assert (load.at(incarnation(1)), load.total) == (0, 0), "told twice is told once"


def test_a_router_burdens_no_engine() -> None:
    counts = InFlight()
    counts.sent("m", None, None)()
    assert counts.of("m").total == 0


def test_models_do_not_burden_each_other() -> None:
    counts = InFlight()
    counts.sent("other", ID, 1)
    assert (counts.of("m").total, counts.of("m").at(incarnation(1))) == (0, 0)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2), st.booleans()), max_size=40))
def test_load_always_returns_to_zero(requests: list[tuple[int, int, bool]]) -> None:
    """Whatever the order in which requests are sent and settled, once or twice."""
    counts = InFlight()
    load = counts.of("m")
    under_way: list[Callable[[], None]] = []
    for replica, generation, settle in requests:
        under_way.append(counts.sent("m", EngineId(f"m/replica-{replica}"), generation))
        if settle:
            under_way[len(under_way) // 2]()
    for settled in under_way:
        settled()
    assert load.total == 0
    assert not any(load.at(incarnation(g, f"m/replica-{r}")) for r in range(4) for g in (1, 2))


# --- the prompt -------------------------------------------------------------------------


def test_the_prompt_is_what_was_sent() -> None:
    ids = [1, 2, 3]
    assert prompt_in({"input_ids": ids}) is ids
    assert prompt_in({"text": "2 + 2?", "sampling_params": {}}) == "2 + 2?"
    assert prompt_in({"input_ids": None, "text": "x"}) == "x"
    assert prompt_in({"n": 1}) is None


def test_a_conversation_that_goes_on_is_a_prompt_that_goes_on() -> None:
    messages: list[Any] = [{"role": "system", "content": "Répondez."}, {"role": "user", "content": "2 + 2?"}]
    begun = prompt_in({"messages": messages})
    gone_on = prompt_in({"messages": [*messages, {"role": "assistant", "content": [{"text": "4"}]}, 7]})
    assert isinstance(begun, str)
    assert isinstance(gone_on, str)
    assert gone_on.startswith(begun)
    assert "Répondez." in begun
    assert begun != prompt_in({"messages": messages[:1]})


# --- through gateway and client -----------------------------------------------------------

Send = Callable[[Mapping[str, Any]], Coroutine[Any, Any, int]]
"""Sends a payload for ``/generate`` and returns the status."""


@pytest.fixture
async def world() -> AsyncIterator[Plane]:
    async with plane(PlainRole(policy=Asking), engines=2) as running:
        yield running


@pytest.fixture(params=["gateway", "client"])
async def send(request: pytest.FixtureRequest, world: Plane) -> AsyncIterator[Send]:
    if request.param == "gateway":
        async with httpx.AsyncClient(base_url=world.url, timeout=30, verify=False) as http:

            async def through_gateway(payload: Mapping[str, Any]) -> int:
                return (await http.post("/generate", json=payload)).status_code

            yield through_gateway
    else:
        async with InferenceClient(world.url, policy=Asking) as client:

            async def past_gateway(payload: Mapping[str, Any]) -> int:
                try:
                    if payload.get("stream"):
                        async for _ in client.generate_stream(payload):
                            pass
                    else:
                        await client.generate(payload)
                except RequestError as error:
                    return error.status
                return 200

            yield past_gateway


async def load_now(send: Send) -> int:
    """What the policy is told of the first engine when the next request comes."""
    await send({"text": "probe"})
    return First.loads[-1][0]


async def test_the_prompt_reaches_the_policy(send: Send) -> None:
    await send({"input_ids": [1, 2, 3]})
    await send({"text": "hello"})
    assert First.prompts == [[1, 2, 3], "hello"]


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_what_was_answered_is_no_load(send: Send, stream: bool) -> None:
    for _ in range(3):
        assert await send({"text": "x", "stream": stream}) == 200
    assert await load_now(send) == 0


async def test_what_failed_is_no_load(world: Plane, send: Send) -> None:
    world.engines[0].behaviour.status = 500
    assert await send({"text": "x"}) == 500
    world.engines[0].behaviour.status = 200
    world.publish(urls=[f"http://127.0.0.1:{free_port()}", world.urls[1]])
    while await send({"text": "x"}) != 502:  # noqa: ASYNC110 - until the new snapshot is known
        await asyncio.sleep(0.01)
    await send({"text": "x"})
    assert First.loads[-1] == [0, 0]


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_requests_under_way_are_load_until_the_engine_has_ended_them(
    world: Plane, send: Send, stream: bool
) -> None:
    engine = world.engines[0]
    engine.behaviour.stuck, engine.behaviour.gate = not stream, asyncio.Event() if stream else None
    callers = [asyncio.create_task(send({"text": "x", "stream": stream})) for _ in range(3)]
    await asyncio.wait_for(engine.until_running(3), 5)
    assert sorted(load[0] for load in First.loads) == [0, 1, 2], "each sees those sent before"
    engine.behaviour.stuck = False
    assert await load_now(send) == 3
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    await asyncio.wait_for(engine.until_running(0), 5)
    async with asyncio.timeout(5):
        while await load_now(send) != 0:  # noqa: ASYNC110 - seen from outside only
            await asyncio.sleep(0.01)
