"""The official ``openai`` client, a gateway and a real model: answers are the engine's own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session")]

TOKENS = 6
ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Name three colours."}],
    "temperature": 0,
    "max_tokens": TOKENS,
}


@pytest.fixture
def client(real_model: Any, openai_of: Any) -> openai.AsyncOpenAI:
    return openai_of(real_model.gateway)


@pytest.fixture
def at_engine(real_model: Any, openai_of: Any) -> openai.AsyncOpenAI:
    """The same client without a gateway."""
    return openai_of(real_model.engine)


async def until_running(real_model: Any, count: int) -> None:
    """Return when the engine is at work on that many requests."""
    async with (
        asyncio.timeout(30),
        httpx.AsyncClient(base_url=real_model.engine, trust_env=False, verify=False) as http,
    ):
        while (await http.get("/server_info")).json()["running_requests"] != count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_models_are_the_roles_own(client: openai.AsyncOpenAI) -> None:
    assert [(model.id, model.object) async for model in client.models.list()] == [("small", "model")]


@pytest.mark.parametrize("model", ["small", "smollm2"], ids=["its id", "its served name"])
async def test_a_whole_answer_is_the_engines(
    client: openai.AsyncOpenAI, at_engine: openai.AsyncOpenAI, real_model: Any, model: str
) -> None:
    answer = await client.chat.completions.create(model=model, **ASK)
    expected = await at_engine.chat.completions.create(model=real_model.served, **ASK)
    assert answer.choices == expected.choices
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.model == expected.model == real_model.served
    assert answer.usage is not None
    assert answer.usage.completion_tokens == TOKENS


async def test_a_blocking_client_gets_the_same(real_model: Any, at_engine: openai.AsyncOpenAI) -> None:
    def ask() -> str | None:
        with openai.OpenAI(base_url=f"{real_model.gateway}/v1", api_key="-", max_retries=0) as client:
            return client.chat.completions.create(model="small", **ASK).choices[0].message.content

    expected = await at_engine.chat.completions.create(model=real_model.served, **ASK)
    assert await asyncio.to_thread(ask) == expected.choices[0].message.content


async def test_a_stream_has_the_whole_answer_and_its_usage(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="small", **ASK)
    stream = await client.chat.completions.create(
        model="small", stream=True, stream_options={"include_usage": True}, **ASK
    )
    chunks = [chunk async for chunk in stream]
    *told, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in told) == whole.choices[0].message.content
    assert told[0].choices[0].delta.role == "assistant"
    assert told[-1].choices[0].finish_reason == "length"
    assert len(told) > 2, "it comes in pieces"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == TOKENS


async def test_the_clients_own_accumulator_reads_a_stream(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="small", **ASK)
    async with client.chat.completions.stream(model="small", **ASK) as stream:
        events = [event async for event in stream]
    assert {"chunk", "content.delta", "content.done"} <= {event.type for event in events}
    answer = stream.current_completion_snapshot
    assert answer.choices[0].message.content == whole.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"


async def test_log_probs_are_the_engines(
    client: openai.AsyncOpenAI, at_engine: openai.AsyncOpenAI, real_model: Any
) -> None:
    asked = {**ASK, "logprobs": True, "top_logprobs": 3}
    answer = await client.chat.completions.create(model="small", **asked)
    expected = await at_engine.chat.completions.create(model=real_model.served, **asked)
    told, wanted = answer.choices[0].logprobs, expected.choices[0].logprobs
    assert told is not None
    assert wanted is not None
    assert told.content is not None
    assert wanted.content is not None
    assert len(told.content) == TOKENS
    for entry, other in zip(told.content, wanted.content, strict=True):
        assert entry.token == other.token
        assert entry.logprob == pytest.approx(other.logprob, abs=0.05)
        assert entry.logprob <= 0
        assert entry.top_logprobs[0].token == entry.token, "greedy takes the likeliest"
        assert sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1 + 1e-6
    assert "".join(entry.token for entry in told.content) == answer.choices[0].message.content


async def test_log_probs_of_a_stream_are_those_of_the_whole_answer(client: openai.AsyncOpenAI) -> None:
    asked = {**ASK, "logprobs": True, "top_logprobs": 1}
    whole = (await client.chat.completions.create(model="small", **asked)).choices[0].logprobs
    assert whole is not None
    assert whole.content is not None
    stream = await client.chat.completions.create(model="small", stream=True, **asked)
    told = [
        entry
        async for chunk in stream
        if chunk.choices[0].logprobs is not None
        for entry in chunk.choices[0].logprobs.content or ()
    ]
    assert [entry.token for entry in told] == [entry.token for entry in whole.content]
    assert [entry.logprob for entry in told] == pytest.approx(
        [entry.logprob for entry in whole.content], abs=0.05
    )


async def test_many_callers_at_once(client: openai.AsyncOpenAI) -> None:
    answers = await asyncio.gather(
        *(client.chat.completions.create(model="small", **(ASK | {"max_tokens": 2})) for _ in range(6))
    )
    assert len({answer.id for answer in answers}) == 6
    assert all(answer.choices[0].message.content for answer in answers)


async def test_an_engines_refusal_arrives_with_its_reason(client: openai.AsyncOpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    with pytest.raises(openai.BadRequestError, match="not offered by the embedded engine") as found:
        await client.chat.completions.create(model="small", tools=tools, **ASK)
    assert found.value.param == "tools"


# --- leaving early ------------------------------------------------------------------------

LONG = ASK | {"max_tokens": 300, "messages": [{"role": "user", "content": "Count from one to two hundred."}]}


@pytest_asyncio.fixture(loop_scope="session")
async def quiet(real_model: Any) -> AsyncIterator[None]:
    """Nothing runs before, nothing is left afterwards."""
    await until_running(real_model, 0)
    yield
    await until_running(real_model, 0)


@pytest.mark.usefixtures("quiet")
async def test_a_cancelled_call_ends_in_the_engine(client: openai.AsyncOpenAI, real_model: Any) -> None:
    call = asyncio.create_task(client.chat.completions.create(model="small", **LONG))
    await until_running(real_model, 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.usefixtures("quiet")
async def test_a_stream_that_is_closed_ends_in_the_engine(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="small", stream=True, **LONG)
    await anext(aiter(stream))
    await stream.close()


@pytest.mark.usefixtures("quiet")
async def test_a_call_past_the_clients_timeout_ends_in_the_engine(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        await client.with_options(timeout=0.3).chat.completions.create(model="small", **LONG)
