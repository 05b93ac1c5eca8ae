"""Abort, disconnect, pause and flush of the real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio

from rolecall_plugins.engines.embedded.engine import EmbeddedEngine

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session")]

LONG = {"temperature": 0, "max_new_tokens": 900, "ignore_eos": True}
SLOTS = 4


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def left_quiet(http: httpx.AsyncClient) -> AsyncIterator[None]:
    yield
    await http.post("/continue_generation")
    await http.post("/abort_request", json={"abort_all": True})
    await until(http, lambda info: info["running_requests"] + info["queued_requests"] == 0)


async def until(http: httpx.AsyncClient, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            info = (await http.get("/server_info")).json()
            if fits(info):
                return info
            await asyncio.sleep(0.02)


def post(http: httpx.AsyncClient, **body: Any) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(http.post("/generate", json={"text": "Count: one, two,", **body}))


async def running(http: httpx.AsyncClient, count: int) -> None:
    await until(http, lambda info: info["running_requests"] == count)


async def test_abort_by_id_ends_that_request_only(http: httpx.AsyncClient) -> None:
    one, other = post(http, sampling_params=LONG, rid="one"), post(http, sampling_params=LONG, rid="other")
    await running(http, 2)
    again = await http.post("/generate", json={"text": "a", "rid": "one"})
    assert again.status_code == 400
    assert again.json()["error"]["param"] == "rid"
    assert (await http.post("/abort_request", json={"rid": "one"})).status_code == 200
    answer = (await one).json()
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"]) < 900
    assert not other.done()
    assert (await http.post("/abort_request", json={"rid": "nobody"})).status_code == 200
    await http.post("/abort_request", json={"abort_all": True})
    assert (await other).json()["meta_info"]["finish_reason"]["type"] == "abort"
    await running(http, 0)


async def test_abort_all_reaches_requests_without_a_slot(http: httpx.AsyncClient) -> None:
    tasks = [post(http, sampling_params=LONG) for _ in range(SLOTS + 2)]
    await until(http, lambda info: (info["running_requests"], info["queued_requests"]) == (SLOTS, 2))
    assert (await http.post("/flush_cache")).status_code == 400
    await http.post("/abort_request", json={"abort_all": True})
    answers = [(await task).json() for task in tasks]
    assert {answer["meta_info"]["finish_reason"]["type"] for answer in answers} == {"abort"}
    await until(http, lambda info: info["running_requests"] + info["queued_requests"] == 0)
    assert (await http.post("/flush_cache")).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_that_leaves_ends_the_work(
    engine: EmbeddedEngine, http: httpx.AsyncClient, stream: bool
) -> None:
    async with httpx.AsyncClient(base_url=engine.base_url, timeout=60, trust_env=False) as leaving:
        body = {"text": "Count: one, two,", "sampling_params": LONG, "stream": stream}
        if stream:
            async with leaving.stream("POST", "/generate", json=body) as response:
                async for _ in response.aiter_lines():
                    break
        else:
            task = asyncio.create_task(leaving.post("/generate", json=body))
            await running(http, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    await running(http, 0)


async def test_pause_in_mode_abort_ends_what_runs_and_lets_new_requests_wait(
    http: httpx.AsyncClient,
) -> None:
    """Pitfall 7, mode abort: flushed, and the scheduler goes on."""
    old = post(http, sampling_params=LONG)
    await running(http, 1)
    assert (await http.post("/pause_generation", json={"mode": "abort"})).status_code == 200
    assert (await old).json()["meta_info"]["finish_reason"]["type"] == "abort"
    new = post(http, sampling_params={**LONG, "max_new_tokens": 2})
    info = await until(http, lambda info: info["waiting_requests"] == 1)
    assert (info["paused"], info["running_requests"], info["queued_requests"]) == (True, 0, 0)
    assert (await http.post("/flush_cache")).status_code == 200
    assert not new.done()
    assert (await http.post("/continue_generation")).status_code == 200
    assert len((await new).json()["output_ids"]) == 2
    assert (await http.get("/server_info")).json()["paused"] is False


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_other_pause_modes_keep_the_request_and_refuse_to_flush(
    http: httpx.AsyncClient, mode: str
) -> None:
    """Pitfall 7, other modes: a flush is refused, not done by halves."""
    params = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True}
    expected = (await post(http, sampling_params=params)).json()["output_ids"]
    task = post(http, sampling_params=params)
    await running(http, 1)
    assert (await http.post("/pause_generation", json={"mode": mode})).status_code == 200
    info = (await http.get("/server_info")).json()
    held = "running_requests" if mode == "in_place" else "queued_requests"
    assert info[held] == 1
    assert info["running_requests"] + info["queued_requests"] == 1
    assert (await http.post("/flush_cache")).status_code == 400
    assert (await http.post("/release_memory_occupation", json={})).status_code == 409
    assert not task.done()
    await http.post("/continue_generation")
    assert (await task).json()["output_ids"] == expected


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_a_paused_request_can_be_aborted(http: httpx.AsyncClient, mode: str) -> None:
    task = post(http, sampling_params=LONG)
    await running(http, 1)
    await http.post("/pause_generation", json={"mode": mode})
    await http.post("/abort_request", json={"abort_all": True})
    assert (await task).json()["meta_info"]["finish_reason"]["type"] == "abort"
    assert (await http.post("/flush_cache")).status_code == 200


async def test_control_calls_refuse_what_they_do_not_know(http: httpx.AsyncClient) -> None:
    for path, body, field in (
        ("/pause_generation", {"mode": "nap"}, "mode"),
        ("/abort_request", {}, "rid"),
        ("/release_memory_occupation", {"tags": ["wieghts"]}, "tags[0]"),
        ("/resume_memory_occupation", {"tags": "weights"}, "tags"),
        ("/update_weights_from_disk", {}, "model_path"),
        ("/update_weight_version", {}, "new_version"),
    ):
        response = await http.post(path, json=body)
        assert response.status_code == 400, path
        assert response.json()["error"]["param"] == field
