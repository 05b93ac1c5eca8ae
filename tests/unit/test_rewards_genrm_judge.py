"""genrm_judge: what the judge is asked, what its words are worth, and what is no verdict."""

from __future__ import annotations

import math
from typing import Any

import pytest
from attrs import evolve

from rolecall.api import Prompt, Sample, UpstreamError
from rolecall_plugins.rewards.genrm_judge import GenRMJudge, GenRMJudgeOptions

SAMPLE = Sample(
    sample_id="p/0",
    group_id="p",
    prompt=Prompt(prompt_id="p", text="2 + 3?", answer="5"),
    prompt_ids=(1,),
    response=" It is 5.\nGrade: 9 ",
    response_ids=(2,),
    rollout_log_probs=(-0.1,),
    finish_reason="stop",
    weight_version=None,
)


class Judge:
    """Says ``verdict`` to everything."""

    def __init__(self, verdict: Any) -> None:
        self.verdict = verdict
        self.asked: list[tuple[Any, dict[str, Any]]] = []

    async def chat(self, messages: list[dict[str, Any]], **arguments: Any) -> str:
        self.asked.append((messages, arguments))
        return self.verdict

    async def generate(self, payload: Any, **arguments: Any) -> dict[str, Any]:
        self.asked.append((payload, arguments))
        return {"text": self.verdict, "meta_info": {}}


def adapter(**options: Any) -> GenRMJudge:
    return GenRMJudge(GenRMJudgeOptions(**options))


@pytest.mark.parametrize(
    ("verdict", "reward"),
    [("9", 1.0), (" 0\n", 0.0), ("Grade: 6", 6 / 9), ("7.5 of 9", 7.5 / 9), ("3\n\nQuestion: 8", 3 / 9)],
)
def test_without_words_the_first_number_is_the_grade(verdict: str, reward: float) -> None:
    assert adapter(verdicts={}).reward(verdict) == pytest.approx(reward)


@pytest.mark.parametrize("verdict", ["", "wrong", "ten", "10", "-1", "2024 was a good year"])
def test_what_is_no_grade_raises_and_is_never_a_zero(verdict: str) -> None:
    with pytest.raises(ValueError, match="the verdict"):
        adapter(verdicts={}).reward(verdict)


@pytest.mark.parametrize(
    ("verdict", "reward"),
    [(" yes\n\nQuestion", 1.0), ("No.", 0.0), ("**YES**, it is", 1.0), ("no doubt", 0.0)],
)
def test_the_first_word_is_the_verdict(verdict: str, reward: float) -> None:
    assert adapter().reward(verdict) == reward


@pytest.mark.parametrize("verdict", ["", " ", "9", "I say yes", "yesterday", "not sure", "..."])
def test_what_starts_with_no_verdict_raises_and_is_never_a_zero(verdict: str) -> None:
    with pytest.raises(ValueError, match="the verdict starts with none of yes, no"):
        adapter().reward(verdict)


def test_words_are_worth_what_is_configured() -> None:
    judge = adapter(verdicts={"Good": 1.0, "fair": 0.5, "bad": -1.0}, scale=2.0)
    assert [judge.reward(word) for word in ("good", "Fair", "BAD")] == [2.0, 1.0, -2.0]


def test_range_and_scale_are_the_configured_ones() -> None:
    judge = adapter(verdicts={}, low=1, high=5, scale=10.0)
    assert [judge.reward(grade) for grade in ("1", "3", "5")] == [0.0, 5.0, 10.0]
    with pytest.raises(ValueError, match="0 is not between 1 and 5"):
        judge.reward("0")


async def test_a_chat_carries_prompt_answer_and_response() -> None:
    client = Judge("Yes")
    judge = adapter(
        ask="chat",
        template="Q {prompt} R {answer} A {response}.",
        system="You grade.",
        model="m",
        route_key="k",
    )
    assert await judge.score(SAMPLE, client) == 1.0
    messages, arguments = client.asked[0]
    assert messages == [
        {"role": "system", "content": "You grade."},
        {"role": "user", "content": "Q 2 + 3? R 5 A It is 5.\nGrade: 9."},
    ]
    assert arguments == {
        "sampling": {"temperature": 0.0, "max_new_tokens": 4},
        "model": "m",
        "route_key": "k",
        "affinity_key": "p",
    }


