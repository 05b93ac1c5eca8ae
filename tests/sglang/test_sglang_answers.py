"""What SGLang answers, held against transformers on the same checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from rolecall_plugins.engines.sglang.engine import SglangEngine

pytestmark = [pytest.mark.sglang, pytest.mark.asyncio(loop_scope="session")]

PROMPT = [17, 45, 201, 8, 133, 77, 250, 19, 64, 91, 5, 300]
TOLERANCE = 1e-3
NEW = 6
GREEDY = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}


async def generate(client: httpx.AsyncClient, **payload: Any) -> dict[str, Any]:
    response = await client.post("/generate", json=payload)
    assert response.status_code == 200, response.text
    return response.json()


async def test_prompt_log_probs_are_those_of_the_checkpoint(
    client: httpx.AsyncClient, trainer: Any, checkpoints: tuple[Path, Path]
) -> None:
    expected = trainer.ask("score", path=str(checkpoints[0]), ids=PROMPT, top=5)
    answer = await generate(
        client,
        input_ids=PROMPT,
        sampling_params={"temperature": 0, "max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=5,
        token_ids_logprob=[3, 200],
    )
    meta = answer["meta_info"]
    entries = meta["input_token_logprobs"]
    assert entries[0][0] is None, "nothing precedes the first token"
    assert [entry[1] for entry in entries] == PROMPT
    assert [entry[0] for entry in entries[1:]] == pytest.approx(expected["tokens"], abs=TOLERANCE)
    assert meta["input_top_logprobs"][0] is None
    for position, top in enumerate(meta["input_top_logprobs"][1:]):
        assert [entry[1] for entry in top] == expected["top_ids"][position]
        assert [entry[0] for entry in top] == pytest.approx(
            expected["top_log_probs"][position], abs=TOLERANCE
        )
    for position, chosen in enumerate(meta["input_token_ids_logprobs"][1:]):
        assert [entry[1] for entry in chosen] == [3, 200]
        wanted = [expected["all"][position][token] for token in (3, 200)]
        assert [entry[0] for entry in chosen] == pytest.approx(wanted, abs=TOLERANCE)


async def test_generated_log_probs_are_those_of_the_checkpoint(
    client: httpx.AsyncClient, trainer: Any, checkpoints: tuple[Path, Path]
) -> None:
    answer = await generate(client, input_ids=PROMPT, sampling_params=GREEDY, return_logprob=True)
    output = answer["output_ids"]
    meta = answer["meta_info"]
    assert [entry[1] for entry in meta["output_token_logprobs"]] == output
    expected = trainer.ask("score", path=str(checkpoints[0]), ids=PROMPT + output, top=1)
    assert [entry[0] for entry in meta["output_token_logprobs"]] == pytest.approx(
        expected["tokens"][len(PROMPT) - 1 :], abs=TOLERANCE
    )
    assert output == [best[0] for best in expected["top_ids"][len(PROMPT) - 1 : -1]], (
        "greedy takes the likeliest"
    )
    assert meta["finish_reason"] == {"type": "length", "length": NEW}


async def test_token_ids_come_back_as_they_went_in(client: httpx.AsyncClient) -> None:
    """Pitfall 30: ids that the tokenizer would never give, and that text would not survive."""
    # The very last id of the vocabulary comes back as 0: SGLang takes it for an image's padding.
    ids = [0, 2, 1, 318, 317, 3, 3, 3]
    answer = await generate(
        client,
        input_ids=ids,
        sampling_params=GREEDY,
        return_logprob=True,
        logprob_start_len=0,
        return_prompt_token_ids=True,
    )
    assert answer["prompt_token_ids"] == ids
    assert [entry[1] for entry in answer["meta_info"]["input_token_logprobs"]] == ids
    assert answer["meta_info"]["prompt_tokens"] == len(ids)
    again = await generate(
        client,
        input_ids=ids + answer["output_ids"],
        sampling_params={"temperature": 0, "max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=0,
    )
    assert [entry[1] for entry in again["meta_info"]["input_token_logprobs"]] == ids + answer["output_ids"]


async def test_a_stream_ends_with_what_one_answer_says(client: httpx.AsyncClient) -> None:
    whole = await generate(client, input_ids=PROMPT, sampling_params=GREEDY)
    payload = {"input_ids": PROMPT, "sampling_params": GREEDY, "stream": True}
    async with client.stream("POST", "/generate", json=payload) as response:
        lines = [line async for line in response.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    last = json.loads(lines[-2].removeprefix("data: "))
    assert last["output_ids"] == whole["output_ids"]
    assert last["text"] == whole["text"]


async def test_chat_uses_the_models_own_template(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "what is two plus three?"}]
    response = await client.post(
        "/v1/chat/completions",
        json={"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": NEW},
    )
    assert response.status_code == 200, response.text
    rendered = "<|im_start|>user\nwhat is two plus three?<|im_end|>\n<|im_start|>assistant\n"
    same = await generate(client, text=rendered, sampling_params={"temperature": 0, "max_new_tokens": NEW})
    assert response.json()["usage"]["prompt_tokens"] == same["meta_info"]["prompt_tokens"]
    assert response.json()["choices"][0]["message"]["content"] == same["text"]


async def test_the_canary_is_the_checkpoints(
    engine: SglangEngine, trainer: Any, checkpoints: tuple[Path, Path]
) -> None:
    """Pitfall 1: what is compared over a sleep are real log-probabilities, not a uniform distribution."""
    values = await engine.canary()
    ids = [11, 83, 29, 101, 47, 5, 97, 61, 19, 73]
    expected = trainer.ask("score", path=str(checkpoints[0]), ids=ids, top=1)["tokens"]
    assert list(values) == pytest.approx(expected, abs=TOLERANCE)
    assert max(values) - min(values) > 1
