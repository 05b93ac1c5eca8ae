"""OpenAI's chat endpoint over the same generation: rendering, request, answers.

A chat request is rendered with the model's own template and becomes a :class:`GenerateRequest`;
log-probabilities and stop reasons are translated back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from .fields import InvalidField, as_bool, as_int, as_text, nearest
from .generation import Generation
from .llama_runtime import Token
from .requests import GenerateRequest, check_prompt
from .sampling import parse_sampling_params
from .tokenizer import ModelTokenizer

_MAX_TOP_LOGPROBS = 20

_SAMPLING_NAMES: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
    "seed": "sampling_seed",
    "n": "n",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
}
"""OpenAI's name (and SGLang's additions) → name in ``sampling_params``."""

_FIELDS = frozenset(
    {
        *_SAMPLING_NAMES,
        "model",
        "messages",
        "stream",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "chat_template_kwargs",
        "rid",
        "user",
        "tools",
        "tool_choice",
        "response_format",
        "logit_bias",
        "continue_final_message",
        "no_stop_trim",
        "return_hidden_states",
        "separate_reasoning",
        "stream_reasoning",
    }
)
_NOT_OFFERED = (
    "tools",
    "tool_choice",
    "response_format",
    "logit_bias",
    "continue_final_message",
    "no_stop_trim",
    "return_hidden_states",
)


@frozen(kw_only=True)
class ChatRequest:
    """A checked chat request; ``generate`` is what it asks of the model."""

    model: str
    generate: GenerateRequest
    logprobs: bool
    include_usage: bool


class ChatTemplate:
    """The model's Jinja template in a sandbox: it comes with the weights and is not trusted."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(source)
        self._known = {**special_tokens, "raise_exception": _raise_exception}

    def render(self, messages: list[Mapping[str, Any]], extra: Mapping[str, Any]) -> str:
        """The prompt text, ending where the assistant's turn begins.

        Raises:
            InvalidField: the template refuses these messages.
        """
        from jinja2 import TemplateError

        values = {**self._known, "add_generation_prompt": True, **extra, "messages": messages}
        try:
            return self._template.render(values)
        except (TemplateError, TypeError) as error:
            raise InvalidField("messages", f"are refused by the model's chat template: {error}") from error


