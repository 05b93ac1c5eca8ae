"""The judge role: its protocol on /generate, its stage, its template settings."""

from __future__ import annotations

from typing import Any

import pytest

from rolecall.api import NamedReward, PayloadError, StageContext, StageRequest, UpstreamError
from rolecall.batches.sample import Prompt, Sample
from rolecall_roles.genrm.options import GenRMOptions
from rolecall_roles.genrm.role import GenRMRole

MESSAGES = [{"role": "user", "content": "Is it right?"}]


def adapt(payload: dict[str, Any], **kwargs: Any) -> Any:
    return GenRMRole(GenRMOptions(chat_template_kwargs=kwargs)).adapt_generate(payload)


def test_messages_become_a_chat_completion() -> None:
    sampling = {"max_new_tokens": 8, "temperature": 0, "sampling_seed": 3, "stop": ["\n"]}
    call = adapt({"messages": MESSAGES, "sampling_params": sampling, "rid": "r1"}, enable_thinking=False)
    assert call.path == "/v1/chat/completions"
    assert call.payload == {
        "messages": MESSAGES,
        "max_tokens": 8,
        "temperature": 0,
        "seed": 3,
        "stop": ["\n"],
        "rid": "r1",
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_the_answer_is_the_text_alone() -> None:
    call = adapt({"messages": MESSAGES})
    assert call.payload == {"messages": MESSAGES}
    assert call.reply({"choices": [{"message": {"content": "9"}}], "usage": {}}) == {"response": "9"}


@pytest.mark.parametrize(
    "answer", [{}, {"choices": []}, {"choices": [{"message": {"content": None}}]}, [], {"choices": [{}]}]
)
def test_an_answer_outside_the_chat_protocol_is_the_engine_s_fault(answer: Any) -> None:
    with pytest.raises(UpstreamError):
        adapt({"messages": MESSAGES}).reply(answer)


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"messages": MESSAGES, "text": "x"}, "text"),
        ({"messages": MESSAGES, "input_ids": [1]}, "input_ids"),
        ({"messages": MESSAGES, "stream": True}, "stream"),
        ({"messages": MESSAGES, "return_logprob": True}, "return_logprob"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [*MESSAGES, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": MESSAGES, "sampling_params": [1]}, "sampling_params"),
        ({"messages": MESSAGES, "sampling_params": {"max_tokens": 4}}, "sampling_params.max_tokens"),
        ({"text": "x", "input_ids": [1]}, "input_ids"),
        ({}, "text"),
    ],
)
def test_a_wrong_payload_is_refused_by_field(payload: dict[str, Any], field: str) -> None:
    with pytest.raises(PayloadError) as refused:
        adapt(payload)
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")


def test_raw_payloads_pass_unchanged() -> None:
    payload = {"text": "x"}
    assert adapt(payload).payload is payload
    assert adapt(payload).path == "/generate"


class Judge:
    """An adapter that asks once and takes the answer for the reward."""

    name = "ask"
    role = "genrm"
    reads = frozenset({"response"})

    async def score(self, sample: Sample, client: Any) -> float:
        return float(await client.chat(MESSAGES, sampling={"temperature": 0.0}, affinity_key=sample.group_id))


class Client:
    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    async def chat(self, messages: Any, **arguments: Any) -> str:
        self.calls.append(arguments)
        return "0.5"

    async def generate(self, payload: Any, **arguments: Any) -> dict[str, Any]:
        raise AssertionError


SAMPLE = Sample(
    sample_id="p/0",
    group_id="p",
    prompt=Prompt(prompt_id="p", text="?"),
    prompt_ids=(1,),
    response="yes",
    response_ids=(2,),
    rollout_log_probs=(-0.1,),
    finish_reason="stop",
    weight_version=None,
)


async def run_judge(**kwargs: Any) -> tuple[Any, Client]:
    adapter: Any = Judge()
    reward = NamedReward(name="ask", adapter=adapter, on_error="fail_batch", retries=0, timeout_s=5.0)
    role = GenRMRole(GenRMOptions(chat_template_kwargs=kwargs))
    (stage,) = role.scoring_stages(StageRequest(rewards=(reward,)))
    assert (stage.name, stage.role) == ("judge", "genrm")
    client = Client()
    context = StageContext(client=client, max_concurrency=2, progress=lambda *_: None)
    return await stage.run([SAMPLE], context), client


async def test_the_stage_runs_the_rewards_that_ask_this_role() -> None:
    scores, client = await run_judge()
    assert scores == {"p/0": {"reward:ask": 0.5}}
    assert client.calls[0]["sampling"] == {"temperature": 0.0}


async def test_template_settings_go_with_every_judge_request() -> None:
    scores, client = await run_judge(enable_thinking=False)
    assert scores == {"p/0": {"reward:ask": 0.5}}
    assert client.calls[0]["sampling"] == {
        "chat_template_kwargs": {"enable_thinking": False},
        "temperature": 0.0,
    }
    assert client.calls[0]["affinity_key"] == "p"


def test_without_rewards_there_is_no_stage() -> None:
    assert GenRMRole(GenRMOptions()).scoring_stages(StageRequest()) == ()
