"""All adapters keep the contract of their kind."""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve
from rolecall_rewards.blend import Blend
from rolecall_rewards.format_reward import FormatReward
from rolecall_rewards.self_consistency import SelfConsistency

from rolecall.api import Sample
from rolecall.testing import RewardAdapterContract


class TestFormatReward(RewardAdapterContract):
    plugin = FormatReward
    options: ClassVar = {"pattern": r"\d", "penalty": -0.5}


class TestBlend(RewardAdapterContract):
    plugin = Blend
    options: ClassVar = {"pattern": r"^\S", "judge_weight": 2.0}
    verdicts = ("yes", "no")


class TestSelfConsistency(RewardAdapterContract):
    plugin = SelfConsistency
    options: ClassVar = {"votes": 3}
    verdicts = ("It is 4.", "It is 5.", "I do not know.")
    garbage = ()  # every text is a vote

    def samples(self) -> list[Sample]:
        # The weights that the scripted engine answers with.
        return [evolve(sample, weight_version="default") for sample in super().samples()]