def _raise_exception(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def parse_chat(
    body: Any, template: ChatTemplate | None, tokenizer: ModelTokenizer, context_tokens: int
) -> ChatRequest:
    """Check a chat body and render its messages.

    Raises:
        InvalidField: names the field and what is expected.
    """
    if not isinstance(body, Mapping):
        raise InvalidField("body", f"is {type(body).__name__}, an object is expected")
    if template is None:
        raise InvalidField("messages", "can't be rendered: the model file has no chat template")
    for name in body:
        if name not in _FIELDS:
            raise InvalidField(name, f"is not a field of chat completions{nearest(name, _FIELDS)}")
    for name in _NOT_OFFERED:
        if body.get(name):
            raise InvalidField(name, "is not offered by the embedded engine; leave it out")
    given = {name: value for name, value in body.items() if value is not None}
    extra = given.get("chat_template_kwargs", {})
    if not isinstance(extra, Mapping):
        raise InvalidField("chat_template_kwargs", f"is {type(extra).__name__}, an object is expected")
    prompt = tokenizer.encode(template.render(_messages(given.get("messages")), extra))
    wanted: dict[str, Any] = {}
    for name, target in _SAMPLING_NAMES.items():
        if name in given:
            wanted[target] = given[name]
    try:
        if "max_new_tokens" not in wanted:
            # OpenAI's default is "until the context is full"; SGLang's 128 would cut answers off.
            wanted["max_new_tokens"] = max(context_tokens - len(prompt), 0)
        sampling = parse_sampling_params(wanted, "")
        check_prompt(prompt, sampling, "messages", tokenizer.vocabulary_size, context_tokens)
    except InvalidField as error:
        raise _in_chat_words(error, given) from error
    logprobs = as_bool(given.get("logprobs", False), "logprobs")
    options = given.get("stream_options", {})
    if not isinstance(options, Mapping):
        raise InvalidField("stream_options", f"is {type(options).__name__}, an object is expected")
    rid = given.get("rid")
    generate = GenerateRequest(
        rid=None if rid is None else as_text(rid, "rid"),
        prompt=tuple(prompt),
        sampling=sampling,
        stream=as_bool(given.get("stream", False), "stream"),
        top_logprobs=as_int(given.get("top_logprobs", 0), "top_logprobs", low=0, high=_MAX_TOP_LOGPROBS),
    )
    return ChatRequest(
        model=as_text(given.get("model", ""), "model"),
        generate=generate,
        logprobs=logprobs,
        include_usage=bool(options.get("include_usage", False)),
    )


def _messages(value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not value:
        raise InvalidField("messages", "is expected: a list of at least one message")
    for index, message in enumerate(value):
        field = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise InvalidField(field, f"is {type(message).__name__}, an object is expected")
        as_text(message.get("role"), f"{field}.role")
        as_text(message.get("content"), f"{field}.content")
    return value


def _in_chat_words(error: InvalidField, given: Mapping[str, Any]) -> InvalidField:
    """The same complaint under the name that the caller used."""
    inner = error.field.rpartition(".")[2]
    names = [name for name, target in _SAMPLING_NAMES.items() if target == inner and name in given]
    field = names[0] if names else inner
    return InvalidField(field, str(error).removeprefix(error.field).strip())


def chat_answer(chat: ChatRequest, generation: Generation) -> dict[str, Any]:
    """The unary answer."""
    message = {"role": "assistant", "content": generation.text}
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(generation, 0) if chat.logprobs else None,
        "finish_reason": _finish_reason(generation),
    }
    return {**_head(chat, generation, "chat.completion"), "choices": [choice], "usage": _usage(generation)}


def chat_chunk(
    chat: ChatRequest, generation: Generation, *, text_from: int, tokens_from: int, first: bool
) -> dict[str, Any]:
    """One chunk: what is new since ``text_from`` characters and ``tokens_from`` tokens."""
    delta: dict[str, Any] = {"role": "assistant"} if first else {}
    if generation.text[text_from:] or first:
        delta["content"] = generation.text[text_from:]
    choice = {
        "index": 0,
        "delta": delta,
        "logprobs": _logprobs(generation, tokens_from) if chat.logprobs else None,
        "finish_reason": _finish_reason(generation),
    }
    return {**_head(chat, generation, "chat.completion.chunk"), "choices": [choice]}


def usage_chunk(chat: ChatRequest, generation: Generation) -> dict[str, Any]:
    """The last chunk, when usage was asked for."""
    return {**_head(chat, generation, "chat.completion.chunk"), "choices": [], "usage": _usage(generation)}


def _head(chat: ChatRequest, generation: Generation, kind: str) -> dict[str, Any]:
    return {"id": generation.rid, "object": kind, "created": int(time.time()), "model": chat.model}


def _finish_reason(generation: Generation) -> str | None:
    if not generation.complete or generation.finish is None:
        return None
    return generation.finish.reason


def _usage(generation: Generation) -> dict[str, Any]:
    prompt, completion = len(generation.request.prompt), len(generation.ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
    }


def _logprobs(generation: Generation, tokens_from: int) -> dict[str, Any]:
    return {"content": [_entry(generation, token) for token in generation.tokens[tokens_from:]]}


def _entry(generation: Generation, token: Token) -> dict[str, Any]:
    def described(number: int, logprob: float) -> dict[str, Any]:
        text = generation.token_text(number)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    top = [described(number, logprob) for number, logprob in token.top]
    return {**described(token.id, token.logprob), "top_logprobs": top}
