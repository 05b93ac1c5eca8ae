"""A role's engines as adapters and stages see them, without any engine: a scripted ``ScoringClient``.

Answers as an engine that speaks SGLang's protocol does; the same question always gets the same answer,
whenever it is asked. It can be told to fail or to keep quiet, and remembers what it was asked and how much
of that at once. For one event loop.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any

from rolecall.testing.scripted_answers import Weights, Work, native

_RESPONSE_TOKENS = 3
_SURE = 0.9
"""How likely the judge's verdict is to it, where the texts of likely tokens are asked for."""


def _never(number: int) -> None:
    del number


def _one(number: int) -> int:
    del number
    return 1


class ScriptedClient:
    """Answers ``generate`` and ``chat``; a question's text chooses among ``verdicts``.

    Attributes:
        requests: every payload or list of messages, in the order of the calls.
        under_way, most_at_once: calls that are being answered, now and at the most.
    """

    def __init__(
        self,
        *,
        verdicts: Sequence[str] = ("1", "0"),
        fails: Callable[[int], Exception | None] = _never,
        turns: Callable[[int], int] = _one,
        stuck: bool = False,
    ) -> None:
        """``fails`` and ``turns`` are given the number of a call, from 0.

        verdicts: what a judge may say.
        fails: the error that the call raises, None for an answer.
        turns: how often the event loop goes round before the answer comes.
        stuck: no call is ever answered.
        """
        self._verdicts = tuple(verdicts)
        self._fails = fails
        self.turns = turns
        self._stuck = stuck
        self._asked = asyncio.Event()
        self.requests: list[Any] = []
        self.under_way = 0
        self.most_at_once = 0

    async def generate(self, payload: Mapping[str, Any], **selectors: Any) -> dict[str, Any]:
        del selectors
        question = dict(payload)
        async with self._call(question):
            if "messages" in question:  # the judge protocol
                return {"response": self._verdict(question["messages"])}
            return self._native(question)

    async def chat(self, messages: list[dict[str, Any]], **selectors: Any) -> str:
        del selectors
        async with self._call(messages):
            return self._verdict(messages)

    async def until_asked(self) -> None:
        """Return when a first call has come."""
        await self._asked.wait()

    @asynccontextmanager
    async def _call(self, question: Any) -> AsyncGenerator[None]:
        number = len(self.requests)
        self.requests.append(question)
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        self._asked.set()
        try:
            if self._stuck:
                await asyncio.Event().wait()
            for _ in range(self.turns(number)):
                await asyncio.sleep(0)
            if (error := self._fails(number)) is not None:
                raise error.with_traceback(None)  # the same one may be raised by many calls
            yield
        finally:
            self.under_way -= 1

    def _verdict(self, question: Any) -> str:
        digest = blake2b(json.dumps(question, sort_keys=True).encode(), digest_size=8).digest()
        return self._verdicts[int.from_bytes(digest) % len(self._verdicts)]

    def _native(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        work = Work(payload={"rid": "", **payload}, count=_RESPONSE_TOKENS, weights=Weights())
        answer = native(work, work.ids)
        if not work.ids:
            return answer
        verdict = self._verdict(work.prompt)
        if payload.get("return_text_in_logprobs") and payload.get("top_logprobs_num"):
            first = [[math.log(_SURE), work.ids[0], verdict], [math.log(1 - _SURE), work.ids[0] + 1, "\n"]]
            tops = [first, *answer["meta_info"]["output_top_logprobs"][1:]]
            answer["meta_info"]["output_top_logprobs"] = tops
        return {**answer, "text": verdict}
