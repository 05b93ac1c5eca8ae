"""Clients that know SGLang and no rolecall, at a gateway in front of a real SGLang.

SGLang's own load client (``bench_serving``, the whole command) and the official ``openai`` client.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from attrs import frozen

from rolecall.discovery.registry import Registry
from rolecall.discovery.source import SnapshotSource
from rolecall.gateway.app import build_gateway
from rolecall.gateway.settings import GatewaySettings
from rolecall.testing.asgi_server import serving
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.snapshots import model_entry, snapshot_of
from rolecall_plugins.engines.sglang import SglangOptions
from rolecall_plugins.engines.sglang.engine import SglangEngine
from rolecall_routing.affinity import Affinity

pytestmark = [pytest.mark.sglang, pytest.mark.asyncio(loop_scope="session")]

HERE = Path(__file__).parent
ON_GPU = os.environ.get("ROLECALL_SGLANG_DEVICE") == "cuda"
TOKEN = "secret"
KEY = {"X-SMG-Routing-Key": "group-1"}
PROMPTS = 4


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(engine: SglangEngine) -> AsyncIterator[str]:
    """A gateway that lets in who sends the token, and routes by the affinity key."""
    role = PlainRole(policy=Affinity)
    registry = Registry()
    entry = model_entry("small", [engine.base_url], served_model_name="tiny")
    registry.publish(role.name, snapshot_of({"small": entry}, role=role.name, policy=Affinity.name).to_json())
    source = SnapshotSource(registry.reader(role.name), role=role.name)
    async with serving(build_gateway(role, source, GatewaySettings(bearer_tokens=(TOKEN,)))) as url:
        yield url


# --- bench_serving --------------------------------------------------------------------------


MODES = {
    "native": ["--backend", "sglang"],
    "native, ids, whole": [
        "--backend",
        "sglang",
        "--tokenize-prompt",
        "--disable-stream",
        "--return-logprob",
    ],
    "chat": ["--backend", "sglang-oai-chat"],
    "chat, whole": ["--backend", "sglang-oai-chat", "--disable-stream"],
}


@frozen(kw_only=True)
class BenchClient:
    python: str
    environment: dict[str, str]
    tokenizer: Path
    folder: Path

    async def run(self, runs: list[tuple[str, str]]) -> list[dict[str, Any]]:
        """Run modes against URLs and return what the client wrote of each."""
        files = [self.folder / f"{number}.json" for number in range(len(runs))]
        lines = [
            [
                *MODES[mode],
                *("--base-url", url, "--tokenizer", str(self.tokenizer), "--seed", "1"),
                *("--dataset-name", "random-ids", "--num-prompts", str(PROMPTS), "--random-range-ratio", "1"),
                *("--random-input-len", "12", "--random-output-len", "8", "--disable-tqdm"),
                *("--header", *(f"{name}={value}" for name, value in KEY.items())),
                *("--output-details", "--output-file", str(file)),
            ]
            for (mode, url), file in zip(runs, files, strict=True)
        ]
        process = await asyncio.create_subprocess_exec(
            self.python,
            str(HERE / "bench_client.py"),
            *map(json.dumps, lines),
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), 300)
        except TimeoutError:
            process.kill()
            raise
        assert process.returncode == 0, said.decode()[-4000:]
        return [json.loads(file.read_text()) for file in files]


@pytest.fixture
def bench_client(
    sglang_python: str, sglang_options: SglangOptions, checkpoints: tuple[Path, Path], tmp_path: Path
) -> BenchClient:
    environment = {**os.environ, **sglang_options.environment, "OPENAI_API_KEY": TOKEN, "HF_HUB_OFFLINE": "1"}
    # A dataset's reader that this client imports and does not use here.
    environment["PLACEHOLDER_PACKAGES"] = f"{environment.get('PLACEHOLDER_PACKAGES', '')} datasets"
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(HERE / "placeholders"), environment.get("PYTHONPATH")])
    )
    return BenchClient(
        python=sglang_python, environment=environment, tokenizer=checkpoints[0], folder=tmp_path
    )


async def test_sglangs_load_client_finds_at_the_gateway_what_it_finds_at_the_engine(
    gateway: str, engine: SglangEngine, bench_client: BenchClient
) -> None:
    """Its requests and its reading of answers: native and chat, whole and streamed, token and routing key."""
    *found, native = await bench_client.run(
        [*((mode, gateway) for mode in MODES), ("native", engine.base_url)]
    )
    results = dict(zip(MODES, found, strict=True))
    for mode, result in results.items():
        assert result["errors"] == [""] * PROMPTS, mode
        assert result["completed"] == PROMPTS, mode
        assert result["total_output_tokens"] == PROMPTS * 8, mode
    assert results["native"]["generated_texts"] == native["generated_texts"]
    assert results["chat, whole"]["generated_texts"] == results["chat"]["generated_texts"]


# --- openai -----------------------------------------------------------------------------------

ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "what is two plus three?"}],
    "temperature": 0,
    "max_tokens": 8,
}


@pytest_asyncio.fixture(loop_scope="session")
async def at_gateway(gateway: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{gateway}/v1", api_key=TOKEN, max_retries=0, timeout=120, default_headers=KEY
    ) as client:
        yield client


@pytest.fixture
def at_engine(at_gateway: openai.AsyncOpenAI, engine: SglangEngine) -> openai.AsyncOpenAI:
    return at_gateway.with_options(base_url=f"{engine.base_url}/v1")


async def test_whole_answers_and_log_probs_are_the_engines(
    at_gateway: openai.AsyncOpenAI, at_engine: openai.AsyncOpenAI
) -> None:
    asked = {**ASK, "logprobs": True, "top_logprobs": 2}
    answer = await at_gateway.chat.completions.create(model="small", **asked)
    expected = await at_engine.chat.completions.create(model="tiny", **asked)
    told, wanted = answer.choices[0], expected.choices[0]
    assert told.message == wanted.message
    assert told.finish_reason == wanted.finish_reason
    assert answer.usage == expected.usage
    assert told.logprobs is not None
    assert wanted.logprobs is not None
    for entry, other in zip(told.logprobs.content or (), wanted.logprobs.content or (), strict=True):
        assert entry.token == other.token
        assert entry.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert [top.token for top in entry.top_logprobs] == [top.token for top in other.top_logprobs]


async def test_a_stream_has_the_whole_answer(at_gateway: openai.AsyncOpenAI) -> None:
    whole = await at_gateway.chat.completions.create(model="small", **ASK)
    stream = await at_gateway.chat.completions.create(
        model="small", stream=True, stream_options={"include_usage": True}, **ASK
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"enum": [1, 2]}}}},
    }
]
TOOL_ASK: dict[str, Any] = {
    **ASK,
    "tools": TOOLS,
    "tool_choice": "required",
    "max_tokens": 300,
    # The grammar makes random weights write a call. Greedy, they would write blanks for ever.
    "frequency_penalty": 2,
}


@pytest.mark.skipif(ON_GPU, reason="the engines there have no grammar backend")
async def test_a_tool_call_is_the_engines(
    at_gateway: openai.AsyncOpenAI, at_engine: openai.AsyncOpenAI
) -> None:
    answer = await at_gateway.chat.completions.create(model="small", **TOOL_ASK)
    expected = await at_engine.chat.completions.create(model="tiny", **TOOL_ASK)
    (told,), (wanted,) = (each.choices[0].message.tool_calls or () for each in (answer, expected))
    assert told.type == wanted.type == "function"
    assert told.function == wanted.function
    assert told.function.name == "add"
    assert answer.choices[0].finish_reason == "tool_calls"
    stream = await at_gateway.chat.completions.create(model="small", stream=True, **TOOL_ASK)
    pieces = [
        piece.function
        async for chunk in stream
        for piece in chunk.choices[0].delta.tool_calls or ()
        if piece.function is not None
    ]
    assert "".join(piece.name or "" for piece in pieces) == "add"
    assert "".join(piece.arguments or "" for piece in pieces) == told.function.arguments


async def test_sglangs_refusal_arrives_as_it_is(
    at_gateway: openai.AsyncOpenAI, at_engine: openai.AsyncOpenAI
) -> None:
    asked = {**ASK, "temperature": -1}
    with pytest.raises(openai.BadRequestError) as told:
        await at_gateway.chat.completions.create(model="small", **asked)
    with pytest.raises(openai.BadRequestError) as wanted:
        await at_engine.chat.completions.create(model="tiny", **asked)
    assert told.value.body == wanted.value.body


async def test_a_closed_stream_ends_in_the_engine(
    at_gateway: openai.AsyncOpenAI, engine: SglangEngine
) -> None:
    asked = {**ASK, "max_tokens": 3000}
    stream = await at_gateway.chat.completions.create(
        model="small", stream=True, extra_body={"ignore_eos": True}, **asked
    )
    await anext(aiter(stream))
    assert not await engine.flush(), "it runs"
    await stream.close()
    async with asyncio.timeout(60):
        while not await engine.flush():  # noqa: ASYNC110 - another process, no event
            await asyncio.sleep(0.05)
