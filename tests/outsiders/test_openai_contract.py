"""The official ``openai`` client and what a gateway tells it: errors, its own retries, tools, leaving early.

The engine is scripted: no small model calls tools, fails when asked to, or stays stuck. Its tool calls have
the keys of SGLang's.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from rolecall.engines.replica_state import ReplicaState
from rolecall.gateway.settings import GatewaySettings
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import Plane, plane
from rolecall.testing.scripted_engine import Answer, Behaviour

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/v1/chat/completions"
IN_FLIGHT = "rolecall_gateway_in_flight"
REFUSED = 'rolecall_gateway_requests_total{model="m",role="critic",status="503"}'
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "2 + 2?"}], "max_tokens": 4}


async def until_metric(gateway: str, metric: str, value: float) -> None:
    """Return when a line of the gateway's metrics that begins so ends with this value."""
    async with asyncio.timeout(20), httpx.AsyncClient(verify=False, trust_env=False) as http:
        while True:
            lines = (await http.get(f"{gateway}/metrics")).text.splitlines()
            if value in [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(metric)]:
                return
            await asyncio.sleep(0.01)


# --- what arrives --------------------------------------------------------------------------


async def test_the_clients_request_id_is_the_gateways(client: openai.AsyncOpenAI, scripted: Plane) -> None:
    answer = await client.chat.completions.create(**ASK, extra_headers={"X-Request-Id": "mine"})
    assert answer._request_id == "mine"
    assert scripted.engines[0].received[0].headers["x-request-id"] == "mine"


async def test_fields_that_openai_does_not_know_reach_the_engine(
    client: openai.AsyncOpenAI, scripted: Plane
) -> None:
    await client.chat.completions.create(**ASK, extra_body={"top_k": 5, "separate_reasoning": True})
    sent = scripted.engines[0].received[0].payload
    assert (sent["top_k"], sent["separate_reasoning"]) == (5, True)
    assert sent["model"] == "served/m"


async def test_headers_and_the_raw_answer_can_be_read(client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(**ASK)
    assert raw.headers["x-rolecall-engine"] == "m/replica-0"
    assert raw.parse().choices[0].finish_reason == "length"


# --- tools ---------------------------------------------------------------------------------

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    }
]
CHOICE: Any = {"type": "function", "function": {"name": "add"}}
ARGUMENTS = '{"a": 2, "b": 2}'


def completion(**more: Any) -> dict[str, Any]:
    return {"id": "c-1", "created": 1, "model": "served/m", **more}


def chunk(finish_reason: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return f"data: {json.dumps(completion(object='chat.completion.chunk', choices=[choice]))}\n\n".encode()


def piece(arguments: str, **more: Any) -> dict[str, Any]:
    """Part of a tool call in a stream; the first has its id and name besides."""
    function = {"name": more.pop("name", None), "arguments": arguments}
    return {"index": 0, "type": "function", "function": function, **more}


async def test_a_tool_call(client: openai.AsyncOpenAI, scripted: Plane) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": ARGUMENTS}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    body = json.dumps(completion(object="chat.completion", choices=[choice])).encode()
    engine = scripted.engines[0]
    engine.behaviour = Behaviour(answers={CHAT: Answer(body=body)})
    answer = await client.chat.completions.create(**ASK, tools=TOOLS, tool_choice=CHOICE)
    (called,) = answer.choices[0].message.tool_calls or ()
    assert called.type == "function"
    assert (called.id, called.function.name, called.function.arguments) == ("call_1", "add", ARGUMENTS)
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_tools_and_tool_results_reach_the_engine_unchanged(
    client: openai.AsyncOpenAI, scripted: Plane
) -> None:
    call: Any = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": ARGUMENTS}}
    messages = [
        *ASK["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4"},
    ]
    await client.chat.completions.create(**(ASK | {"messages": messages}), tools=TOOLS, tool_choice=CHOICE)
    sent = scripted.engines[0].received[0].payload
    assert (sent["messages"], sent["tools"], sent["tool_choice"]) == (messages, TOOLS, CHOICE)


async def test_a_tool_call_in_pieces_is_put_together(client: openai.AsyncOpenAI, scripted: Plane) -> None:
    events = [
        chunk(role="assistant", content=""),
        chunk(tool_calls=[piece("", id="call_1", name="add")]),
        *(chunk(tool_calls=[piece(ARGUMENTS[n : n + 5])]) for n in range(0, len(ARGUMENTS), 5)),
        chunk(finish_reason="tool_calls"),
        b"data: [DONE]\n\n",
    ]
    scripted.engines[0].behaviour = Behaviour(
        answers={CHAT: Answer(body=b"".join(events), content_type="text/event-stream")}
    )
    async with client.chat.completions.stream(**ASK, tools=TOOLS) as stream:
        kinds = [event.type async for event in stream]
        answer = await stream.get_final_completion()
    (called,) = answer.choices[0].message.tool_calls or ()
    assert called.function.parsed_arguments == {"a": 2, "b": 2}
    assert "tool_calls.function.arguments.done" in kinds


# --- errors --------------------------------------------------------------------------------


async def test_an_unknown_model(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="nobody") as found:
        await client.chat.completions.create(**(ASK | {"model": "nobody"}))
    assert found.value.param == "model"
    assert found.value.type == "invalid_request_error"
    assert found.value.code
    assert found.value.request_id


async def test_no_messages(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as found:
        await client.chat.completions.create(model="m", messages=[])
    assert found.value.param == "messages"


async def test_a_body_over_the_limit(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as found:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 9000}])
    assert found.value.status_code == 413
    assert found.value.type == "invalid_request_error"


