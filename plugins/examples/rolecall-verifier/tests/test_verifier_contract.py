"""Role and reward adapter keep the contracts of their kinds."""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import evolve
from rolecall_verifier.reward import Verified
from rolecall_verifier.role import Verifier

from rolecall.api import Sample
from rolecall.testing import RewardAdapterContract, RoleContract

RESPONSES = (
    "```python\ndef f(): return 1\n```",
    "```\ndef f(): return 2\n```",
    "I do not know.",
    "```py\n1 / 0\n```",
)


class TestVerifier(RoleContract):
    plugin = Verifier
    options: ClassVar = {"tests": "metadata.tests", "concurrency": 2}

    def payloads(self) -> list[dict[str, Any]]:
        return []

    def bad_payloads(self) -> list[tuple[str, dict[str, Any]]]:
        return [("text", {}), ("text", {"text": "x"}), ("input_ids", {"input_ids": [1]})]

    def samples(self) -> list[Sample]:
        return [
            evolve(
                sample,
                response=RESPONSES[number % len(RESPONSES)],
                prompt=evolve(sample.prompt, metadata={"tests": ["assert f() == 1"]}),
            )
            for number, sample in enumerate(super().samples())
        ]


class TestVerified(RewardAdapterContract):
    plugin = Verified
    options: ClassVar = {"partial": True}

    def samples(self) -> list[Sample]:
        return [
            evolve(sample, scores={"verifier_share": 1 / (1 + number)})
            for number, sample in enumerate(super().samples())
        ]
