"""What ``/generate`` may be asked, checked before anything is queued.

Lengths: P = prompt tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from .fields import InvalidField, as_bool, as_int, as_int_list, as_text, nearest
from .sampling import SamplingParams, parse_sampling_params
from .tokenizer import ModelTokenizer

_MAX_TOP_LOGPROBS = 1024

_FIELDS = frozenset(
    {
        "text",
        "input_ids",
        "sampling_params",
        "rid",
        "stream",
        "return_logprob",
        "logprob_start_len",
        "top_logprobs_num",
        "token_ids_logprob",
        "return_text_in_logprobs",
        "return_prompt_token_ids",
    }
)

_NOT_OFFERED = frozenset(
    {
        "input_embeds",
        "image_data",
        "video_data",
        "audio_data",
        "lora_path",
        "session_params",
        "custom_logit_processor",
        "return_hidden_states",
        "return_routed_experts",
        "priority",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "background",
        "return_bytes",
        "return_entropy",
    }
)
"""Fields of SGLang that need what this engine lacks: accepted while null, false or empty."""

_WITHOUT_EFFECT = frozenset({"model", "log_metrics", "no_logs"})
"""What SGLang's router sends along and SGLang ignores, or uses for its own logs only."""


@frozen(kw_only=True)
class GenerateRequest:
    """One sequence to continue or score.

    prompt: P token ids, used exactly. logprob_start: the first prompt position whose log-prob
    entry is reported (its own value is null); P - 1 reports none that needs computing.
    top_logprobs: most probable tokens to report at each position. logprobs_of: further token
    ids to report at each position.
    """

    rid: str | None
    prompt: tuple[int, ...]
    sampling: SamplingParams
    stream: bool = False
    return_logprob: bool = False
    logprob_start: int = 0
    top_logprobs: int = 0
    logprobs_of: tuple[int, ...] = ()
    text_in_logprobs: bool = False
    echo_prompt_ids: bool = False

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of prompt tokens have to be computed."""
        return self.return_logprob and self.logprob_start < len(self.prompt) - 1


def parse_generate(
    body: Any, tokenizer: ModelTokenizer, context_tokens: int
) -> GenerateRequest | list[GenerateRequest]:
    """Check a ``/generate`` body; a list of inputs gives a list of requests.

    Raises:
        InvalidField: names the field and what is expected.
    """
    if not isinstance(body, Mapping):
        raise InvalidField("body", f"is {type(body).__name__}, an object is expected")
    for name, value in body.items():
        if name in _NOT_OFFERED:
            if value:
                raise InvalidField(name, "is not offered by the embedded engine; leave it out")
        elif name not in _FIELDS | _WITHOUT_EFFECT:
            raise InvalidField(name, f"is not a field of /generate{nearest(name, _FIELDS)}")
    given = {name: value for name, value in body.items() if value is not None}
    if ("text" in given) == ("input_ids" in given):
        raise InvalidField("text", "or input_ids is expected, exactly one of them")
    source = "text" if "text" in given else "input_ids"
    inputs = given[source]
    if not _is_batch(source, inputs):
        return _parse_one(given, source, source, tokenizer, context_tokens)
    if given.get("stream"):
        raise InvalidField("stream", f"is not offered for a list in {source}; send one request each")
    if "rid" in given:
        raise InvalidField("rid", f"is not offered for a list in {source}; send one request each")
    return [
        _parse_one({**given, source: item}, source, f"{source}[{index}]", tokenizer, context_tokens)
        for index, item in enumerate(inputs)
    ]


def _is_batch(source: str, inputs: Any) -> bool:
    if not isinstance(inputs, list) or not inputs:
        return False
    return isinstance(inputs[0], str if source == "text" else list)


def _parse_one(
    given: Mapping[str, Any], source: str, where: str, tokenizer: ModelTokenizer, context_tokens: int
) -> GenerateRequest:
    if source == "text":
        prompt = tokenizer.encode(as_text(given[source], where))
    else:
        prompt = as_int_list(given[source], where)
    sampling = parse_sampling_params(given.get("sampling_params"))
    check_prompt(prompt, sampling, where, tokenizer.vocabulary_size, context_tokens)
    return_logprob = as_bool(given.get("return_logprob", False), "return_logprob")
    last = len(prompt) - 1
    start = as_int(given.get("logprob_start_len", -1), "logprob_start_len", low=-1)
    if start > last:
        raise InvalidField("logprob_start_len", f"is {start}; the prompt has {len(prompt)} tokens")
    of = as_int_list(given.get("token_ids_logprob", []), "token_ids_logprob")
    _check_ids(of, "token_ids_logprob", tokenizer.vocabulary_size)
    rid = given.get("rid")
    return GenerateRequest(
        rid=None if rid is None else as_text(rid, "rid"),
        prompt=tuple(prompt),
        sampling=sampling,
        stream=as_bool(given.get("stream", False), "stream"),
        return_logprob=return_logprob,
        logprob_start=last if start == -1 else start,
        top_logprobs=as_int(
            given.get("top_logprobs_num", 0), "top_logprobs_num", low=0, high=_MAX_TOP_LOGPROBS
        ),
        logprobs_of=tuple(of),
        echo_prompt_ids=as_bool(given.get("return_prompt_token_ids", False), "return_prompt_token_ids"),
        text_in_logprobs=as_bool(given.get("return_text_in_logprobs", False), "return_text_in_logprobs"),
    )


def check_prompt(
    prompt: list[int], sampling: SamplingParams, where: str, vocabulary_size: int, context_tokens: int
) -> None:
    """Refuse a prompt that is empty, has ids outside the vocabulary, or does not fit with its answer."""
    if not prompt:
        raise InvalidField(where, "is empty; at least one token is expected")
    _check_ids(prompt, where, vocabulary_size)
    if len(prompt) > context_tokens:
        raise InvalidField(where, f"has {len(prompt)} tokens; the context holds {context_tokens}")
    room = context_tokens - len(prompt)
    if sampling.max_new_tokens > room:
        raise InvalidField(
            "sampling_params.max_new_tokens",
            f"is {sampling.max_new_tokens}; the context of {context_tokens} has room for {room} "
            f"after the prompt's {len(prompt)} tokens",
        )


def _check_ids(ids: list[int], where: str, vocabulary_size: int) -> None:
    for index, number in enumerate(ids):
        if not 0 <= number < vocabulary_size:
            raise InvalidField(f"{where}[{index}]", f"is {number}; token ids are 0 to {vocabulary_size - 1}")