async def test_a_path_that_is_not_served(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as found:
        await client.embeddings.create(model="m", input="x")
    assert found.value.type == "invalid_request_error"


async def test_a_token(openai_of: Any) -> None:
    settings = GatewaySettings(bearer_tokens=("secret",))
    async with plane(PlainRole(), settings=settings) as running:
        with pytest.raises(openai.AuthenticationError) as found:
            await openai_of(running.url, api_key="guessed").chat.completions.create(**ASK)
        assert "secret" not in str(found.value)
        answer = await openai_of(running.url, api_key="secret").chat.completions.create(**ASK)
        assert answer.choices[0].message.content
        sent = running.engines[0].received[0]
    assert "authorization" not in sent.headers


async def test_more_at_once_than_one_caller_may_have(openai_of: Any) -> None:
    async with plane(PlainRole(), settings=GatewaySettings(max_requests_per_caller=1)) as running:
        engine, client = running.engines[0], openai_of(running.url)
        engine.behaviour = Behaviour(stuck=True)
        held = asyncio.create_task(client.chat.completions.create(**ASK))
        await engine.until_running(1)
        with pytest.raises(openai.RateLimitError) as found:
            await client.chat.completions.create(**ASK)
        held.cancel()
        await engine.until_running(0)
    assert found.value.type == "rate_limit_error"
    assert float(found.value.response.headers["retry-after"]) > 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_engines_own_error_arrives_as_it_is(
    client: openai.AsyncOpenAI, scripted: Plane, stream: bool
) -> None:
    error = {"object": "error", "message": "too long", "type": "BadRequestError", "param": None, "code": 400}
    scripted.engines[0].behaviour = Behaviour(status=400, body=json.dumps(error).encode())
    with pytest.raises(openai.BadRequestError) as found:
        await client.chat.completions.create(**ASK, stream=stream)
    assert found.value.body == error


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_engine_that_is_gone(client: openai.AsyncOpenAI, scripted: Plane, stream: bool) -> None:
    scripted.publish(urls=["http://127.0.0.1:9"])
    with pytest.raises(openai.InternalServerError) as found:
        await client.chat.completions.create(**ASK, stream=stream)
    assert found.value.status_code == 502
    assert found.value.type == "server_error"
    assert "127.0.0.1" not in str(found.value)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_gateways_deadline(client: openai.AsyncOpenAI, scripted: Plane, stream: bool) -> None:
    scripted.engines[0].behaviour = Behaviour(stuck=True)
    with pytest.raises(openai.InternalServerError) as found:
        await client.chat.completions.create(**ASK, stream=stream)
    assert found.value.status_code == 504
    await scripted.engines[0].until_aborted()


async def test_an_error_event_in_a_stream(client: openai.AsyncOpenAI, scripted: Plane) -> None:
    """How SGLang tells of an error when its answer has begun."""
    event = b'data: {"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}}\n\n'
    scripted.engines[0].behaviour = Behaviour(rest_of_stream=event)
    stream = await client.chat.completions.create(**ASK, stream=True)
    chunks = aiter(stream)
    assert (await anext(chunks)).choices[0].delta.content, "what came before it is kept"
    with pytest.raises(openai.APIError, match="out of memory"):
        await anext(chunks)


# --- the client's own retries ------------------------------------------------------------------


async def test_a_sleeping_model_is_asked_again_by_the_client_and_answers_once_awake(
    client: openai.AsyncOpenAI, scripted: Plane
) -> None:
    scripted.publish(ReplicaState.SLEEPING)
    with pytest.raises(openai.InternalServerError) as found:
        await client.chat.completions.create(**ASK)
    assert found.value.status_code == 503
    assert float(found.value.response.headers["retry-after"]) > 0
    call = asyncio.create_task(client.with_options(max_retries=2).chat.completions.create(**ASK))
    await until_metric(scripted.url, REFUSED, 2)
    scripted.publish(ReplicaState.READY)
    assert (await call).choices[0].message.content
    assert len(scripted.engines[0].received) == 1, "nothing was sent while it slept"


# --- leaving early -----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_clients_timeout_aborts_the_request(
    client: openai.AsyncOpenAI, scripted: Plane, stream: bool
) -> None:
    engine = scripted.engines[0]
    engine.behaviour = Behaviour(stuck=True)
    with pytest.raises(openai.APITimeoutError):
        await client.with_options(timeout=0.1).chat.completions.create(**ASK, stream=stream)
    await engine.until_aborted()
    await engine.until_running(0)
    await until_metric(scripted.url, IN_FLIGHT, 0)
    assert engine.aborts == [engine.received[0].payload["rid"]]


async def test_a_cancelled_call_aborts_the_request(client: openai.AsyncOpenAI, scripted: Plane) -> None:
    engine = scripted.engines[0]
    engine.behaviour = Behaviour(stuck=True)
    call = asyncio.create_task(client.chat.completions.create(**ASK))
    await engine.until_running(1)
    await until_metric(scripted.url, IN_FLIGHT, 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await engine.until_running(0)
    await until_metric(scripted.url, IN_FLIGHT, 0)
    assert engine.aborts == [engine.received[0].payload["rid"]]


async def test_a_stream_left_after_its_first_event_aborts_the_request(
    client: openai.AsyncOpenAI, scripted: Plane
) -> None:
    engine = scripted.engines[0]
    engine.behaviour = Behaviour(gate=asyncio.Event())
    async with await client.chat.completions.create(**ASK, stream=True) as stream:
        await anext(aiter(stream))
    await engine.until_running(0)
    await until_metric(scripted.url, IN_FLIGHT, 0)
    assert engine.aborts == [engine.received[0].payload["rid"]]
