"""``/generate``, chat and the look-only endpoints of the real engine, with real weights."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import httpx
import numpy as np
import pytest

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session")]

GREEDY = {"temperature": 0, "max_new_tokens": 12}
PROMPT = "The capital of France is"
PROMPT_IDS = [504, 3575, 282, 4649, 314]
CHAT = [{"role": "user", "content": "Name three colours."}]


async def generate(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await http.post("/generate", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def events(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    lines: list[Any] = []
    async with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line:
                assert line.startswith("data: ")
                lines.append(line.removeprefix("data: "))
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_text_and_ids_of_the_same_prompt_give_the_same_answer(http: httpx.AsyncClient) -> None:
    by_text = await generate(http, text=PROMPT, sampling_params=GREEDY, rid="mine")
    by_ids = await generate(http, input_ids=PROMPT_IDS, sampling_params=GREEDY)
    assert by_text["output_ids"] == by_ids["output_ids"]
    assert by_text["text"].startswith(" Paris")
    meta = by_text["meta_info"]
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "length", "length": 12}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (5, 12)
    assert meta["weight_version"] == "0"
    assert meta["e2e_latency"] > 0


async def test_every_token_of_a_multi_token_character_comes_back(http: httpx.AsyncClient) -> None:
    answer = await generate(
        http,
        text="🎉🎊🎉🎊🎉🎊🎉🎊",
        sampling_params={"temperature": 0, "max_new_tokens": 12},
        return_logprob=True,
    )
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"]) == 12
    assert [entry[1] for entry in answer["meta_info"]["output_token_logprobs"]] == answer["output_ids"]
    assert answer["text"]
    assert "\ufffd" not in answer["text"]


async def test_a_stream_is_cumulative_and_ends_as_the_unary_answer(http: httpx.AsyncClient) -> None:
    body = {"input_ids": PROMPT_IDS, "sampling_params": GREEDY, "return_logprob": True, "top_logprobs_num": 2}
    unary = await generate(http, **body)
    seen = await events(http, "/generate", body)
    assert len(seen) > 3
    for earlier, later in itertools.pairwise(seen):
        assert later["text"].startswith(earlier["text"])
        assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
        assert earlier["meta_info"]["finish_reason"] is None
    for varying in ("id", "e2e_latency", "cached_tokens"):
        del unary["meta_info"][varying], seen[-1]["meta_info"][varying]
    assert seen[-1]["text"] == unary["text"]
    assert seen[-1]["output_ids"] == unary["output_ids"]
    assert seen[-1]["meta_info"]["finish_reason"] == unary["meta_info"]["finish_reason"]
    streamed = [entry[0] for entry in seen[-1]["meta_info"]["output_token_logprobs"]]
    at_once = [entry[0] for entry in unary["meta_info"]["output_token_logprobs"]]
    np.testing.assert_allclose(streamed, at_once, atol=1e-3)


async def test_a_seed_repeats_and_other_seeds_differ(http: httpx.AsyncClient) -> None:
    def params(seed: int) -> dict[str, Any]:
        return {"temperature": 1.0, "top_p": 0.95, "top_k": 50, "max_new_tokens": 16, "sampling_seed": seed}

    first, again, other = [
        (await generate(http, text="Once upon a time", sampling_params=params(seed)))["output_ids"]
        for seed in (7, 7, 8)
    ]
    assert first == again
    assert first != other


async def test_greedy_is_the_same_ten_times(http: httpx.AsyncClient) -> None:
    answers = [
        (await generate(http, input_ids=PROMPT_IDS, sampling_params=GREEDY))["output_ids"] for _ in range(10)
    ]
    assert all(answer == answers[0] for answer in answers)


async def test_stop_strings_end_tokens_and_their_text(http: httpx.AsyncClient) -> None:
    stopped = await generate(http, text=PROMPT, sampling_params={**GREEDY, "stop": [".", "never"]})
    assert stopped["text"] == " Paris"
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": "."}
    kept = await generate(http, text=PROMPT, sampling_params={**GREEDY, "stop": ".", "no_stop_trim": True})
    assert kept["text"] == " Paris."
    by_id = await generate(http, text=PROMPT, sampling_params={**GREEDY, "stop_token_ids": [30]})
    assert by_id["output_ids"][-1] == 30
    assert by_id["meta_info"]["finish_reason"] == {"type": "stop", "matched": 30}
    assert by_id["text"] == " Paris"


async def test_the_end_token_is_returned_and_ignored_on_demand(http: httpx.AsyncClient) -> None:
    prompt = "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n"
    params = {"temperature": 0, "max_new_tokens": 60}
    ended = await generate(http, text=prompt, sampling_params=params)
    assert ended["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}
    assert ended["output_ids"][-1] == 2
    assert "<|im_end|>" not in ended["text"]
    further = await generate(http, text=prompt, sampling_params={**params, "ignore_eos": True})
    assert len(further["output_ids"]) == 60
    assert further["output_ids"][: len(ended["output_ids"])] == ended["output_ids"]
    shown = await generate(
        http, text=prompt, sampling_params={**params, "ignore_eos": True, "skip_special_tokens": False}
    )
    assert "<|im_end|>" in shown["text"]


async def test_nothing_is_generated_for_zero_new_tokens(http: httpx.AsyncClient) -> None:
    answer = await generate(
        http,
        input_ids=PROMPT_IDS,
        sampling_params={"temperature": 0, "max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=2,
        top_logprobs_num=3,
        token_ids_logprob=[314, 7],
    )
    meta = answer["meta_info"]
    assert (answer["text"], answer["output_ids"]) == ("", [])
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    assert [entry[1] for entry in meta["input_token_logprobs"]] == PROMPT_IDS[2:]
    assert meta["input_token_logprobs"][0] == [None, PROMPT_IDS[2], None]
    assert meta["input_top_logprobs"][0] is None
    assert [len(top) for top in meta["input_top_logprobs"][1:]] == [3, 3]
    last = meta["input_token_ids_logprobs"][-1]
    assert [entry[1] for entry in last] == [314, 7]
    assert last[0][0] == meta["input_token_logprobs"][-1][0]


async def test_prompt_log_probabilities_equal_an_independent_forward_pass(
    http: httpx.AsyncClient, reference: Any
) -> None:
    text = "Question: what is 12 + 30? Answer: 42. The sky is blue, and water is wet. 日本 ok"
    asked = await generate(http, text=text, sampling_params={"max_new_tokens": 0})
    count = asked["meta_info"]["prompt_tokens"]
    answer = await generate(
        http,
        text=text,
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=5,
    )
    meta = answer["meta_info"]
    ids = [entry[1] for entry in meta["input_token_logprobs"]]
    assert len(ids) == count > 20
    expected = reference.log_probabilities(ids)
    found = [entry[0] for entry in meta["input_token_logprobs"][1:]]
    np.testing.assert_allclose(found, [expected[i, ids[i + 1]] for i in range(count - 1)], atol=1e-3)
    for position, top in enumerate(meta["input_top_logprobs"][1:]):
        best = np.argsort(-expected[position])[:5]
        np.testing.assert_allclose([entry[0] for entry in top], expected[position][best], atol=1e-3)
        assert {entry[1] for entry in top} == set(best.tolist())


async def test_both_runtimes_agree_on_the_generated_tokens(http: httpx.AsyncClient) -> None:
    """llama.cpp rounds activations to 8 bits before it multiplies, so "agree" is a tenth."""
    answer = await generate(
        http,
        text=PROMPT,
        sampling_params={"temperature": 0, "max_new_tokens": 24},
        return_logprob=True,
        top_logprobs_num=1,
        token_ids_logprob=[30],
    )
    by_llama = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
    rescored = await generate(
        http,
        input_ids=PROMPT_IDS + answer["output_ids"],
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=len(PROMPT_IDS) - 1,
        token_ids_logprob=[30],
    )
    by_numpy = [entry[0] for entry in rescored["meta_info"]["input_token_logprobs"][1:]]
    difference = np.abs(np.subtract(by_llama, by_numpy))
    assert difference.mean() < 0.08
    assert difference.max() < 0.4
    of_one = answer["meta_info"]["output_token_ids_logprobs"]
    np.testing.assert_allclose(
        [entry[0][0] for entry in of_one],
        [entry[0][0] for entry in rescored["meta_info"]["input_token_ids_logprobs"][1:]],
        atol=1e-4,
    )


async def test_more_requests_than_slots_run_at_once(http: httpx.AsyncClient) -> None:
    async def one(number: int) -> dict[str, Any]:
        params = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
        return await generate(http, text=f"{number} plus {number} is", sampling_params=params)

    alone = await one(3)
    together = await asyncio.gather(*(one(number) for number in range(10)))
    assert all(len(answer["output_ids"]) == 8 for answer in together)
    assert together[3]["output_ids"] == alone["output_ids"]
    params = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    answers = await generate(http, text=["1 plus 1 is", "3 plus 3 is"], sampling_params=params)
    assert isinstance(answers, list)
    assert answers[1]["output_ids"] == alone["output_ids"]


async def test_a_repeated_prompt_reuses_the_cache_and_flush_drops_it(http: httpx.AsyncClient) -> None:
    text = "A list of fruit that grows on trees: apples, pears, plums, cherries, peaches and"
    cached = []
    for _ in range(2):
        answer = await generate(http, text=text, sampling_params=GREEDY)
        cached.append(answer["meta_info"]["cached_tokens"])
    assert cached[1] > 10
    assert (await http.post("/flush_cache")).status_code == 200
    again = await generate(http, text=text, sampling_params=GREEDY)
    assert again["meta_info"]["cached_tokens"] == 0
    assert again["output_ids"] == answer["output_ids"]


async def test_chat_in_one_piece_and_in_chunks(http: httpx.AsyncClient) -> None:
    body = {
        "model": "smollm2",
        "messages": CHAT,
        "temperature": 0,
        "max_tokens": 16,
        "logprobs": True,
        "top_logprobs": 2,
    }
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    unary = response.json()
    choice = unary["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    content = choice["logprobs"]["content"]
    assert len(content) == unary["usage"]["completion_tokens"] == 16
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert "".join(entry["token"] for entry in content) == choice["message"]["content"]

    chunks = await events(http, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 16
    deltas = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert deltas[0]["delta"]["role"] == "assistant"
    assert "".join(delta["delta"].get("content", "") for delta in deltas) == choice["message"]["content"]
    assert sum(len(delta["logprobs"]["content"]) for delta in deltas) == 16
    assert [delta["finish_reason"] for delta in deltas][-1] == "length"


async def test_endpoints_that_only_look(http: httpx.AsyncClient) -> None:
    for path in ("/health", "/health_generate"):
        assert (await http.get(path)).status_code == 200
    info = (await http.get("/server_info")).json()
    assert info == {**(await http.get("/get_server_info")).json(), "resident_bytes": info["resident_bytes"]}
    assert info["resident_tags"] == ["kv_cache", "weights"]
    assert info["resident_bytes"] > 100 * 2**20
    assert (info["running_requests"], info["queued_requests"], info["paused"]) == (0, 0, False)
    assert (info["vocab_size"], info["context_length"]) == (49152, 1024)
    model = (await http.get("/model_info")).json()
    assert model == (await http.get("/get_model_info")).json()
    assert model["weight_version"] == "0"
    assert model["is_generation"] is True
    models = (await http.get("/v1/models")).json()
    assert [card["id"] for card in models["data"]] == ["smollm2"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [1, 49152]}, "input_ids[1]"),
        ({"input_ids": [1, -1]}, "input_ids[1]"),
        ({"input_ids": [1, "x"]}, "input_ids[1]"),
        ({"input_ids": [1] * 2000}, "input_ids"),
        ({"text": 5}, "text"),
        ({"text": "a", "sampling_params": {"temprature": 1}}, "sampling_params.temprature"),
        ({"text": "a", "sampling_params": {"temperature": "hot"}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 5000}}, "sampling_params.max_new_tokens"),
        ({"text": "a", "sampling_params": {"repetition_penalty": 1.2}}, "sampling_params.repetition_penalty"),
        ({"text": "a", "sampling_params": []}, "sampling_params"),
        ({"text": "a", "logprob_start_len": 7}, "logprob_start_len"),
        ({"text": "a", "stream": "yes"}, "stream"),
        ({"text": ["a", "b"], "stream": True}, "stream"),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"text": "a", "return_logprobs": True}, "return_logprobs"),
    ],
)
async def test_a_bad_request_names_its_field(http: httpx.AsyncClient, body: Any, field: str) -> None:
    response = await http.post("/generate", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == field
    assert error["message"].startswith(field)


async def test_bad_json_and_bad_chat_have_the_openai_shape(http: httpx.AsyncClient) -> None:
    assert (await http.post("/generate", content=b"{")).status_code == 400
    for body, field in (
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": CHAT, "max_tokens": -1}, "max_tokens"),
        ({"messages": CHAT, "tools": [{}]}, "tools"),
    ):
        response = await http.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == field
        assert response.json()["error"]["type"] == "invalid_request_error"
