"""The policy ``sglang_router`` brings a router that keeps the contract: the real one."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from rolecall.api import RouterBackend
from rolecall.testing.asgi_server import serving
from rolecall.testing.router_contract import RouterContract
from rolecall.testing.scripted_engine import ScriptedEngine
from rolecall_routing.sglang_router import SglangRouterBackend

pytestmark = pytest.mark.timeout(120)

MADE_UP: dict[str, Any] = {"never_heard_of": 1}


class TestSglangRouter(RouterContract):
    def make_backend(self) -> RouterBackend:
        return SglangRouterBackend()

    async def test_control_calls_need_the_key_and_requests_do_not(self, tmp_path) -> None:
        engine = ScriptedEngine()
        async with (
            serving(engine.app) as url,
            self.routing(tmp_path) as router,
            httpx.AsyncClient(base_url=router.base_url) as client,
        ):
            await self.register(router, url)
            for method, path in (("GET", "/workers"), ("POST", "/workers"), ("POST", "/flush_cache")):
                answer = await client.request(method, path, json={"url": "http://127.0.0.1:1"})
                assert answer.status_code == 401, path
            assert (await client.post("/generate", json={"text": "x"})).status_code == 200
            assert (await client.post("/abort_request", json={"rid": "r"})).status_code == 404, (
                "it has learnt to abort: tell it, then (docs/howto/sglang-router.md, limits)"
            )
