"""Pausing, aborting and flushing the real server, and what is in flight meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from rolecall_plugins.engines.sglang.engine import SglangEngine

pytestmark = [pytest.mark.sglang, pytest.mark.asyncio(loop_scope="session")]

LONG = {
    "input_ids": [17, 45, 201, 8],
    "sampling_params": {"temperature": 1.0, "max_new_tokens": 4000, "ignore_eos": True},
    "stream": True,
}
REASONABLE_S = 60.0


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(REASONABLE_S):
        while not await condition():  # noqa: ASYNC110 - another process, no event
            await asyncio.sleep(0.05)


@asynccontextmanager
async def long_request(client: httpx.AsyncClient) -> AsyncIterator[AsyncIterator[str]]:
    """A request that has answered its first token and has thousands to go; gives its further lines."""
    async with client.stream("POST", "/generate", json=LONG) as response:
        lines = response.aiter_lines()
        await anext(lines)
        yield lines


async def is_quiet(engine: SglangEngine) -> bool:
    return await engine.running_requests() == 0 and await engine.flush()


async def test_a_running_request_is_counted(engine: SglangEngine, client: httpx.AsyncClient) -> None:
    async def is_counted() -> bool:
        return await engine.running_requests() == 1

    async with long_request(client):
        await until(is_counted)  # SGLang counts anew after some decode steps
        assert not await engine.flush(), "a flush says busy while something runs"
    await until(lambda: is_quiet(engine))


async def test_a_disconnect_ends_the_request(engine: SglangEngine, client: httpx.AsyncClient) -> None:
    """Pitfall 21: the caller leaves in the middle of a stream; in flight returns to zero."""
    async with long_request(client) as lines:
        await anext(lines)
        assert not await engine.flush(), "it runs"
    # Leaving the block has closed the connection.
    await until(lambda: is_quiet(engine))
    assert (await engine.health(generate=True, timeout_s=30)).alive


async def test_pausing_ends_every_request_with_an_abort(
    engine: SglangEngine, client: httpx.AsyncClient
) -> None:
    async with long_request(client) as lines:
        await engine.pause()
        rest = [line async for line in lines if line]
    assert '"abort"' in "".join(rest), "the answer says that it was cut"
    await engine.abort_all()
    await until(lambda: is_quiet(engine))
    await engine.continue_generation()
    assert (await engine.health(generate=True, timeout_s=30)).alive


async def test_nothing_is_dispatched_while_paused(engine: SglangEngine, client: httpx.AsyncClient) -> None:
    """Pitfall 20: a request that comes during a pause waits, and is answered afterwards."""
    await engine.pause()
    short = {"input_ids": [5, 6, 7], "sampling_params": {"temperature": 0, "max_new_tokens": 2}}
    waiting = asyncio.create_task(client.post("/generate", json=short))
    done, _ = await asyncio.wait({waiting}, timeout=1.0)
    assert not done
    assert await is_quiet(engine), "it has not reached the scheduler"
    await engine.continue_generation()
    assert (await waiting).status_code == 200


@pytest.mark.parametrize("mode", ["abort", "in_place", "retract"])
async def test_each_pause_mode_survives_a_flush(
    engine: SglangEngine, client: httpx.AsyncClient, mode: str
) -> None:
    """Pitfall 7: each pause mode × flush, with a request running; afterwards the scheduler lives.

    Only ``abort`` leaves nothing behind, which is why ``Engine.pause`` uses it.
    """
    control = engine._control  # pyright: ignore[reportPrivateUsage] - the engine itself pauses in one mode only
    async with long_request(client):
        await control.pause(mode)
        try:
            if mode == "abort":
                await until(engine.flush)
            else:
                # With "in_place" it says busy, with "retract" releases differ; neither may do harm.
                flushed = await engine.flush()
                assert not (mode == "in_place" and flushed), "a request that was only paused keeps its cache"
        finally:
            await control.continue_generation()
    await engine.abort_all()
    await until(lambda: is_quiet(engine))
    assert (await engine.health(generate=True, timeout_s=30)).alive
    assert await engine.canary()


async def test_a_long_prefill_is_busy_not_dead(engine: SglangEngine, client: httpx.AsyncClient) -> None:
    """Pitfall 23: while one step takes long, the engine counts a request and its processes run."""
    payload: dict[str, Any] = {
        "input_ids": [3 + i % 300 for i in range(4000)],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 20,
    }
    long = [asyncio.create_task(client.post("/generate", json=payload)) for _ in range(2)]
    while not all(task.done() for task in long):
        assert (await engine.health(generate=False, timeout_s=30)).alive
        await asyncio.sleep(0.1)
    assert [task.result().status_code for task in long] == [200, 200]
    await until(lambda: is_quiet(engine))
