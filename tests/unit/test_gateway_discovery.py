"""Discovery at a served gateway: who waits, who reads, and what that costs everybody else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from attrs import define, evolve, field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolecall.api import Endpoint
from rolecall.client.http1_transport import Http1Transport
from rolecall.client.snapshot_reader import HttpSnapshotReader
from rolecall.discovery import source as source_module
from rolecall.discovery.registry import Published, Registry
from rolecall.discovery.snapshot import Snapshot
from rolecall.discovery.source import SnapshotSource
from rolecall.gateway.app import build_gateway
from rolecall.gateway.front import Ending, serve_front
from rolecall.gateway.settings import GatewaySettings
from rolecall.testing.asgi_server import serving
from rolecall.testing.plain_role import PassesOn, PlainRole
from rolecall.testing.snapshots import model_entry, snapshot_of

CLIENTS = 200
ROLE = PlainRole()


def revision(number: int, urls: Sequence[str] = ("http://127.0.0.1:9",)) -> Snapshot:
    entry = model_entry("m", urls, generation=number)
    return snapshot_of({"m": entry}, policy=ROLE.policy.name, revision=number)


@define
class Counted:
    """Reads a registry and counts."""

    registry: Registry
    reads: list[float] = field(factory=list)

    async def read(self, etag: str | None, wait_s: float) -> Published | None:
        self.reads.append(wait_s)
        return await self.registry.read(ROLE.name, etag, wait_s)

    async def aclose(self) -> None: ...


@define
class Served:
    url: str
    registry: Registry
    reader: Counted
    source: SnapshotSource

    def publish(self, snapshot: Snapshot) -> None:
        self.registry.publish(ROLE.name, snapshot.to_json())

    async def until_waiting(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.source._waiting) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@asynccontextmanager
async def served(role: PlainRole = ROLE, **settings: Any) -> AsyncIterator[Served]:
    registry = Registry()
    registry.publish(role.name, revision(1).to_json())
    reader = Counted(registry)
    source = SnapshotSource(reader, role=role.name)
    async with serving(build_gateway(role, source, GatewaySettings(**settings))) as url:
        yield Served(url, registry, reader, source)


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[str | bytes]:
    """What was parsed as a snapshot on the way into a source."""
    parsed: list[str | bytes] = []
    real = source_module.decode_snapshot

    def counting(text: str | bytes) -> Snapshot:
        parsed.append(text)
        return real(text)

    monkeypatch.setattr(source_module, "decode_snapshot", counting)
    return parsed


def http_reader(url: str) -> HttpSnapshotReader:
    return HttpSnapshotReader(Http1Transport(max_concurrency=4), url)


async def test_a_change_reaches_all_who_wait_by_one_read_and_one_parse(parses: list[Any]) -> None:
    async with served() as gateway, AsyncExitStack() as stack:
        readers = [http_reader(gateway.url) for _ in range(CLIENTS)]
        for reader in readers:
            stack.push_async_callback(reader.aclose)
        waits = [asyncio.create_task(reader.read(revision(1).etag, 20)) for reader in readers]
        await gateway.until_waiting(CLIENTS)
        reads, parsed = len(gateway.reader.reads), len(parses)
        changed = revision(2)
        gateway.publish(changed)
        async with asyncio.timeout(10):
            answers = await asyncio.gather(*waits)
        assert answers == [Published(etag=changed.etag, body=changed.to_json())] * CLIENTS
        assert len(gateway.reader.reads) == reads + 1, "the next long poll of the gateway's own"
        assert len(parses) == parsed + 1


async def test_reads_call_no_worker() -> None:
    calls: list[object] = []
    worker = await asyncio.start_server(lambda *streams: calls.append(streams), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{worker.sockets[0].getsockname()[1]}"
    async with served() as gateway, worker, httpx.AsyncClient(base_url=gateway.url, verify=False) as http:
        gateway.publish(revision(2, [url]))
        for path in ("/engines", "/engines?wait_s=0.01", "/health", "/v1/models", "/metrics"):
            assert (await http.get(path)).status_code == 200
        waiting = asyncio.create_task(http.get("/engines", params={"wait_s": 20, "since": revision(2).etag}))
        await gateway.until_waiting(1)
        gateway.publish(revision(3, [url, "http://127.0.0.1:9"]))
        assert (await waiting).json()["topology_revision"] == 3
        assert calls == []


async def test_reads_that_wait_for_nothing_ask_nobody() -> None:
    async with served() as gateway, httpx.AsyncClient(base_url=gateway.url, verify=False) as http:
        first = await http.get("/engines")
        await asyncio.sleep(0)
        reads = len(gateway.reader.reads)
        for _ in range(50):
            again = await http.get("/engines", headers={"If-None-Match": first.headers["etag"]})
            assert again.status_code == 304
        assert len(gateway.reader.reads) <= reads + 1, "the gateway's own long poll, no more"


async def test_a_caller_that_leaves_waits_no_more() -> None:
    async with served(max_requests_per_caller=1) as gateway:
        for _ in range(3):
            async with httpx.AsyncClient(base_url=gateway.url, verify=False) as http:
                waiting = asyncio.create_task(
                    http.get("/engines", params={"wait_s": 30, "since": revision(1).etag})
                )
                await gateway.until_waiting(1)
                waiting.cancel()
            await gateway.until_waiting(0)


async def test_who_waits_is_told_that_the_registry_is_lost() -> None:
    async with served() as gateway, httpx.AsyncClient(base_url=gateway.url, verify=False) as http:
        waiting = asyncio.create_task(http.get("/engines", params={"wait_s": 20, "since": revision(1).etag}))
        await gateway.until_waiting(1)
        gateway.registry.invalidate(ROLE.name)
        answer = await waiting
        assert answer.status_code == 503
        assert "retry-after" in answer.headers
        assert answer.json()["error"]["type"]


async def test_a_front_that_drains_lets_go_who_waits() -> None:
    registry = Registry()
    registry.publish(ROLE.name, revision(1).to_json())
    source = SnapshotSource(registry.reader(ROLE.name), role=ROLE.name)
    gateway = build_gateway(ROLE, source, GatewaySettings())
    ending, ready = Ending(), asyncio.Event()
    ending.at_drain.append(source.release)
    bound = socket.create_server(("127.0.0.1", 0))
    front = asyncio.create_task(
        serve_front({ROLE.name: gateway}, bound, drain_s=60, ending=ending, ready=ready.set)
    )
    await ready.wait()
    async with httpx.AsyncClient(verify=False, timeout=30) as http:
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/{ROLE.name}/engines"
        waiting = asyncio.create_task(http.get(url, params={"wait_s": 30, "since": revision(1).etag}))
        async with asyncio.timeout(10):
            while not source._waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            ending.ask()
            answer = await waiting
            await front
    assert answer.status_code == 304
    assert answer.headers["connection"] == "close", "the next wait is somebody else's"


async def test_times_that_end_and_changes_that_come_together() -> None:
    """None is answered twice or left behind, whatever comes first."""
    async with served() as gateway, http_client(gateway.url) as reader:
        etag = revision(1).etag
        for number in range(2, 22):
            waits = [asyncio.create_task(reader.read(etag, 0.02)) for _ in range(4)]
            await asyncio.sleep(0.02)
            changed = revision(number)
            gateway.publish(changed)
            answers = await asyncio.gather(*waits)
            assert {answer.etag for answer in answers if answer is not None} <= {changed.etag}
            etag = changed.etag
        await gateway.until_waiting(0)


@asynccontextmanager
async def http_client(url: str) -> AsyncIterator[HttpSnapshotReader]:
    reader = http_reader(url)
    yield reader
    await reader.aclose()


async def test_a_tag_that_a_proxy_made_weak_is_the_same_tag() -> None:
    """nginx does that when it compresses."""
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        asked.append(scope["query_string"].decode())
        headers = [(b"etag", f'W/"{revision(1).etag}"'.encode()), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": revision(1).to_json().encode()})

    async with serving(app) as url, http_client(url) as reader:
        published = await reader.read(None, 0)
        assert published is not None
        assert published.etag == revision(1).etag
    async with served() as gateway, http_client(gateway.url) as reader:
        assert await reader.read(published.etag, 0) is None


# --- a role's own endpoint at the same path ------------------------------------------------------


async def _legacy(request: Request, gateway: Any) -> Response:
    return JSONResponse({"legacy": dict(request.query_params)})


class WithAPageOfItsOwn(PassesOn):
    def endpoints(self) -> Sequence[Endpoint]:
        return [Endpoint(method="GET", path="/engines", handler=_legacy, query={"view": "old"})]


@pytest.mark.parametrize(
    ("query", "legacy"),
    [
        ("view=old", True),
        ("view=old&wait_s=1", True),
        ("%76iew=old", True),
        ("view=new", False),
        ("wait_s=0", False),
        ("", False),
    ],
)
async def test_a_roles_own_page_is_chosen_by_its_query(query: str, legacy: bool) -> None:
    role = evolve(ROLE, plugin=WithAPageOfItsOwn())
    async with served(role) as gateway, httpx.AsyncClient(verify=False) as http:
        answer = await http.get(f"{gateway.url}/engines?{query}")
        assert answer.status_code == 200
        assert ("legacy" in answer.json()) is legacy


async def test_only_the_head_is_asked_for() -> None:
    async with served() as gateway, httpx.AsyncClient(verify=False) as http:
        answer = await http.head(f"{gateway.url}/engines")
        assert answer.headers["etag"] == f'"{revision(1).etag}"'
        assert int(answer.headers["content-length"]) == len(revision(1).to_json())
        assert answer.content == b""


# --- one parse for a revision ---------------------------------------------------------------------


async def test_a_revision_is_parsed_once_however_it_comes(parses: list[Any]) -> None:
    class AlwaysWhole:
        """A reader that knows no 304."""

        async def read(self, etag: str | None, wait_s: float) -> Published:
            return Published(etag=current.etag, body=current.to_json())

        async def aclose(self) -> None: ...

    current = revision(1)
    source = SnapshotSource(AlwaysWhole(), ttl_s=0.0)
    seen = {id(await source.current()) for _ in range(20)}
    seen |= {id(await source.refresh()) for _ in range(20)}
    seen |= {id(snapshot) for snapshot in await asyncio.gather(*(source.current() for _ in range(100)))}
    assert len(seen) == 1
    assert len(parses) == 1
    current = revision(2)
    assert (await source.current()).topology_revision == 2
    assert len(parses) == 2
    await source.aclose()
