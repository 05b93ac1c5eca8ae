"""One ``/generate`` request and its answer: SGLang's objects, made from llama.cpp's events. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attrs import define, field, frozen

from .fields import InvalidField, as_bool, as_ids, as_int, as_object, as_text
from .sampling import Sampling

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
        "return_prompt_token_ids",
    }
)
_WITHOUT_EFFECT = frozenset({"model", "log_metrics", "no_logs"})

_LOWEST_LOGPROB = math.log(2**-149)
"""llama.cpp writes null for a probability that float32 can't hold; JSON knows no infinity."""


@frozen(kw_only=True)
class GenerateRequest:
    """What is asked; exactly one of ``text`` and ``ids`` is the prompt."""

    text: str | None
    ids: tuple[int, ...] | None
    rid: str | None
    sampling: Sampling
    stream: bool
    return_logprob: bool
    top_logprobs: int
    echo_prompt_ids: bool

    @classmethod
    def parse(cls, body: Any) -> GenerateRequest:
        """Check a body.

        Raises:
            InvalidField: names the field.
        """
        given = {name: value for name, value in as_object(body, "body").items() if value is not None}
        for name, value in given.items():
            # Empty or false asks for nothing.
            if name not in _FIELDS | _WITHOUT_EFFECT and value:
                raise InvalidField(name, f"is not offered here; known are {', '.join(sorted(_FIELDS))}")
        if ("text" in given) == ("input_ids" in given):
            raise InvalidField("text", "exactly one of text and input_ids is expected")
        ids = tuple(as_ids(given["input_ids"], "input_ids")) if "input_ids" in given else None
        return_logprob = as_bool(given.get("return_logprob", False), "return_logprob")
        start = as_int(given.get("logprob_start_len", -1), "logprob_start_len", -1)
        if return_logprob and start != -1 and (ids is None or start < len(ids) - 1):
            raise InvalidField(
                "logprob_start_len",
                "llama.cpp's server gives log-probabilities of the answer, not of the prompt; leave it out",
            )
        return cls(
            text=as_text(given["text"], "text") if "text" in given else None,
            ids=ids,
            rid=as_text(given["rid"], "rid") if "rid" in given else None,
            sampling=Sampling.parse(given.get("sampling_params")),
            stream=as_bool(given.get("stream", False), "stream"),
            return_logprob=return_logprob,
            top_logprobs=as_int(given.get("top_logprobs_num", 0), "top_logprobs_num", 0),
            echo_prompt_ids=as_bool(given.get("return_prompt_token_ids", False), "return_prompt_token_ids"),
        )


@frozen(kw_only=True)
class _Token:
    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@define(kw_only=True)
class Generation:
    """An answer on its way; ``finish`` is SGLang's reason once it is complete."""

    request: GenerateRequest
    rid: str
    prompt: tuple[int, ...]
    weight_version: str
    text: str = ""
    finish: dict[str, Any] | None = None
    cached_tokens: int = 0
    _tokens: list[_Token] = field(factory=list, init=False)

    def body(self) -> dict[str, Any]:
        """Return the request to llama.cpp's ``/completion``."""
        return {
            "prompt": list(self.prompt),
            "return_tokens": True,
            "n_probs": max(self.request.top_logprobs, 1),
            "cache_prompt": True,
            **self.request.sampling.to_llama(),
        }

    def check_fits(self, context_tokens: int) -> None:
        """Refuse what would not fit into the context, as llama.cpp would cut it short."""
        if not self.prompt:
            raise InvalidField("text" if self.request.ids is None else "input_ids", "is empty")
        wanted = self.request.sampling.max_new_tokens
        if len(self.prompt) + wanted > context_tokens:
            raise InvalidField(
                "sampling_params.max_new_tokens",
                f"is {wanted}, the prompt has {len(self.prompt)} tokens; the context holds {context_tokens}",
            )

    def take(self, event: Mapping[str, Any]) -> None:
        """Take one event of llama.cpp's stream; what comes after the end is not looked at."""
        if self.finish is not None:
            return
        for entry in event.get("completion_probabilities", ()):
            number = int(entry["id"])
            top = tuple((int(other["id"]), _finite(other["logprob"])) for other in entry["top_logprobs"])
            self._tokens.append(
                _Token(id=number, logprob=_finite(entry["logprob"]), top=top[: self.request.top_logprobs])
            )
            if number in self.request.sampling.stop_token_ids:
                self.finish = {"type": "stop", "matched": number}
                return
        self.text += event.get("content", "")
        if event.get("stop"):
            self.cached_tokens = int(event["timings"]["cache_n"])
            self.finish = self._reason(event)

    def abort(self) -> None:
        """End it now; what there is of it stays."""
        self.finish = {"type": "abort", "message": "aborted"}

    def end_without_tokens(self) -> None:
        """End a request for no tokens; llama.cpp would make one."""
        self.finish = {"type": "length", "length": 0}

    def answer(self) -> dict[str, Any]:
        """Return SGLang's answer as it stands: cumulative, final once ``finish`` is set."""
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": self.finish,
            "prompt_tokens": len(self.prompt),
            "completion_tokens": len(self._tokens),
            "cached_tokens": self.cached_tokens,
            "weight_version": self.weight_version,
        }
        if self.request.return_logprob:
            # Of the prompt, SGLang names the last token alone, without a value.
            meta["input_token_logprobs"] = [[None, self.prompt[-1], None]]
            meta["output_token_logprobs"] = [[token.logprob, token.id, None] for token in self._tokens]
            if self.request.top_logprobs:
                meta["input_top_logprobs"] = [None]
                meta["output_top_logprobs"] = [
                    [[logprob, number, None] for number, logprob in token.top] for token in self._tokens
                ]
        answer = {"text": self.text, "output_ids": [token.id for token in self._tokens], "meta_info": meta}
        if self.request.echo_prompt_ids:
            answer["prompt_token_ids"] = list(self.prompt)
        return answer

    def _reason(self, event: Mapping[str, Any]) -> dict[str, Any]:
        if event["stop_type"] == "word":
            return {"type": "stop", "matched": event["stopping_word"]}
        if event["stop_type"] == "eos":
            return {"type": "stop", "matched": self._tokens[-1].id if self._tokens else None}
        return {"type": "length", "length": len(self._tokens)}


def _finite(logprob: float | None) -> float:
    return _LOWEST_LOGPROB if logprob is None else logprob
