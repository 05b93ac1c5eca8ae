"""``exact_match``: 1 if the response gives the reference answer, else 0. A rule, no model."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import ClassVar, Literal

from attrs import field, frozen, validators

from rolecall.api import ROLECALL_API, RewardAdapter, Sample, ScoringClient, hookimpl

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w)")
"""A number as people write it: sign, thousands separators, decimals; never a part of a word."""

Where = Literal["whole", "last_number", "anywhere"]


@frozen(kw_only=True)
class ExactMatchOptions:
    """``[rewards.<name>.options]`` of ``exact_match``.

    where: where the answer is looked for. ``whole``: the response is the answer and nothing else.
        ``last_number``: the response's last number is the answer; an answer that is no number is
        compared whole. ``anywhere``: the response contains the answer, as whole words or as a
        number.
    ignore_case: whether ``Paris`` and ``paris`` are the same.
    """

    where: Where = field(default="whole", validator=validators.in_(("whole", "last_number", "anywhere")))
    ignore_case: bool = True


class ExactMatch:
    """Compares with ``prompt.answer``. Numbers are compared by value: 1,000 is 1000.0."""

    name: ClassVar[str] = "exact_match"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[ExactMatchOptions]] = ExactMatchOptions
    supports_deferred: ClassVar[bool] = True
    role: ClassVar[str | None] = None
    reads: ClassVar[frozenset[str]] = frozenset({"response", "prompt.answer"})

    def __init__(self, options: ExactMatchOptions) -> None:
        self._options = options

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        """Return 1.0 or 0.0.

        Raises:
            ValueError: the prompt has no reference answer, so there is nothing to compare with.
        """
        del client
        answer = sample.prompt.answer
        if answer is None or not answer.strip():
            raise ValueError(f'prompt "{sample.prompt.prompt_id}" has no reference answer')
        return float(self.matches(sample.response, answer))

    def matches(self, response: str, answer: str) -> bool:
        """Return whether the response gives the answer."""
        number = _as_number(answer)
        if self._options.where == "whole" or (self._options.where == "last_number" and number is None):
            return self._equal(response, answer)
        if number is None:
            return f" {self._plain(answer)} " in f" {self._plain(response)} "
        found = [_value(text) for text in _NUMBER.findall(response)]
        return number in (found[-1:] if self._options.where == "last_number" else found)

    def _equal(self, response: str, answer: str) -> bool:
        number = _as_number(answer)
        if number is not None:
            return _as_number(response) == number
        return self._plain(response) == self._plain(answer)

    def _plain(self, text: str) -> str:
        """Words only, one blank between them."""
        words = re.findall(r"\w+", text)
        return " ".join(words).casefold() if self._options.ignore_case else " ".join(words)


def _as_number(text: str) -> Decimal | None:
    """Return the number that the whole text is; a full stop at its end is none of it."""
    stripped = text.strip().removesuffix(".")
    return _value(stripped) if _NUMBER.fullmatch(stripped) else None


def _value(text: str) -> Decimal:
    try:
        return Decimal(text.replace(",", ""))
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is no number") from error


@hookimpl
def rolecall_reward_adapter() -> type[RewardAdapter]:
    return ExactMatch
