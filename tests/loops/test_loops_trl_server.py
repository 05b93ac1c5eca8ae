"""The server for TRL's client: by HTTP as the client asks, and by the real client where TRL is installed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from rolecall.api import ask_job
from rolecall.testing.asgi_server import serving
from rolecall.testing.scripted_answers import tokens_of
from rolecall_loops.trl_server import build_app, main

ASKED = {
    "model": "asked",
    "prompt": [[1, 2, 3], [4, 5]],
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "n": 2,
    "repetition_penalty": 1.0,
    "temperature": 0.7,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "max_tokens": 3,
    "logprobs": 0,
}
"""What TRL 1.16.0 posts to /v1/completions."""


@pytest.fixture
async def server(served: Any) -> AsyncGenerator[str]:
    async with serving(build_app(ask_job(served.job, served.url))) as url:
        yield url


@pytest.fixture
async def client(server: str) -> AsyncGenerator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server, timeout=60) as client:
        yield client


async def test_it_is_up_and_names_the_job(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).status_code == 200
    assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["asked"]


async def test_samples_are_the_engine_s_prompt_by_prompt(client: httpx.AsyncClient, served: Any) -> None:
    answer = await client.post("/v1/completions", json=ASKED)
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == [[1, 2, 3], [1, 2, 3], [4, 5], [4, 5]]
    for choice in choices:
        ids = tokens_of(choice["prompt_token_ids"], 3)
        assert choice["token_ids"] == ids
        assert choice["finish_reason"] == "length"
        told = choice["logprobs"]
        assert told["tokens"] == [f"token_id:{token}" for token in ids]
        assert [list(place.values()) for place in told["top_logprobs"]] == [
            [value] for value in told["token_logprobs"]
        ]
        assert all(value < 0 for value in told["token_logprobs"])
    sent = [received.payload for received in served.policy.engines[0].received]
    assert all(payload["sampling_params"] == {"temperature": 0.7, "max_new_tokens": 3} for payload in sent)


async def test_names_of_vllm_become_the_engines_own(client: httpx.AsyncClient, served: Any) -> None:
    wanted = {"top_p": 0.5, "top_k": 9, "min_p": 0.1, "stop": ["x"], "structured_outputs": {"regex": "a+"}}
    answer = await client.post(
        "/v1/completions", json={**ASKED, "n": 1, "prompt": [7], "logprobs": None, **wanted}
    )
    (choice,) = answer.json()["choices"]
    assert choice["logprobs"] is None
    (received,) = served.policy.engines[0].received
    sampling = received.payload["sampling_params"]
    assert sampling == {
        "temperature": 0.7,
        "max_new_tokens": 3,
        "top_p": 0.5,
        "top_k": 9,
        "min_p": 0.1,
        "stop": ["x"],
        "regex": "a+",
    }


@pytest.mark.parametrize(
    ("change", "status", "told"),
    [
        ({"prompt": "text"}, 501, "text is not taken"),
        ({"prompt": ["text"]}, 501, "text is not taken"),
        ({"prompt": []}, 400, "lists of token ids"),
        ({"prompt": [[1], []]}, 400, "lists of token ids"),
        ({"prompt": [[1.5]]}, 400, "lists of token ids"),
        ({"n": 0}, 400, "n: must be an integer"),
        ({"logprobs": 5}, 501, "logprobs: must be 0"),
        ({"prompt_logprobs": 5}, 501, "ask the job's teacher"),
        ({"best_of": 2}, 400, "best_of: is not passed on"),
        ({"structured_outputs": {"json": {}}}, 400, "regex alone"),
    ],
)
async def test_what_it_has_not_is_refused(
    client: httpx.AsyncClient, served: Any, change: dict[str, Any], status: int, told: str
) -> None:
    answer = await client.post("/v1/completions", json={**ASKED, **change})
    assert (answer.status_code, told in answer.text) == (status, True), answer.text
    assert served.policy.engines[0].received == [], "no engine was asked"


@pytest.mark.parametrize("content", [b"{", b"[]"])
async def test_a_body_that_is_no_object_is_refused(client: httpx.AsyncClient, content: bytes) -> None:
    assert (await client.post("/v1/completions", content=content)).status_code == 400


async def test_an_engine_s_error_is_the_answer_s(client: httpx.AsyncClient, served: Any) -> None:
    served.policy.engines[0].behaviour.status = 500
    answer = await client.post("/v1/completions", json=ASKED)
    assert answer.status_code == 500
    assert "500" in answer.text


@pytest.mark.parametrize("path", ["/init_weight_transfer_engine", "/update_weights", "/reset_prefix_cache"])
async def test_weights_by_nccl_are_refused_with_the_way_to_go(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.post(path, json={})
    assert answer.status_code == 501
    assert "rolecall_rollout" in answer.text


def test_a_job_that_is_not_there_ends_the_command() -> None:
    done = CliRunner().invoke(main, ["--job", "no-such-job"])
    assert done.exit_code == 1
    assert "no-such-job" in done.output


ASKING = """
import json, sys
from unittest.mock import patch
import trl.generation.vllm_client as of_trl

# It asks for vLLM to be installed before it is made: for weights by NCCL, which are refused here anyway.
of_trl.is_vllm_available = lambda *_, **__: True
told = json.loads(sys.argv[1])
client = of_trl.VLLMClient(base_url=told["url"])
answer = client.generate([[1, 2, 3], [4, 5]], n=2, max_tokens=3)
try:
    client.init_communicator(device="cuda")
except Exception as error:
    answer["refused"] = str(error)
print(json.dumps({"model": client.model, **answer}))
"""


@pytest.mark.loops
async def test_the_real_client_of_trl_reads_it(server: str, other_process: Callable[..., Any]) -> None:
    pytest.importorskip("trl", reason="TRL is not installed here")
    pytest.importorskip("requests", reason="requests, which TRL's client needs, is not installed here")
    told = await other_process(ASKING, {"url": server})
    assert told["model"] == "asked"
    assert told["prompt_ids"] == [[1, 2, 3], [4, 5]]
    assert told["completion_ids"] == [tokens_of(ids, 3) for ids in ([1, 2, 3], [1, 2, 3], [4, 5], [4, 5])]
    assert [[ids for (ids,) in answer] for answer in told["logprob_token_ids"]] == told["completion_ids"]
    assert all(value < 0 for answer in told["logprobs"] for (value,) in answer)
    assert "501" in told["refused"]
    assert "rolecall_rollout" in told["refused"]
