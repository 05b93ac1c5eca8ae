"""The kit's scripted engine tells the truth about SGLang's protocol: both are asked the same."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from rolecall.testing.engine_server import EngineServer
from rolecall.testing.shared_engines import FIRST_VERSION

pytestmark = [pytest.mark.sglang, pytest.mark.asyncio(loop_scope="session")]

IDS = [17, 45, 201, 8]
GREEDY = {"temperature": 0, "max_new_tokens": 3, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "what is two plus three?"}]
CHAT = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 3}
SCORED = {
    "input_ids": IDS,
    "sampling_params": {"temperature": 0, "max_new_tokens": 0},
    "return_logprob": True,
    "logprob_start_len": 0,
    "top_logprobs_num": 2,
    "token_ids_logprob": [3, 200],
    "return_prompt_token_ids": True,
}
REQUESTS: dict[str, tuple[str, str, Any]] = {
    "alive": ("GET", "/health", None),
    "generates": ("GET", "/health_generate", None),
    "model": ("GET", "/model_info", None),
    "model_older_name": ("GET", "/get_model_info", None),
    "server": ("GET", "/server_info", None),
    "server_older_name": ("GET", "/get_server_info", None),
    "models": ("GET", "/v1/models", None),
    "loads": ("GET", "/v1/loads", None),
    "unary": ("POST", "/generate", {"input_ids": IDS, "sampling_params": GREEDY, "return_logprob": True}),
    "scored": ("POST", "/generate", SCORED),
    "text": (
        "POST",
        "/generate",
        {"text": "two plus three", "sampling_params": GREEDY, "rid": "of-a-caller"},
    ),
    "stream": ("POST", "/generate", {"input_ids": IDS, "sampling_params": GREEDY, "stream": True}),
    "prompt_only_stream": ("POST", "/generate", {**SCORED, "stream": True}),
    "chat": ("POST", "/v1/chat/completions", CHAT),
    "nothing_to_do": ("POST", "/generate", {"sampling_params": GREEDY}),
    "abort": ("POST", "/abort_request", {"rid": "nobody"}),
    "pause": ("POST", "/pause_generation", {"mode": "abort"}),
    "abort_all": ("POST", "/abort_request", {"abort_all": True}),
    "flush": ("POST", "/flush_cache", None),
    "continue": ("POST", "/continue_generation", {}),
    "version": ("POST", "/update_weight_version", {"new_version": FIRST_VERSION}),
    "no_such_group": ("POST", "/destroy_weights_update_group", {"group_name": "never joined"}),
}


async def answers(base_url: str, requests: list[tuple[str, str, Any]]) -> list[tuple[int, Any]]:
    """Status and content of each answer."""
    found: list[tuple[int, Any]] = []
    async with httpx.AsyncClient(base_url=base_url, timeout=120, trust_env=False) as client:
        for method, path, payload in requests:
            response = await client.request(method, path, json=payload)
            found.append((response.status_code, content(response)))
    return found


def content(response: httpx.Response) -> Any:
    kind = response.headers.get("content-type", "")
    if kind.startswith("application/json"):
        return response.json()
    if not kind.startswith("text/event-stream"):
        return type(response.text).__name__
    *tokens, end = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    events = [json.loads(line) for line in tokens]
    # How many there are is the engine's affair: under load one event has several tokens.
    return {"before": events[:-1][:1], "last": events[-1], "end": end}


def differences(scripted: Any, real: Any, place: str = "") -> list[str]:
    """What the scripted answer has that the real one has not, or has as another type."""
    if type(scripted) is not type(real):
        return [f"{place}: {type(scripted).__name__}, really {type(real).__name__} ({real!r:.100})"]
    if isinstance(scripted, dict):
        missing = [f"{place}.{key}: really missing" for key in scripted.keys() - real.keys()]
        common = sorted(scripted.keys() & real.keys())
        return missing + [line for k in common for line in differences(scripted[k], real[k], f"{place}.{k}")]
    if isinstance(scripted, list):
        pairs = enumerate(zip(scripted, real, strict=False))
        return [line for n, (one, other) in pairs for line in differences(one, other, f"{place}[{n}]")]
    return []


@pytest.mark.parametrize("name", REQUESTS)
async def test_an_answer_has_the_real_ones_status_and_shape(
    name: str, client: httpx.AsyncClient, rolecall_engine_server: EngineServer
) -> None:
    asked = [REQUESTS[name]]
    (scripted,) = await answers(rolecall_engine_server.base_url, asked)
    (real,) = await answers(str(client.base_url), asked)
    if name == "pause":
        await client.post("/continue_generation", json={})
    assert scripted[0] == real[0], real[1]
    assert differences(scripted[1], real[1]) == []
    if name.endswith("stream"):
        assert scripted[1]["end"] == real[1]["end"] == "[DONE]"


async def test_weights_from_disk(
    client: httpx.AsyncClient, rolecall_engine_server: EngineServer, checkpoints: tuple[Path, Path]
) -> None:
    update = {"model_path": str(checkpoints[0]), "weight_version": FIRST_VERSION, "load_format": "auto"}
    asked: list[tuple[str, str, Any]] = [("POST", "/update_weights_from_disk", update), REQUESTS["model"]]
    scripted = await answers(rolecall_engine_server.base_url, asked)
    real = await answers(str(client.base_url), asked)
    assert [status for status, _ in scripted] == [status for status, _ in real] == [200, 200]
    assert [line for one, other in zip(scripted, real, strict=True) for line in differences(one, other)] == []
    for key in ("model_path", "weight_version"):
        assert scripted[1][1][key] == real[1][1][key]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_aborted_answer(
    client: httpx.AsyncClient, rolecall_engine_server: EngineServer, stream: bool
) -> None:
    long = {**GREEDY, "max_new_tokens": 4000}
    payload = {"input_ids": IDS, "sampling_params": long, "rid": "aborted", "stream": stream}
    rolecall_engine_server.behaviour.stuck = not stream
    rolecall_engine_server.hold()
    ends: list[dict[str, Any]] = []
    for base_url in (rolecall_engine_server.base_url, str(client.base_url)):
        asking = asyncio.create_task(answers(base_url, [("POST", "/generate", payload)]))
        while not asking.done():  # an abort that comes before its request does nothing
            await answers(base_url, [("POST", "/abort_request", {"rid": "aborted"})])
            await asyncio.sleep(0.05)
        status, content = asking.result()[0]
        assert status == 200
        ends.append(content["last"] if stream else content)
    scripted, real = (end["meta_info"]["finish_reason"] for end in ends)
    assert scripted["type"] == real["type"] == "abort"
    assert differences(scripted, real) == []
