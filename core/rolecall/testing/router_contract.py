"""What every router has to do, as tests against the real one.

Inherit :class:`RouterContract` in a class whose name starts with ``Test`` and provide
``make_backend``. The tests are coroutines: run them with pytest-asyncio in mode ``auto``. Each starts a
router of its own and ends it; the engines behind it are scripted. Nothing here knows any router's name.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from attrs import fields, has

from rolecall.engines.ports import PortRange, reserve_port
from rolecall.errors import RouterError
from rolecall.ids import ModelId, RoleName
from rolecall.interfaces.engine_backend import Disaggregation
from rolecall.interfaces.router import Router, RouterBackend, RouterLaunch, RouterWorker
from rolecall.testing.asgi_server import serving
from rolecall.testing.scripted_engine import Received, ScriptedEngine

HOST = "127.0.0.1"


class RouterContract:
    """Contract tests of a router backend."""

    start_timeout_s: ClassVar[float] = 60.0
    call_timeout_s: ClassVar[float] = 20.0
    stop_timeout_s: ClassVar[float] = 20.0

    def make_backend(self) -> RouterBackend:
        """Return the backend, constructed as the core does: without arguments."""
        raise NotImplementedError

    @asynccontextmanager
    async def routing(self, folder: Path, *, pairs: bool = False) -> AsyncGenerator[Router]:
        """Run a router for the length of the block."""
        backend = self.make_backend()
        with_ports = [reserve_port(HOST, PortRange.SERVER) for _ in range(2)]
        router = backend.create(self._launch(folder, *(port.hand_over() for port in with_ports), pairs=pairs))
        await router.start(self.start_timeout_s)
        try:
            yield router
        finally:
            await router.stop(self.stop_timeout_s)
            for port in with_ports:
                port.release()

    async def register(self, router: Router, *urls: str) -> None:
        for url in urls:
            await router.register(RouterWorker(base_url=url), self.call_timeout_s)

    def _launch(self, folder: Path, port: int, metrics_port: int, *, pairs: bool = False) -> RouterLaunch:
        return RouterLaunch(
            role=RoleName("role"),
            model=ModelId("m"),
            served_model_name="served",
            host=HOST,
            port=port,
            metrics_port=metrics_port,
            pairs=pairs,
            log_path=folder / "router.log",
            options=self.make_backend().options(),
        )

    def test_declares_what_it_is(self) -> None:
        backend = self.make_backend()
        assert has(backend.options), "options is an attrs class"
        for attribute in fields(backend.options):
            assert attribute.kw_only, f"option {attribute.name} can be given by position"

    async def test_a_life_from_start_to_a_confirmed_end(self, tmp_path: Path) -> None:
        async with self.routing(tmp_path) as router, httpx.AsyncClient() as client:
            pid = router.pid
            assert pid is not None
            assert os.getpgid(pid) == pid, "a process group of its own"
            assert router.exit_code() is None
            assert (await router.health(self.call_timeout_s)).alive
            assert await router.listed(self.call_timeout_s) == frozenset()
            answer = await client.post(f"{router.base_url}/generate", json={"text": "x"})
            assert answer.status_code == 503, "nobody to ask"
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        assert router.exit_code() is not None
        assert not (await router.health(self.call_timeout_s)).alive

    async def test_a_router_that_is_killed_says_so(self, tmp_path: Path) -> None:
        async with self.routing(tmp_path) as router:
            assert router.pid is not None
            os.killpg(router.pid, signal.SIGKILL)
            while router.exit_code() is None:  # noqa: ASYNC110 - a process tells no event
                await asyncio.sleep(0.01)
            health = await router.health(self.call_timeout_s)
            assert not health.alive
            assert "-9" in health.detail
            with pytest.raises(RouterError):
                await router.listed(self.call_timeout_s)

    async def test_a_start_that_fails_tells_the_log_and_leaves_nothing(self, tmp_path: Path) -> None:
        held = reserve_port(HOST, PortRange.SERVER)
        router = self.make_backend().create(self._launch(tmp_path, held.port, held.port))
        try:
            with pytest.raises(RouterError, match="in use"):
                await router.start(self.start_timeout_s)
        finally:
            held.release()
        assert router.exit_code() is not None

    async def test_registered_is_listed_and_served_deregistered_is_neither(self, tmp_path: Path) -> None:
        """Pitfall 15: what was asked for counts when it is listed, not when the call is answered."""
        async with AsyncExitStack() as stack:
            engines = [ScriptedEngine(name=f"engine-{number}") for number in range(2)]
            urls = [await stack.enter_async_context(serving(engine.app)) for engine in engines]
            router = await stack.enter_async_context(self.routing(tmp_path))
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=router.base_url))
            for known in range(1, 3):
                await self.register(router, urls[known - 1])
                assert {w.base_url for w in await router.listed(self.call_timeout_s)} == set(urls[:known])
                answer = await client.post("/generate", json={"text": "x", "rid": f"r{known}"})
                assert answer.status_code == 200, "the first request after the registration is served"
            for _ in range(20):
                assert (await client.post("/generate", json={"text": "x"})).status_code == 200
            assert all(engine.received for engine in engines), "both have a share"
            seen = len(engines[0].received)
            await router.deregister(urls[0], self.call_timeout_s)
            assert {worker.base_url for worker in await router.listed(self.call_timeout_s)} == {urls[1]}
            for _ in range(10):
                assert (await client.post("/generate", json={"text": "x"})).status_code == 200
            assert len(engines[0].received) == seen
            for url in (*urls, urls[0]):
                await router.deregister(url, self.call_timeout_s)
            assert (await client.post("/generate", json={"text": "x"})).status_code == 503

    async def test_a_restart_on_the_same_url_is_served_once(self, tmp_path: Path) -> None:
        """Pitfall 14: a recovered engine on its old URL is routed to again, by one entry."""
        old, new = ScriptedEngine(name="old"), ScriptedEngine(name="new")
        async with self.routing(tmp_path) as router, httpx.AsyncClient(base_url=router.base_url) as client:
            async with serving(old.app) as url:
                await self.register(router, url)
                assert (await client.post("/generate", json={"text": "x"})).status_code == 200
            assert (await client.post("/generate", json={"text": "x"})).status_code >= 500, "it is dead"
            port = urlsplit(url).port
            assert port is not None
            async with serving(new.app, port=port) as again:
                assert again == url
                # Whether or not anybody took the dead one out before.
                for _ in range(2):
                    await self.register(router, url)
                    assert await router.listed(self.call_timeout_s) == {RouterWorker(base_url=url)}
                for number in range(3):
                    assert (await client.post("/generate", json={"text": "x"})).status_code == 200
                    assert len(new.received) == number + 1, "exactly once"
            assert len(old.received) == 1

    async def test_a_worker_that_cannot_be_added_is_no_ghost_later(self, tmp_path: Path) -> None:
        """Pitfall 15: a registration that was given up can't take effect behind our back."""
        engine = ScriptedEngine()
        claim = reserve_port(HOST, PortRange.SERVER)
        url = f"http://{HOST}:{claim.hand_over()}"
        try:
            async with self.routing(tmp_path) as router:
                with pytest.raises(RouterError, match=url):
                    await router.register(RouterWorker(base_url=url), 0.3)
                async with serving(engine.app, port=claim.port):
                    await router.deregister(url, self.start_timeout_s)
                    assert await router.listed(self.call_timeout_s) == frozenset()
                    await asyncio.sleep(1.5)  # longer than the router's own next attempt
                    assert await router.listed(self.call_timeout_s) == frozenset()
        finally:
            claim.release()

    async def test_what_is_under_way_is_not_cut_by_a_deregistration(self, tmp_path: Path) -> None:
        engine = ScriptedEngine()
        engine.behaviour.stuck = True
        async with (
            serving(engine.app) as url,
            self.routing(tmp_path) as router,
            httpx.AsyncClient(base_url=router.base_url) as client,
        ):
            await self.register(router, url)
            pending = asyncio.create_task(client.post("/generate", json={"text": "x", "rid": "r"}))
            await engine.until_running(1)
            await router.deregister(url, self.call_timeout_s)
            assert not pending.done()
            await client.post(f"{url}/abort_request", json={"rid": "r"})
            assert (await pending).status_code == 200

    async def test_a_request_is_sent_once_and_cut_with_its_caller(self, tmp_path: Path) -> None:
        """Pitfall 18, at the router: no failure is tried again. Pitfall 21: a caller's cut goes through."""
        engine = ScriptedEngine()
        engine.behaviour.notices_cuts = True
        async with (
            serving(engine.app) as url,
            _breaking() as (breaking_url, broken),
            self.routing(tmp_path) as router,
            httpx.AsyncClient(base_url=router.base_url) as client,
        ):
            await self.register(router, url)
            for status in (500, 502, 503):
                engine.behaviour.status = status
                engine.received.clear()
                assert (await client.post("/generate", json={"text": "x"})).status_code == status
                assert len(engine.received) == 1
            engine.behaviour.status = 200
            engine.behaviour.stuck = True
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.post("/generate", json={"text": "x", "rid": "r"})
            async with asyncio.timeout(self.call_timeout_s):
                await engine.until_running(0)
            assert engine.cuts == ["r"]
            await router.deregister(url, self.call_timeout_s)
            await self.register(router, breaking_url)
            assert (await client.post("/generate", json={"text": "x"})).status_code >= 500
            assert len(broken) == 1

    async def test_fields_that_are_not_called_lost_arrive(self, tmp_path: Path) -> None:
        engine = ScriptedEngine()
        backend = self.make_backend()
        async with (
            serving(engine.app) as url,
            self.routing(tmp_path) as router,
            httpx.AsyncClient(base_url=router.base_url) as client,
        ):
            await self.register(router, url)
            for path, payload in EVERY_FIELD.items():
                lost = {name.split(".")[0] for name in backend.lost_fields(path, payload)}
                answer = await client.post(path, json={k: v for k, v in payload.items() if k not in lost})
                assert answer.status_code == 200, answer.text
                _check_arrived(engine.received[-1], {k: v for k, v in payload.items() if k not in lost})

    async def test_both_halves_of_a_pair_see_the_request(self, tmp_path: Path) -> None:
        backend = self.make_backend()
        if not backend.pairs:
            pytest.skip("this router brings no pairs together")
        prefill, decode = ScriptedEngine(name="prefill"), ScriptedEngine(name="decode")
        async with (
            serving(prefill.app) as prefill_url,
            serving(decode.app) as decode_url,
            self.routing(tmp_path, pairs=True) as router,
            httpx.AsyncClient(base_url=router.base_url) as client,
        ):
            halves = {
                RouterWorker(base_url=prefill_url, half=Disaggregation.PREFILL, bootstrap_port=8998),
                RouterWorker(base_url=decode_url, half=Disaggregation.DECODE),
            }
            for worker in halves:
                await router.register(worker, self.call_timeout_s)
            assert await router.listed(self.call_timeout_s) == halves
            answer = await client.post("/generate", json={"input_ids": [1, 2], "rid": "r"})
            assert answer.status_code == 200, answer.text
            (first,), (second,) = prefill.received, decode.received
            for payload in (first.payload, second.payload):
                assert (payload["rid"], payload["input_ids"]) == ("r", [1, 2])
                assert (payload["bootstrap_host"], payload["bootstrap_port"]) == (HOST, 8998)
            assert first.payload["bootstrap_room"] == second.payload["bootstrap_room"]
            for engine in (prefill, decode):
                engine.behaviour.stuck = engine.behaviour.notices_cuts = True
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.post("/generate", json={"input_ids": [1, 2], "rid": "s"})
            async with asyncio.timeout(self.call_timeout_s):
                await prefill.until_running(0)
                await decode.until_running(0)
            assert (prefill.cuts, decode.cuts) == (["s"], ["s"])
            await router.deregister(decode_url, self.call_timeout_s)
            assert (await client.post("/generate", json={"text": "x"})).status_code == 503
            assert len(prefill.received) == 2, "half a pair is asked for nothing"


