"""``format_reward``: pays when the response matches a regular expression.

A rule: it asks no model, so it can score while every role sleeps.
"""

from __future__ import annotations

import re
from typing import ClassVar

from attrs import field, frozen

from rolecall.api import RewardAdapter, Sample, ScoringClient, hookimpl

from .checks import is_finite, is_regular_expression


@frozen(kw_only=True)
class FormatRewardOptions:
    """``[rewards.<name>.options]``.

    pattern: regular expression (Python's ``re``), searched anywhere in the response; write
        ``(?s)^...$`` to hold the whole response to it.
    reward: what a response that matches gets.
    penalty: what any other response gets.
    """

    pattern: str = field(validator=is_regular_expression)
    reward: float = field(default=1.0, validator=is_finite)
    penalty: float = field(default=0.0, validator=is_finite)


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


@hookimpl
def rolecall_reward_adapter() -> type[RewardAdapter]:
    """Return the adapter's class."""
    return FormatReward
