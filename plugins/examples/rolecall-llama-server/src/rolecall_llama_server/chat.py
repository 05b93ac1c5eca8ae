"""OpenAI's chat: what llama.cpp's server is asked, and one answer made from its chunks. Pure.

llama.cpp's server is always asked for a stream. It looks whether the caller of a unary request is still there
only when nothing else happens for a second, so one that was aborted would be computed to its end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from attrs import define, field

from .fields import check_neutral

_NOT_OFFERED: Mapping[str, Any] = {
    "n": 1,
    "min_tokens": 0,
    "repetition_penalty": 1,
    "skip_special_tokens": True,
    "stop_token_ids": [],
    "regex": None,
    "ebnf": None,
}
"""Fields that llama.cpp's server would pass over without a word, and values that change nothing."""

_DEFAULTS: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""llama.cpp's own cut the distribution."""


def chat_body(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat request as llama.cpp's server takes it.

    Raises:
        InvalidField: it asks for what llama.cpp's server would pass over.
    """
    for name, neutral in _NOT_OFFERED.items():
        check_neutral(name, payload.get(name), neutral)
    left_out = {*_NOT_OFFERED, "rid"}
    body = {name: value for name, value in payload.items() if name not in left_out and value is not None}
    if body.get("top_k") == -1:
        body["top_k"] = 0
    return {**_DEFAULTS, **body}


@define
class ChatAnswer:
    """An answer that is put together; complete once all chunks were taken."""

    _rid: str
    _model: str
    _message: dict[str, Any] = field(factory=lambda: {"role": "assistant", "content": ""}, init=False)
    _tools: dict[int, dict[str, Any]] = field(factory=dict, init=False)
    _logprobs: list[Any] = field(factory=list, init=False)
    _finish_reason: str | None = field(default=None, init=False)
    _usage: Any = field(default=None, init=False)

    def take(self, chunk: Mapping[str, Any]) -> None:
        """Take one chunk."""
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            self._finish_reason = choice["finish_reason"] or self._finish_reason
            self._logprobs += (choice.get("logprobs") or {}).get("content") or ()
            delta = choice["delta"]
            for name in ("content", "reasoning_content"):
                if delta.get(name):
                    self._message[name] = self._message.get(name, "") + delta[name]
            for call in delta.get("tool_calls") or ():
                self._take_tool_call(call)

    def abort(self) -> None:
        """End it now; what there is of it stays."""
        self._finish_reason = "abort"

    def answer(self) -> dict[str, Any]:
        """Return the whole answer."""
        message = dict(self._message)
        if self._tools:
            message["tool_calls"] = list(self._tools.values())
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs}
        return {
            "id": self._rid,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": [choice],
            "usage": self._usage,
        }

    def _take_tool_call(self, part: Mapping[str, Any]) -> None:
        function = part["function"]
        if part["index"] not in self._tools:
            start = {"name": function.get("name"), "arguments": ""}
            self._tools[part["index"]] = {"id": part.get("id"), "type": "function", "function": start}
        self._tools[part["index"]]["function"]["arguments"] += function.get("arguments") or ""


def aborted_chunk(rid: str, model: str) -> dict[str, Any]:
    """Return the last chunk of a stream that was aborted."""
    choice = {"index": 0, "delta": {}, "finish_reason": "abort"}
    return {"id": rid, "object": "chat.completion.chunk", "model": model, "choices": [choice]}
