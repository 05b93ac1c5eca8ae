"""Real SGLang behind its door: what passes, callers that leave, a drain with requests inside."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from rolecall.engines.deadline import Deadline, LoopClock
from rolecall.engines.handover import HandoverLimits, abort_until_quiet, close_and_wait
from rolecall.guard.door import Door
from rolecall.testing.shared_engines import FIRST_VERSION
from rolecall_plugins.engines.sglang.engine import SglangEngine

pytestmark = [pytest.mark.sglang, pytest.mark.asyncio(loop_scope="session")]

PROMPT = [17, 45, 201, 8, 133, 77]
SHORT = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
LONG = {"temperature": 0, "max_new_tokens": 1800, "ignore_eos": True}


@pytest_asyncio.fixture(loop_scope="session")
async def door(engine: SglangEngine) -> AsyncIterator[Door]:
    """An open door before the shared engine."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    door = Door(bound)
    await door.start(engine.base_url, "tiny")
    door.open()
    yield door
    await door.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def http(door: Door) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=door.url, timeout=120, trust_env=False) as http:
        yield http


async def until_ended(engine: SglangEngine, door: Door) -> None:
    async with asyncio.timeout(60):
        while door.permits or await engine.running_requests():  # noqa: ASYNC110 - neither sends an event
            await asyncio.sleep(0.05)


async def test_answers_and_streams_pass(http: httpx.AsyncClient, client: httpx.AsyncClient) -> None:
    body = {"input_ids": PROMPT, "sampling_params": SHORT}
    straight = (await client.post("/generate", json=body)).json()
    through = await http.post("/generate", json=body)
    assert through.json()["output_ids"] == straight["output_ids"]
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "stream": True}
    stream = await http.post("/v1/chat/completions", json=chat)
    assert stream.headers["content-type"].startswith("text/event-stream")
    *events, done = [line for line in stream.text.split("\n\n") if line]
    assert done == "data: [DONE]"
    assert all(json.loads(event.removeprefix("data: "))["choices"] for event in events)
    assert (await http.get("/health_generate")).status_code == 200


async def test_metadata_names_the_model_and_nothing_internal(
    http: httpx.AsyncClient, client: httpx.AsyncClient, checkpoints: tuple[Path, Path]
) -> None:
    """Also after new weights from disk, from when on SGLang calls itself by their folder."""
    update = {"model_path": str(checkpoints[0]), "weight_version": FIRST_VERSION, "load_format": "auto"}
    assert (await client.post("/update_weights_from_disk", json=update)).status_code == 200
    whole = (await client.get("/server_info")).json()
    shown = (await http.get("/server_info")).json()
    assert {"model_path", "served_model_name", "tp_size", "dp_size", "version"} <= set(shown)
    assert {"host", "port", "nccl_port", "internal_states"} <= set(whole)
    assert not set(shown) & {"host", "port", "nccl_port", "dist_init_addr", "internal_states", "api_key"}
    assert {"model_path", "is_generation", "weight_version"} <= set((await http.get("/model_info")).json())
    assert (await http.get("/v1/models")).json()["data"][0]["id"] == shown["served_model_name"] == "tiny"


@pytest.mark.parametrize("path", ["/pause_generation", "/release_memory_occupation", "/flush_cache"])
async def test_commands_do_not_pass(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.post(path, json={})).status_code == 404
    assert (await http.get("/health_generate")).status_code == 200


@pytest.mark.parametrize("named", [True, False])
async def test_a_caller_that_leaves_ends_its_request(
    engine: SglangEngine, door: Door, http: httpx.AsyncClient, named: bool
) -> None:
    """Pitfall 21: with an id of its own, or with the one that the guard gave it."""
    body: dict[str, Any] = {"input_ids": PROMPT, "sampling_params": LONG, "stream": True}
    if named:
        body["rid"] = "leaves"
    async with http.stream("POST", "/generate", json=body) as answer:
        assert await anext(answer.aiter_bytes())
        assert door.permits == 1
    await until_ended(engine, door)
    assert (await http.post("/generate", json={"input_ids": PROMPT, "sampling_params": SHORT})).is_success


async def test_a_drain_ends_what_is_inside_and_the_door_opens_again(
    engine: SglangEngine, door: Door, http: httpx.AsyncClient
) -> None:
    """Pitfalls 19 and 20: no dispatch while paused; what was inside is aborted, and its answer ends."""
    body = {"input_ids": PROMPT, "sampling_params": LONG}
    inside = [asyncio.create_task(http.post("/generate", json=body)) for _ in range(3)]
    async with asyncio.timeout(30):
        while door.permits < 3 or not await engine.running_requests():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    deadline, limits = Deadline.after(LoopClock(), 60.0), HandoverLimits()
    assert not await close_and_wait(engine, door, deadline, grace_s=0.2, limits=limits)
    await engine.pause()
    try:
        refused = await http.post("/generate", json=body)
        assert refused.status_code == 503
        assert (await http.get("/health")).status_code == 503
        await abort_until_quiet(engine, door, deadline, limits=limits)
        assert door.permits == 0
    finally:
        await engine.continue_generation()
    for answer in await asyncio.gather(*inside):
        assert answer.json()["meta_info"]["finish_reason"]["type"] == "abort"
    door.open()
    assert (await http.post("/generate", json={"input_ids": PROMPT, "sampling_params": SHORT})).is_success
