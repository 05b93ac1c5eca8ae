"""The direct client, on real sockets: same target as the gateway, one POST, and no orphan at the engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, ClassVar

import pytest

from rolecall.api import (
    Candidate,
    DeadlineError,
    ModelUnavailableError,
    PayloadError,
    ScoringClient,
    UpstreamError,
    UpstreamStatusError,
    rendezvous,
)
from rolecall.client.httpx_transport import HttpxTransport
from rolecall.client.inference_client import InferenceClient, encode_affinity
from rolecall.client.shared import shared_client
from rolecall.client.transport import Outgoing
from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import PluginContractError, RegistryUnavailableError, UnknownPluginError
from rolecall.gateway.settings import GatewaySettings
from rolecall.plugins.host import PluginHost
from rolecall.plugins.kinds import PluginKind
from rolecall.testing.plain_role import ByKey, PlainRole
from rolecall.testing.plane import Plane, plane
from rolecall.testing.scripted_answers import tokens_of
from rolecall.testing.snapshots import model_entry


class OtherPolicy(ByKey):
    name: ClassVar[str] = "other"


CRITIC = PlainRole()


@pytest.fixture
async def world() -> AsyncIterator[Plane]:
    async with plane(CRITIC, engines=3) as running:
        yield running


@pytest.fixture
async def client(world: Plane) -> AsyncIterator[InferenceClient]:
    client = InferenceClient(world.url, policy=ByKey, role="critic")
    yield client
    await client.aclose()


def asked(world: Plane) -> list[int]:
    """How many requests each engine got."""
    return [len(engine.received) for engine in world.engines]


def engine_of(world: Plane, key: str) -> int:
    """Index of the engine that is home to a key."""
    fleet = [
        Candidate(engine_id=engine.engine_id, base_url=engine.base_url or "", generation=1)
        for engine in model_entry("m", world.urls).engines
    ]
    return fleet.index(rendezvous(key, fleet))


async def test_it_opens_the_engines_native_endpoint(world: Plane, client: InferenceClient) -> None:
    scoring: ScoringClient = client
    answer = await scoring.generate(
        {"input_ids": [1, 2], "sampling_params": {"temperature": 0}}, affinity_key="group-1"
    )
    assert answer["output_ids"] == tokens_of([1, 2], 4)
    received = world.engines[engine_of(world, "group-1")].received[0]
    assert received.path == "/generate"
    assert received.payload["input_ids"] == [1, 2]
    assert received.headers["x-smg-routing-key"] == "group-1"
    assert received.payload["rid"] == received.headers["x-request-id"] == answer["meta_info"]["id"]


async def test_chat_goes_to_the_chat_endpoint_under_the_served_name(
    world: Plane, client: InferenceClient
) -> None:
    messages = [{"role": "user", "content": "2 + 2?"}]
    text = await client.chat(messages, sampling={"max_new_tokens": 8, "temperature": 0}, model="m")
    assert text == "".join(f" {token}" for token in tokens_of(messages, 4))
    received = next(engine.received[0] for engine in world.engines if engine.received)
    assert received.path == "/v1/chat/completions"
    payload = received.payload
    assert payload.pop("rid")
    assert payload == {"model": "served/m", "messages": messages, "max_tokens": 8, "temperature": 0}


@pytest.mark.parametrize("key", ["group-1", "gruppe-ä-β", "x" * 200, "a b"])
async def test_gateway_and_client_choose_the_same_engine_and_get_the_same_tokens(
    world: Plane, client: InferenceClient, key: str
) -> None:
    direct = await client.generate({"text": "hello"}, affinity_key=key)
    first = asked(world)
    transport = HttpxTransport(max_concurrency=1)
    incoming = await transport.send(
        Outgoing(
            method="POST",
            url=f"{world.url}/generate",
            headers=[(b"x-smg-routing-key", encode_affinity(key))],
            body=b'{"text": "hello"}',
        )
    )
    through = json.loads(b"".join([chunk async for chunk in incoming.chunks()]))
    await incoming.aclose()
    await transport.aclose()
    assert through["output_ids"] == direct["output_ids"]
    assert asked(world) == [2 * count for count in first], "both went to one engine"
    assert dict(incoming.headers)[b"x-rolecall-engine"] == f"m/replica-{first.index(1)}".encode()


@pytest.mark.parametrize("key", ["", " x", "x\n", "x\ty"])
async def test_a_key_that_no_header_carries_is_refused(client: InferenceClient, key: str) -> None:
    with pytest.raises(PayloadError) as refusal:
        await client.generate({"text": "x"}, affinity_key=key)
    assert refusal.value.field == "affinity_key"


async def test_wrong_requests_are_refused_before_anything_is_sent(
    world: Plane, client: InferenceClient
) -> None:
    with pytest.raises(PayloadError):
        await client.generate({"text": "x"}, model="nobody")
    with pytest.raises(PayloadError):
        await client.generate({"text": "x"}, route_key="nobody")
    with pytest.raises(PayloadError):
        await client.generate({"text": object()})
    with pytest.raises(PayloadError):
        await client.generate({"text": "x", "stream": True})
    with pytest.raises(PayloadError):
        await client.generate({"text": "x", "rid": ""})
    assert asked(world) == [0, 0, 0]


async def test_discovery_is_read_once_for_many_calls(world: Plane, client: InferenceClient) -> None:
    reads: list[str | None] = []
    source = client._source  # pyright: ignore[reportPrivateUsage]
    reader = source._reader  # pyright: ignore[reportPrivateUsage]
    real = reader.read

    async def counted(etag: str | None, wait_s: float) -> Any:
        reads.append(etag)
        return await real(etag, wait_s)

    reader.read = counted  # type: ignore[method-assign]
    await asyncio.gather(*(client.generate({"text": str(n)}) for n in range(20)))
    assert len(reads) == 1


async def test_a_model_asleep_is_looked_up_once_more_and_nothing_is_sent(
    world: Plane, client: InferenceClient
) -> None:
    await client.generate({"text": "warm"})
    world.publish(ReplicaState.SLEEPING)
    client._source.drop()  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ModelUnavailableError, match="SLEEPING"):
        await client.generate({"text": "x"})
    world.publish()
    assert await client.generate({"text": "x"}), "seen at once, not after the cache's time"
    assert sum(asked(world)) == 2


async def test_an_engines_error_is_passed_on_whole(world: Plane, client: InferenceClient) -> None:
    for engine in world.engines:
        engine.behaviour.status, engine.behaviour.body = 422, b'{"error": "no"}'
    with pytest.raises(UpstreamStatusError) as failure:
        await client.generate({"text": "x"})
    assert (failure.value.status, failure.value.body) == (422, b'{"error": "no"}')


@pytest.mark.parametrize("body", [b"", b"oops", b"[]", b"null", b'{"a": NaN}'])
async def test_an_answer_outside_the_protocol_is_an_upstream_error(
    world: Plane, client: InferenceClient, body: bytes
) -> None:
    for engine in world.engines:
        engine.behaviour.body = body
    with pytest.raises(UpstreamError):
        await client.generate({"text": "x"})
    with pytest.raises(UpstreamError):
        await client.chat([{"role": "user", "content": "x"}])


async def test_a_failure_makes_the_cache_worthless(world: Plane) -> None:
    client = InferenceClient(world.url, policy=ByKey, ttl_s=3600)
    await client.generate({"text": "warm"})
    world.publish(urls=world.urls[1:], generation=2)
    home = engine_of(world, "")
    world.engines[home].behaviour.status = 500
    with pytest.raises(UpstreamStatusError):
        await client.generate({"text": "x"})
    known = client._source.known()  # pyright: ignore[reportPrivateUsage]
    assert known is not None
    assert known.topology_revision == 1
    world.engines[home].behaviour.status = 200
    await client.generate({"text": "x"})
    known = client._source.known()  # pyright: ignore[reportPrivateUsage]
    assert known is not None
    assert known.topology_revision == 2
    await client.aclose()


# --- leaving before the end -------------------------------------------------------------


async def test_a_deadline_also_holds_while_discovery_hangs() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = InferenceClient(f"http://127.0.0.1:{port}", policy=ByKey)
        with pytest.raises(DeadlineError, match="before it was sent"):
            await client.generate({"text": "x"}, timeout_s=0.05)
        await client.aclose()


# --- streams ----------------------------------------------------------------------------


async def test_a_stream_yields_every_event(world: Plane, client: InferenceClient) -> None:
    events = [event async for event in client.generate_stream({"text": "x"})]
    assert [len(event["output_ids"]) for event in events] == [1, 2, 3, 4]
    assert events[-1]["output_ids"] == tokens_of("x", 4)
    assert all(engine.aborts == [] for engine in world.engines)


async def test_leaving_a_stream_aborts_at_the_engine(world: Plane, client: InferenceClient) -> None:
    engine = world.engines[engine_of(world, "")]
    engine.behaviour.gate = asyncio.Event()
    async with aclosing(client.generate_stream({"text": "x"})) as events:
        async for _ in events:
            break
    await asyncio.wait_for(engine.until_running(0), 5)
    assert set(engine.aborts) == {engine.received[0].payload["rid"]}


async def test_a_streams_deadline_holds_between_events(world: Plane, client: InferenceClient) -> None:
    engine = world.engines[engine_of(world, "")]
    engine.behaviour.gate = asyncio.Event()
    events = client.generate_stream({"text": "x"}, timeout_s=0.3)
    await anext(events)
    with pytest.raises(DeadlineError):
        await anext(events)
    await asyncio.wait_for(engine.until_running(0), 5)


@pytest.mark.parametrize(
    "body",
    [
        b'data: {"text": "a"}\n\n',
        b"data: oops\n\n",
        b"data: []\n\n",
        b'data: {"error": {"message": "no"}}\n\n',
        b"",
    ],
    ids=["broken off", "no JSON", "no object", "error event", "empty"],
)
async def test_a_stream_outside_the_protocol_is_an_upstream_error(
    world: Plane, client: InferenceClient, body: bytes
) -> None:
    for engine in world.engines:
        engine.behaviour.body, engine.behaviour.content_type = body, "text/event-stream"
    with pytest.raises(UpstreamError):
        async for _ in client.generate_stream({"text": "x"}):
            pass


# --- who it talks to --------------------------------------------------------------------


async def test_another_role_at_the_address_is_refused(world: Plane) -> None:
    client = InferenceClient(world.url, policy=ByKey, role="actor")
    with pytest.raises(RegistryUnavailableError, match="'actor'"):
        await client.generate({"text": "x"})
    await client.aclose()
    assert asked(world) == [0, 0, 0]


async def test_another_policy_than_the_roles_is_refused(world: Plane) -> None:
    client = InferenceClient(world.url, policy=OtherPolicy)
    with pytest.raises(PluginContractError, match="'by_key'"):
        await client.generate({"text": "x"})
    await client.aclose()


async def test_a_token_opens_discovery() -> None:
    async with plane(CRITIC, settings=GatewaySettings(bearer_tokens=("secret",))) as world:
        client = InferenceClient(world.url, policy=ByKey, token="secret")
        assert await client.generate({"text": "x"})
        await client.aclose()
        assert "authorization" not in world.engines[0].received[0].headers
        stranger = InferenceClient(world.url, policy=ByKey)
        with pytest.raises(RegistryUnavailableError, match="401"):
            await stranger.generate({"text": "x"})
        await stranger.aclose()


async def test_without_a_policy_it_loads_the_one_that_the_role_names() -> None:
    installed = PluginHost.from_environment().load(PluginKind.ROUTING_POLICY, "affinity")
    role = PlainRole(policy=installed)
    async with plane(role, engines=3) as world, InferenceClient(world.url) as client:
        target = await client.resolve(affinity_key="group-1")
        assert target.engine_id == f"m/replica-{engine_of(world, 'group-1')}"
        with pytest.raises(PayloadError, match="affinity key"):
            await client.generate({"text": "x"})


async def test_a_policy_that_is_not_installed_is_said_to_be_so(world: Plane) -> None:
    async with InferenceClient(world.url) as client:
        with pytest.raises(UnknownPluginError, match="by_key"):
            await client.generate({"text": "x"})


# --- one per loop -----------------------------------------------------------------------


def test_a_loop_shares_one_client_and_closes_it() -> None:
    clients: list[InferenceClient] = []
    closed: list[InferenceClient] = []

    async def ask() -> None:
        for _ in range(3):
            clients.append(await shared_client("http://127.0.0.1:9/critic/", policy=ByKey))
        real = clients[-1].aclose

        async def aclose() -> None:
            closed.append(clients[-1])
            await real()

        clients[-1].aclose = aclose  # type: ignore[method-assign]
        assert await shared_client("http://127.0.0.1:9/other", policy=ByKey) is not clients[0]

    asyncio.run(ask())
    assert len({id(client) for client in clients}) == 1
    assert closed == [clients[0]]
    asyncio.run(ask())
    assert len({id(client) for client in clients}) == 2, "another loop has its own"