EVERY_FIELD: dict[str, dict[str, Any]] = {
    "/generate": {
        "rid": "r",
        "input_ids": [1, 2, 3],
        "sampling_params": {"temperature": 0.5, "max_new_tokens": 2, "stop": ["x"], "sampling_seed": 7},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "token_ids_logprob": [5],
        "stream": False,
        "lora_path": "l",
        "image_data": ["i"],
        "return_routed_experts": True,
        "never_heard_of": 1,
    },
    "/v1/chat/completions": {
        "model": "served",
        "messages": [{"role": "user", "content": "x"}],
        "temperature": 0.5,
        "seed": 7,
        "stop": ["x"],
        "chat_template_kwargs": {"a": 1},
        "never_heard_of": 1,
        "rid": "r",
    },
}


def _check_arrived(received: Received, sent: dict[str, Any]) -> None:
    arrived = received.payload
    assert {name: arrived.get(name) for name in sent} == sent


@asynccontextmanager
async def _breaking() -> AsyncGenerator[tuple[str, list[bytes]]]:
    """Serve an engine that is healthy but drops the connection of every POST; yields its requests."""
    requests: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"POST"):
                requests.append(head)
            elif head.startswith(b"GET /health"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a probe in another protocol
        writer.close()

    server = await asyncio.start_server(handle, HOST, 0)
    try:
        yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}", requests
    finally:
        server.close()
