"""The embedded engine's request bodies: what is accepted, what is refused and under which name."""

from __future__ import annotations

from typing import Any

import pytest

from rolecall_plugins.engines.embedded.chat import ChatTemplate, parse_chat
from rolecall_plugins.engines.embedded.fields import InvalidField
from rolecall_plugins.engines.embedded.requests import GenerateRequest, parse_generate
from rolecall_plugins.engines.embedded.sampling import SamplingParams, parse_sampling_params

CONTEXT = 300


class Letters:
    """A tokenizer with one token a letter."""

    vocabulary_size = 128

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def generate(**body: Any) -> Any:
    return parse_generate(body, Letters(), CONTEXT)  # pyright: ignore[reportArgumentType]


def test_defaults_are_sglangs() -> None:
    request = generate(text="abc")
    assert request == GenerateRequest(
        rid=None, prompt=(97, 98, 99), sampling=SamplingParams(max_new_tokens=128), logprob_start=2
    )
    assert request.sampling.temperature == 1.0
    assert not request.scores_prompt


def test_null_is_absent() -> None:
    assert generate(
        text="abc", input_ids=None, sampling_params=None, lora_path=None, image_data=[], rid=None
    ) == generate(text="abc")


def test_what_sglangs_router_adds_changes_nothing() -> None:
    added = dict.fromkeys(("return_hidden_states", "background", "return_bytes", "return_entropy"), False)
    assert generate(text="abc", model=None, log_metrics=True, no_logs=False, **added) == generate(text="abc")
    with pytest.raises(InvalidField, match="return_entropy is not offered"):
        generate(text="abc", return_entropy=True)
    messages = [{"role": "user", "content": "x"}]
    added = dict.fromkeys(("no_stop_trim", "continue_final_message", "return_hidden_states"), False)
    assert chat(messages=messages, separate_reasoning=True, stream_reasoning=True, **added) == chat(
        messages=messages
    )
    with pytest.raises(InvalidField, match="continue_final_message is not offered"):
        chat(messages=messages, continue_final_message=True)


@pytest.mark.parametrize(
    ("start", "reported", "scored"),
    [(None, 2, False), (-1, 2, False), (2, 2, False), (1, 1, True), (0, 0, True)],
)
def test_log_probabilities_start_at_the_last_token_by_default(
    start: Any, reported: int, scored: bool
) -> None:
    request = generate(text="abc", return_logprob=True, logprob_start_len=start)
    assert request.logprob_start == reported
    assert request.scores_prompt is scored
    assert not generate(text="abc", logprob_start_len=0).scores_prompt, "nothing was asked for"


def test_lists_are_batches() -> None:
    first, second = generate(input_ids=[[1, 2], [3]], sampling_params={"max_new_tokens": 1})
    assert (first.prompt, second.prompt) == ((1, 2), (3,))
    assert first.sampling == second.sampling
    with pytest.raises(InvalidField) as caught:
        generate(input_ids=[[1], [2, 900]])
    assert caught.value.field == "input_ids[1][1]"
    with pytest.raises(InvalidField) as caught:
        generate(text=["a", "b"], rid="x")
    assert caught.value.field == "rid"


def test_the_answer_has_to_fit_behind_the_prompt() -> None:
    assert generate(text="a" * 200, sampling_params={"max_new_tokens": 100})
    assert generate(text="a" * 300, sampling_params={"max_new_tokens": 0})
    with pytest.raises(InvalidField, match="has room for 100 after the prompt's 200 tokens"):
        generate(text="a" * 200, sampling_params={"max_new_tokens": 101})


def test_an_unknown_field_brings_the_nearest_name() -> None:
    with pytest.raises(InvalidField, match="did you mean 'return_logprob'"):
        generate(text="a", return_logprobs=True)
    with pytest.raises(InvalidField, match="known: custom_params"):
        parse_sampling_params({"zzz": 1})


def test_neutral_values_of_what_is_not_offered_are_accepted() -> None:
    neutral = {"n": 1, "frequency_penalty": 0, "repetition_penalty": 1.0, "regex": None}
    assert parse_sampling_params(neutral) == SamplingParams()
    for name, value in (("n", 2), ("presence_penalty", 0.5), ("json_schema", "{}")):
        with pytest.raises(InvalidField, match="is not offered") as caught:
            parse_sampling_params({name: value})
        assert caught.value.field == f"sampling_params.{name}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("max_new_tokens", -1),
        ("stop", ["a", 3]),
        ("stop_token_ids", "a"),
        ("ignore_eos", 1),
        ("sampling_seed", 2**32),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_sampling_params({name: value})
    assert caught.value.field.startswith(f"sampling_params.{name}")


def test_zero_temperature_is_greedy_and_the_rest_keeps_sglangs_order() -> None:
    assert parse_sampling_params({"temperature": 0}).llama_parameters()["top_k"] == 1
    sampled = parse_sampling_params({"temperature": 0.7, "top_k": -1, "top_p": 0.9, "seed": 3})
    assert sampled.seed == 3
    assert sampled.llama_parameters() == {
        "temperature": 0.7,
        "top_k": 0,
        "top_p": 0.9,
        "min_p": 0.0,
        "samplers": ["temperature", "top_k", "top_p", "min_p"],
    }


TEMPLATE = ChatTemplate(
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}{% if think %}T{% endif %}",
    {"eos_token": "$"},
)


def chat(**body: Any) -> Any:
    body = {"messages": [{"role": "user", "content": "hi"}], **body}
    return parse_chat(body, TEMPLATE, Letters(), CONTEXT)  # pyright: ignore[reportArgumentType]


def test_chat_is_rendered_and_its_names_become_sampling_params() -> None:
    request = chat(max_completion_tokens=7, seed=1, stop="x", chat_template_kwargs={"think": True})
    assert "".join(map(chr, request.generate.prompt)) == "user:hi$T"
    assert request.generate.sampling == SamplingParams(max_new_tokens=7, seed=1, stop=("x",))
    assert chat().generate.sampling.max_new_tokens == CONTEXT - len("user:hi$")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_tokens": "x"}, "max_tokens"),
        ({"max_tokens": 1000}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 400}]}, "messages"),
        ({"response_format": {"type": "json"}}, "response_format"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_token": 3}, "max_token"),
    ],
)
def test_chat_complains_in_the_callers_words(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        chat(**body)
    assert caught.value.field == field
    assert str(caught.value).startswith(field)


def test_a_template_from_a_model_file_cannot_reach_python() -> None:
    evil = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(InvalidField, match="refused by the model's chat template"):
        evil.render([{"role": "user", "content": "x"}], {})
