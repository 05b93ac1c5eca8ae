"""More than a thousand streams through one door at once, also when half of the callers leave."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from rolecall.client.http1_transport import Http1Transport
from rolecall.client.transport import Outgoing
from rolecall.guard.door import Door
from rolecall.testing.asgi_server import serving
from rolecall.testing.scripted_answers import tokens_of
from rolecall.testing.scripted_engine import ScriptedEngine

STREAMS = 1200


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """Both ends of both connections of every stream are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 4 * STREAMS + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"needs {needed} open files, the machine allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    """Sends a first event to everybody, and the others once everybody is there."""
    engine = ScriptedEngine()
    engine.behaviour.gate = asyncio.Event()
    return engine


@pytest.fixture
async def door(engine: ScriptedEngine) -> AsyncIterator[Door]:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    door = Door(bound)
    async with serving(engine.app) as url:
        await door.start(url, "m")
        door.open()
        yield door
        await door.stop()


@pytest.fixture
async def transport() -> AsyncIterator[Http1Transport]:
    transport = Http1Transport(max_concurrency=STREAMS)
    yield transport
    await transport.aclose()


def request(door: Door, number: int) -> Outgoing:
    body = {"rid": f"{number:05}", "text": str(number), "stream": True}
    headers = [(b"content-type", b"application/json")]
    return Outgoing(
        method="POST", url=f"{door.url}/generate", headers=headers, body=json.dumps(body).encode()
    )


async def test_a_thousand_streams_at_once_all_end_well(
    engine: ScriptedEngine, door: Door, transport: Http1Transport
) -> None:
    """Pitfall 22, through the door: no error, and every stream is its own."""

    async def ask(number: int) -> list[int]:
        incoming = await transport.send(request(door, number))
        assert incoming.status == 200
        body = b"".join([chunk async for chunk in incoming.chunks()])
        await incoming.aclose()
        *events, done = [line for line in body.decode().split("\n\n") if line]
        assert done == "data: [DONE]"
        return json.loads(events[-1].removeprefix("data: "))["output_ids"]

    asking = [asyncio.create_task(ask(number)) for number in range(STREAMS)]
    await engine.until_running(STREAMS)
    assert door.permits == STREAMS
    assert engine.behaviour.gate is not None
    engine.behaviour.gate.set()
    answers = await asyncio.gather(*asking)
    assert answers == [tokens_of(str(number), 4) for number in range(STREAMS)]
    door.close()
    await asyncio.wait_for(door.drained(), 30)
    assert engine.aborts == []


async def test_when_half_of_a_thousand_callers_leave_their_requests_end_and_the_others_go_on(
    engine: ScriptedEngine, door: Door, transport: Http1Transport
) -> None:
    """Pitfall 21 at scale: dropped in mid-stream, in flight returns to the half that stayed."""
    answers = await asyncio.gather(*(transport.send(request(door, n)) for n in range(STREAMS)))
    await engine.until_running(STREAMS)
    for leaving in answers[::2]:
        await leaving.aclose()
    await asyncio.wait_for(engine.until_running(STREAMS // 2), 120)
    assert set(engine.aborts) == {f"{number:05}" for number in range(0, STREAMS, 2)}
    assert engine.behaviour.gate is not None
    engine.behaviour.gate.set()
    for staying in answers[1::2]:
        body = b"".join([chunk async for chunk in staying.chunks()])
        assert body.endswith(b"data: [DONE]\n\n")
        await staying.aclose()
    door.close()
    await asyncio.wait_for(door.drained(), 60)
