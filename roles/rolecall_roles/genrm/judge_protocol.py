"""The judge protocol on ``/generate``: ``{messages, sampling_params?}`` → ``{"response": text}``.

It becomes a chat completion, so the engine renders the messages with the chosen model's own
template. Sampling parameters keep their native names towards the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rolecall.api import PayloadError, PayloadShape, UpstreamCall, UpstreamError

CHAT_PATH = "/v1/chat/completions"

_FIELDS = {"messages", "sampling_params", "rid"}
_RAW_INPUT = ("text", "input_ids")

_RENAMED = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
_SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "regex",
    "ebnf",
)
_CHAT_NAMES = {**{name: name for name in _SAME_NAME}, **_RENAMED}
"""Native sampling parameter → its name in the chat protocol."""

SHAPE = PayloadShape(
    request={
        "description": "A question to the judge. Sampling parameters have their native names.",
        "type": "object",
        "properties": {
            "messages": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {"role": {"type": "string"}, "content": {"type": ["string", "array"]}},
                    "required": ["role", "content"],
                },
            },
            "sampling_params": {
                "type": ["object", "null"],
                "properties": {name: {} for name in _CHAT_NAMES},
                "additionalProperties": False,
            },
        },
        "required": ["messages"],
        "additionalProperties": False,
    },
    answer={
        "type": "object",
        "properties": {"response": {"type": "string"}},
        "required": ["response"],
        "additionalProperties": False,
    },
)
"""The protocol as the gateway's OpenAPI document shows it."""


def judge_call(payload: Mapping[str, Any], chat_template_kwargs: Mapping[str, Any]) -> UpstreamCall:
    """Return the engine call for a judge request.

    Raises:
        PayloadError: names the field that is wrong.
    """
    for name in _RAW_INPUT:
        if name in payload:
            raise PayloadError(
                f"{name}: messages and raw input were both given; send one of them", field=name
            )
    unknown = sorted(payload.keys() - _FIELDS)
    if unknown:
        raise PayloadError(
            f"{unknown[0]}: is not part of a judge request; allowed are messages, sampling_params, "
            "model and route_key",
            field=unknown[0],
        )
    body: dict[str, Any] = {"messages": checked_messages(payload["messages"])}
    body.update(_chat_sampling(payload.get("sampling_params")))
    if "rid" in payload:
        body["rid"] = payload["rid"]
    if chat_template_kwargs:
        body["chat_template_kwargs"] = dict(chat_template_kwargs)
    return UpstreamCall(path=CHAT_PATH, payload=body, reply=_reply)


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """Return the messages if each has a role and content."""
    if not isinstance(messages, list) or not messages:
        raise PayloadError("messages: must be a list that is not empty", field="messages")
    for index, message in enumerate(cast("list[Any]", messages)):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise PayloadError(f"{where}: must be an object, found {message!r:.60}", field=where)
        fields = cast("Mapping[str, Any]", message)
        if not isinstance(fields.get("role"), str):
            raise PayloadError(
                f"{where}.role: must be text, found {fields.get('role')!r:.60}", field=f"{where}.role"
            )
        if not isinstance(fields.get("content"), (str, list)):
            raise PayloadError(
                f"{where}.content: must be text or a list of parts, found {fields.get('content')!r:.60}",
                field=f"{where}.content",
            )
    return cast("list[dict[str, Any]]", messages)


def _chat_sampling(sampling: Any) -> dict[str, Any]:
    if sampling is None:
        return {}
    if not isinstance(sampling, Mapping):
        raise PayloadError(
            f"sampling_params: must be an object, found {sampling!r:.60}", field="sampling_params"
        )
    params = cast("Mapping[str, Any]", sampling)
    unknown = sorted(params.keys() - _CHAT_NAMES.keys())
    if unknown:
        raise PayloadError(
            f"sampling_params.{unknown[0]}: the judge protocol has no such parameter; "
            f"allowed: {', '.join(sorted(_CHAT_NAMES))}",
            field=f"sampling_params.{unknown[0]}",
        )
    return {_CHAT_NAMES[name]: value for name, value in params.items()}


def _reply(answer: Any) -> dict[str, Any]:
    try:
        content = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise UpstreamError(f"{CHAT_PATH} answered without choices[0].message.content") from error
    if not isinstance(content, str):
        raise UpstreamError(f"{CHAT_PATH} answered content of type {type(content).__name__}, not text")
    return {"response": content}
