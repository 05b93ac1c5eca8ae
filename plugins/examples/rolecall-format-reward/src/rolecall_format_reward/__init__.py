"""Reward adapter ``format_reward``: pays when the response matches a regular expression.

A rule: it asks no model, so it can score while every role sleeps. The entry point names this
module; rolecall imports it only when a job file selects ``format_reward``.
"""

from __future__ import annotations

from rolecall.api import RewardAdapter, hookimpl

from .adapter import FormatReward, FormatRewardOptions

__all__ = ["FormatReward", "FormatRewardOptions", "rolecall_reward_adapter"]


@hookimpl
def rolecall_reward_adapter() -> type[RewardAdapter]:
    """Return the adapter's class."""
    return FormatReward
