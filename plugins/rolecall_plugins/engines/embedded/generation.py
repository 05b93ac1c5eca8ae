"""One request on its way: tokens so far, the text they make, and why it ended.

Pure but for an ``asyncio.Event`` that tells the answering side of a change. Its stage is changed
by the scheduler only, through ``enter``; everything happens on the event loop except reading
``stop``, which the decoding thread polls.
"""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from typing import Any

from attrs import frozen

from .forward import Scores
from .llama_runtime import Token
from .requests import GenerateRequest
from .tokenizer import ModelTokenizer

_REPLACEMENT = "\ufffd"


class Stage(StrEnum):
    """Where a request is. DOOR is outside: the engine was paused when it came."""

    DOOR = "door"
    SCORING = "scoring"
    QUEUED = "queued"
    DECODING = "decoding"
    HELD = "held"
    DONE = "done"


_STAGES: dict[Stage, frozenset[Stage]] = {
    Stage.DOOR: frozenset({Stage.SCORING, Stage.QUEUED, Stage.DONE}),
    Stage.SCORING: frozenset({Stage.QUEUED, Stage.DONE}),
    Stage.QUEUED: frozenset({Stage.DECODING, Stage.DONE}),
    Stage.DECODING: frozenset({Stage.HELD, Stage.QUEUED, Stage.SCORING, Stage.DONE}),
    Stage.HELD: frozenset({Stage.QUEUED, Stage.DONE}),
    Stage.DONE: frozenset(),
}


@frozen(kw_only=True)
class Finish:
    """Why a generation ended, in SGLang's words: ``reason`` is stop, length or abort."""

    reason: str
    detail: int | str

    def to_json(self) -> dict[str, Any]:
        """SGLang's ``finish_reason`` object."""
        name = {"stop": "matched", "length": "length", "abort": "message"}[self.reason]
        return {"type": self.reason, name: self.detail}


class Generation:
    """State of one request. ``complete`` means the answer is final, though a thread may still end."""

    def __init__(self, request: GenerateRequest, rid: str, tokenizer: ModelTokenizer, version: str) -> None:
        self.request = request
        self.rid = rid
        self.weight_version = version
        self.stage = Stage.DOOR
        self.tokens: list[Token] = []
        self.ids: list[int] = []
        self.text = ""
        self.cached_tokens = 0
        self.finish: Finish | None = None
        self.fault: Exception | None = None
        self.complete = False
        self.prompt_scores: Scores | None = None
        self.output_scores: Scores | None = None
        self.stop = False
        """Asks the decoding thread to end at its next look."""
        self.changed = asyncio.Event()
        self.started_s = time.monotonic()
        self.finished_s: float | None = None
        self._tokenizer = tokenizer

    @property
    def sequence(self) -> tuple[int, ...]:
        """Prompt and output so far."""
        return (*self.request.prompt, *self.ids)

    @property
    def tokens_left(self) -> int:
        """Tokens it may still generate."""
        return self.request.sampling.max_new_tokens - len(self.ids)

    def enter(self, stage: Stage) -> None:
        """Change the stage; a change that is not in the table is a defect and raises."""
        if stage not in _STAGES[self.stage]:
            raise RuntimeError(f"request {self.rid}: {self.stage} → {stage} is not allowed")
        self.stage = stage

    def accept(self, token: Token) -> None:
        """Take one generated token; ignored once the generation has ended."""
        if self.finish is not None:
            return
        sampling = self.request.sampling
        self.tokens.append(token)
        self.ids.append(token.id)
        text = self._decode(self.ids)
        ends = (
            sampling.stop_token_ids
            if sampling.ignore_eos
            else self._tokenizer.end_ids | sampling.stop_token_ids
        )
        if token.id in ends:
            self._end_at_token(token.id, text)
        else:
            found = _first_stop(text, sampling.stop)
            if found is not None:
                position, stop = found
                self.text = text if sampling.no_stop_trim else text[:position]
                self._end(Finish(reason="stop", detail=stop))
            elif self.tokens_left <= 0:
                self.text = text
                self._end(Finish(reason="length", detail=len(self.ids)))
            else:
                self.text = _settled(text, sampling.stop)
        self.changed.set()

    def end_without_tokens(self) -> None:
        """End a request for zero tokens."""
        self._end(Finish(reason="length", detail=0))

    def abort(self, message: str) -> None:
        """End now; what was generated so far stays in the answer. Repeats do nothing."""
        if self.complete:
            return
        self.finish = Finish(reason="abort", detail=message)
        self.stop = True
        self.settle()

    def fail(self, fault: Exception) -> None:
        """End with an error instead of an answer."""
        if not self.complete:
            self.fault = fault
            self.settle()

    def settle(self) -> None:
        """The answer is final: wake whoever waits for it."""
        self.complete = True
        self.finished_s = time.monotonic()
        self.changed.set()

    def token_text(self, number: int) -> str:
        """Text of a single token."""
        return self._tokenizer.decode([number], skip_special_tokens=False)

    def _end_at_token(self, number: int, text: str) -> None:
        sampling = self.request.sampling
        self.text = text if sampling.no_stop_trim else self._decode(self.ids[:-1])
        self._end(Finish(reason="stop", detail=number))

    def _end(self, finish: Finish) -> None:
        self.finish = finish
        self.stop = True

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self.request.sampling.skip_special_tokens)


def _first_stop(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    return min(found, key=lambda pair: pair[0]) if found else None


def _settled(text: str, stops: tuple[str, ...]) -> str:
    """The part of unfinished text that further tokens can't change: no half character, no half stop."""
    text = text.rstrip(_REPLACEMENT)
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:size]):
                return text[:-size]
    return text
