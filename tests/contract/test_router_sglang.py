"""The policy ``sglang_router`` brings a router that keeps the contract: the real one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import httpx
import pytest

from rolecall.api import RouterBackend, RouterError
from rolecall.testing.asgi_server import serving
from rolecall.testing.router_contract import RouterContract
from rolecall.testing.scripted_engine import ScriptedEngine
from rolecall_routing.sglang_router import SglangRouterBackend, fields
from rolecall_routing.sglang_router.fields import lost_fields

pytestmark = pytest.mark.timeout(120)

VALUES: tuple[Any, ...] = (
    1,
    True,
    "x",
    ["x"],
    [1],
    {"a": "b"},
    {"1": 0.5},
    [{"a": 1}],
    {"type": "text"},
    "low",
)
"""One of these is of a field's type."""

FUNCTION = {"name": "f", "parameters": {}}
TOGETHER: dict[str, dict[str, Any]] = {
    "response_format": {"response_format": {"type": "text"}},
    "top_logprobs": {"logprobs": True, "top_logprobs": 1},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "tools": {"tools": [{"type": "function", "function": FUNCTION}]},
    "tool_choice": {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "auto"},
    "parallel_tool_calls": {
        "tools": [{"type": "function", "function": FUNCTION}],
        "parallel_tool_calls": True,
    },
}
"""Fields that mean nothing alone, or have a shape of their own."""

GENERATE: dict[str, Any] = {"text": "x"}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


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

    async def test_every_field_that_is_called_kept_arrives(self, tmp_path) -> None:
        engine = ScriptedEngine()
        async with (
            serving(engine.app) as url,
            self.routing(tmp_path) as router,
            httpx.AsyncClient(base_url=router.base_url) as client,
        ):
            await self.register(router, url)

            async def arrives(path: str, body: dict[str, Any], *where: str) -> bool:
                engine.received.clear()
                await client.post(path, json=body)
                sent: Any = body
                found: Any = engine.received[-1].payload if engine.received else {}
                for name in where:
                    sent, found = sent[name], (found or {}).get(name)
                return sent == found

            lost = [
                name
                for name in fields.GENERATE - {"sampling_params", *GENERATE}
                if not any([await arrives("/generate", {**GENERATE, name: v}, name) for v in VALUES])
            ]
            for name in fields.SAMPLING:
                bodies = [{**GENERATE, "sampling_params": {name: value}} for value in VALUES]
                if not any([await arrives("/generate", body, "sampling_params", name) for body in bodies]):
                    lost.append(f"sampling_params.{name}")
            for name in fields.CHAT - {"max_tokens", *CHAT}:
                alone = [{name: value} for value in VALUES]
                bodies = [{**CHAT, **more} for more in ([TOGETHER[name]] if name in TOGETHER else alone)]
                if not any([await arrives("/v1/chat/completions", body, name) for body in bodies]):
                    lost.append(f"chat {name}")
            assert lost == []
            await client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 3})
            assert engine.received[-1].payload["max_completion_tokens"] == 3, "by its newer name"


@pytest.mark.parametrize(
    ("path", "payload", "lost"),
    [
        ("/generate", {"text": "x", "rid": "r", "return_logprob": True}, ()),
        ("/generate", {"text": "x", "return_routed_experts": None}, ()),
        ("/generate", {"text": "x", "return_prompt_token_ids": True}, ()),
        ("/generate", {"text": "x", "zeta": 1, "alpha": 1}, ("alpha", "zeta")),
        ("/generate", {"sampling_params": {"stop_regex": "x", "n": 1}}, ("sampling_params.stop_regex",)),
        ("/generate", {"sampling_params": [{"stop_regex": "x"}]}, ()),
        ("/v1/chat/completions", {**CHAT, "rid": "r", "user": "u"}, ("rid",)),
        ("/v1/chat/completions", {**CHAT, "custom_params": {}}, ("custom_params",)),
    ],
)
def test_lost_fields_are_named(path: str, payload: dict[str, Any], lost: tuple[str, ...]) -> None:
    assert lost_fields(path, payload) == lost


def test_a_router_that_is_not_installed_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("rolecall_routing.sglang_router.router.find_spec", lambda name: None)
    router = SglangRouterBackend().create(TestSglangRouter()._launch(tmp_path, 1, 2))
    with pytest.raises(RouterError, match=r"pip install 'rolecall\[sglang-router\]'"):
        asyncio.run(router.start(1))


def test_declaring_the_policy_imports_neither_router_nor_http_client() -> None:
    code = (
        "import sys, rolecall_routing.sglang_router as m; m.rolecall_routing_policy();"
        "print(sorted({'sglang_router', 'httpx', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
