"""The first-party reward adapters keep the contract of their kind."""

from __future__ import annotations

from typing import ClassVar

from rolecall.testing import RewardAdapterContract
from rolecall_plugins.rewards.exact_match import ExactMatch
from rolecall_plugins.rewards.genrm_judge import GenRMJudge


class TestExactMatch(RewardAdapterContract):
    plugin = ExactMatch


class TestExactMatchAnywhere(RewardAdapterContract):
    plugin = ExactMatch
    options: ClassVar = {"where": "anywhere", "ignore_case": False}


class TestGenRMJudge(RewardAdapterContract):
    plugin = GenRMJudge
    verdicts = ("yes", "no")


class TestGenRMJudgeThatGradesInAChat(RewardAdapterContract):
    plugin = GenRMJudge
    options: ClassVar = {"ask": "chat", "system": "Grade.", "verdicts": {}, "high": 10.0}
    verdicts = ("7", "Grade: 3", "0.5", "10")
