"""The rule itself."""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

from attrs import Attribute, field, frozen

from rolecall.api import Sample, ScoringClient


def _is_regular_expression(_: Any, attribute: Attribute[str], value: str) -> None:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{attribute.name} is no regular expression: {error} in {value!r}") from error


def _is_finite(_: Any, attribute: Attribute[float], value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{attribute.name} is {value}, but a reward must be a finite number")


@frozen(kw_only=True)
class FormatRewardOptions:
    """``[rewards.<name>.options]``.

    pattern: regular expression (Python's ``re``), searched anywhere in the response; write
        ``(?s)^...$`` to hold the whole response to it.
    reward: what a response that matches gets.
    penalty: what any other response gets.
    """

    pattern: str = field(validator=_is_regular_expression)
    reward: float = field(default=1.0, validator=_is_finite)
    penalty: float = field(default=0.0, validator=_is_finite)


class FormatReward:
    """Scores one sample without looking at the reference answer."""

    name: ClassVar[str] = "format_reward"
    api_version: ClassVar[int] = 1
    options: ClassVar[type[FormatRewardOptions]] = FormatRewardOptions
    supports_deferred: ClassVar[bool] = True
    role: ClassVar[str | None] = None
    reads: ClassVar[frozenset[str]] = frozenset({"response"})

    def __init__(self, options: FormatRewardOptions) -> None:
        self._options = options
        self._pattern = re.compile(options.pattern)

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        """Return ``reward`` if the pattern is found in the response, else ``penalty``."""
        del client  # a rule asks nobody
        found = self._pattern.search(sample.response) is not None
        return self._options.reward if found else self._options.penalty