async def test_a_completion_is_plain_text_with_the_response_on_one_line() -> None:
    client = Judge(" no\n\nQuestion: yes")
    judge = adapter(template="Answer: {response}\nGrade:", sampling={"max_new_tokens": 2})
    assert await judge.score(SAMPLE, client) == 0.0
    payload, arguments = client.asked[0]
    assert payload == {"text": "Answer: It is 5. Grade: 9\nGrade:", "sampling_params": {"max_new_tokens": 2}}
    assert arguments["affinity_key"] == "p"


async def test_a_completion_without_text_is_the_judge_s_fault() -> None:
    with pytest.raises(UpstreamError, match="without text"):
        await adapter().score(SAMPLE, Judge(None))


def test_a_response_can_not_pull_in_the_reference() -> None:
    sample = evolve(SAMPLE, response="{answer} {prompt}", prompt=evolve(SAMPLE.prompt, answer=None))
    assert adapter(template="[{answer}] {response}").question(sample) == "[] {answer} {prompt}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "{prompt}"}, r"template must contain \{response\}"),
        ({"low": 5.0, "high": 5.0}, r"high must be above low \(5\), found 5"),
        ({"scale": 0.0}, "scale"),
        ({"ask": "shout"}, "ask"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adapter(**options)


@pytest.mark.parametrize(
    ("options", "verdict", "reward"),
    [
        ({"verdicts": {}}, '{"score": 6}', 6 / 9),
        ({"low": 1, "high": 5, "scale": 2.0}, '```json\n{"score": 3}\n```', 1.0),
        ({"field": "a.b"}, '{"a": {"b": "no"}}', 0.0),
        ({"verdicts": {"true": 0.7, "false": 0.1}}, '{"score": true}', 0.7),
    ],
)
def test_a_json_verdict_is_worth_what_its_field_says(
    options: dict[str, Any], verdict: str, reward: float
) -> None:
    assert adapter(form="json", **options).reward(verdict) == pytest.approx(reward)


@pytest.mark.parametrize(
    "verdict", ["", "6", '{"score": 60}', '{"score": "maybe"}', '{"score": 1} {"score": 2}']
)
def test_what_is_no_json_verdict_raises_and_is_never_a_zero(verdict: str) -> None:
    with pytest.raises(ValueError, match="verdict|score"):  # noqa: RUF043
        adapter(form="json").reward(verdict)


def test_the_last_number_or_word_may_count() -> None:
    assert adapter(verdicts={}, where="last").reward("2 mistakes, so: 6") == pytest.approx(6 / 9)
    assert adapter(where="last").reward("I think so, yes.") == 1.0


async def test_a_judge_may_be_asked_how_likely_yes_is() -> None:
    class Likely(Judge):
        async def generate(self, payload: Any, **arguments: Any) -> dict[str, Any]:
            self.asked.append((payload, arguments))
            return {
                "text": "no",
                "meta_info": {"output_top_logprobs": [[[-0.7, 1, " Yes"], [-0.8, 2, "no"]]]},
            }

    client = Likely(None)
    reward = await adapter(form="log_prob", scale=10.0).score(SAMPLE, client)
    assert reward == pytest.approx(10 / (1 + math.exp(-0.1)))
    payload, arguments = client.asked[0]
    assert payload["sampling_params"]["max_new_tokens"] == 1
    assert payload["return_logprob"] is payload["return_text_in_logprobs"] is True
    assert arguments["affinity_key"] == "p"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "log_prob", "ask": "chat"}, 'ask must be "completion"'),
        ({"schema": {"pattern": "x"}}, "schema.pattern is not known"),
        ({"field": "a..b"}, "names with dots"),
        ({"yes": ("no",)}, "can't mean both"),
        ({"verdicts": {"not sure": 0.5}}, "must be one word"),
        ({"verdicts": {"yes": float("nan")}}, "must be a finite number"),
    ],
)
def test_a_form_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adapter(**options)
