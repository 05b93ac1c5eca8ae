"""The embedded engine's control calls and its start, without a model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from rolecall.api import (
    ChildProcess,
    EngineError,
    EngineId,
    EngineLaunch,
    EngineStartError,
    MemoryTag,
    ModelId,
    RoleName,
)
from rolecall_plugins.engines.embedded import EmbeddedBackend, EmbeddedOptions, rolecall_engine_backend
from rolecall_plugins.engines.embedded.engine import EmbeddedEngine
from rolecall_plugins.engines.http_control import SglangControl

pytestmark = pytest.mark.timeout(60)


def control(answer: Callable[[httpx.Request], httpx.Response]) -> SglangControl:
    return SglangControl("http://engine", transport=httpx.MockTransport(answer))


async def test_control_calls_send_what_sglang_expects() -> None:
    seen: list[tuple[str, str, bytes]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, request.url.path, request.content))
        return httpx.Response(200, json={"success": True})

    engine = control(answer)
    await engine.pause()
    await engine.abort("r")
    await engine.abort_all()
    assert await engine.flush()
    await engine.release(frozenset({MemoryTag.WEIGHTS, MemoryTag.KV_CACHE}))
    await engine.resume(frozenset({MemoryTag.WEIGHTS}))
    await engine.continue_generation()
    await engine.update_weights_from_disk("/w", "3")
    assert seen == [
        ("POST", "/pause_generation", b'{"mode":"abort"}'),
        ("POST", "/abort_request", b'{"rid":"r"}'),
        ("POST", "/abort_request", b'{"abort_all":true}'),
        ("POST", "/flush_cache", b""),
        ("POST", "/release_memory_occupation", b'{"tags":["kv_cache","weights"]}'),
        ("POST", "/resume_memory_occupation", b'{"tags":["weights"]}'),
        ("POST", "/continue_generation", b"{}"),
        ("POST", "/update_weights_from_disk", b'{"model_path":"/w","weight_version":"3"}'),
    ]
    await engine.close()
    await engine.close()


async def test_each_call_is_made_once_and_a_refusal_is_quoted() -> None:
    calls: list[str] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        calls.append(request.url.path)
        return httpx.Response(500, text="out of order")

    with pytest.raises(EngineError, match="POST /release_memory_occupation: HTTP 500: out of order"):
        await control(refuse).release(frozenset({MemoryTag.WEIGHTS}))
    with pytest.raises(EngineError, match="HTTP 500"):
        await control(refuse).flush()
    assert calls == ["/release_memory_occupation", "/flush_cache"]
    assert not await control(lambda _: httpx.Response(400)).flush(), "busy is an answer, not a fault"
    refused = httpx.Response(200, json={"success": False, "message": "not enough room"})
    with pytest.raises(EngineError, match="not enough room"):
        await control(lambda _: refused).update_weights_from_disk("/w", "1")


async def test_faults_of_the_connection_become_engine_errors() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(EngineError, match="GET http://engine/server_info: ConnectError: refused"):
        await control(fail).server_info()
    health = await control(fail).health(generate=False, timeout_s=1)
    assert (health.alive, health.detail) == (False, "/health: ConnectError: refused")
    with pytest.raises(EngineError, match="the answer is not JSON"):
        await control(lambda _: httpx.Response(200, text="<html>")).model_info()
    with pytest.raises(EngineError, match="an object was expected"):
        await control(lambda _: httpx.Response(200, json=[])).model_info()


async def test_health_tells_a_refusal_from_silence() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/health":
            return httpx.Response(503)
        raise httpx.ReadTimeout("", request=request)

    assert (await control(answer).health(generate=False, timeout_s=1)).detail == "/health: HTTP 503"
    silent = await control(answer).health(generate=True, timeout_s=1)
    assert (silent.alive, silent.detail) == (False, "/health_generate: no answer within 1 s")


def engine_with(tmp_path: Path, answer: Callable[[httpx.Request], httpx.Response]) -> EmbeddedEngine:
    launch = EngineLaunch(
        engine_id=EngineId("m/replica-0"),
        role=RoleName("r"),
        model=ModelId("m"),
        model_path=tmp_path,
        served_model_name="m",
        host="127.0.0.1",
        port=1,
        device_ids=(),
        weight_version=None,
        log_path=tmp_path / "log",
        options=EmbeddedOptions(),
    )
    engine = EmbeddedEngine(launch, {})
    engine._control = control(answer)
    return engine


async def test_a_canary_that_was_cut_short_is_no_canary(tmp_path: Path) -> None:
    aborted: dict[str, Any] = {
        "meta_info": {
            "input_token_logprobs": [[None, 1, None]],
            "output_token_logprobs": [],
            "finish_reason": {"type": "abort", "message": "paused"},
        }
    }
    engine = engine_with(tmp_path, lambda _: httpx.Response(200, json=aborted))
    with pytest.raises(EngineError, match="gave 0 log-probabilities, 13 are expected"):
        await engine.canary()


async def test_an_answer_from_another_process_is_not_our_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_with(tmp_path, lambda _: httpx.Response(200, json={"pid": 1}))
    sleeper = ChildProcess(
        [sys.executable, "-I", "-c", "import time; time.sleep(600)"],
        environment={},
        log_path=tmp_path / "log",
    )
    monkeypatch.setattr(engine, "_process", sleeper)
    with pytest.raises(EngineStartError, match="is the port taken"):
        await engine.start(20)
    assert not sleeper.group_alive()


def test_the_plugin_module_loads_no_inference_runtime() -> None:
    code = (
        "import sys, rolecall_plugins.engines.embedded as m; m.rolecall_engine_backend();"
        "heavy = {'xllamacpp', 'tokenizers', 'gguf', 'uvicorn', 'httpx', 'ray'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert rolecall_engine_backend() is EmbeddedBackend


@pytest.mark.parametrize(
    "options", [{"threads": 0}, {"parallel_requests": 0}, {"context_tokens": 100}, {"batch_tokens": 1}]
)
def test_options_are_checked_when_made(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        EmbeddedOptions(**options)
