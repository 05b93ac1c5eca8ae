"""Reward adapters that break a promise, and two that break none."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, ClassVar

from attrs import frozen

from rolecall.api import ROLECALL_API, Sample, ScoringClient
from rolecall.testing import RewardAdapterContract


@frozen(kw_only=True)
class Options:
    scale: float = 1.0


class Judge:
    """Asks its role for a number."""

    name: ClassVar[str] = "sound_judge"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[Options]] = Options
    supports_deferred: ClassVar[bool] = True
    role: ClassVar[str | None] = "critic"
    reads: ClassVar[frozenset[str]] = frozenset({"response", "prompt.answer"})

    def __init__(self, options: Options) -> None:
        self.scale = options.scale

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        return self.scale * float(await self.ask(sample, client))

    async def ask(self, sample: Sample, client: ScoringClient | None) -> str:
        assert client is not None
        question = f"{sample.prompt.answer} or {sample.response}?"
        return await client.chat([{"role": "user", "content": question}], affinity_key=sample.group_id)


class TestJudge(RewardAdapterContract):
    plugin = Judge
    options: ClassVar = {"scale": 2.0}
    fails: ClassVar = {}


class Rule:
    """Counts letters."""

    name: ClassVar[str] = "sound_rule"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[Options]] = Options
    supports_deferred: ClassVar[bool] = True
    role: ClassVar[str | None] = None
    reads: ClassVar[frozenset[str]] = frozenset({"response"})

    def __init__(self, options: Options) -> None:
        self.scale = options.scale

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        assert client is None
        return self.scale * len(sample.response)


class TestRule(RewardAdapterContract):
    plugin = Rule
    fails: ClassVar = {}


ERRORS = dict.fromkeys(
    ("test_an_error_of_the_judge_is_never_a_reward",), "came from the judge, and .* got the reward 0.0"
)
ANSWERS = dict.fromkeys(
    ("test_an_answer_that_is_no_verdict_is_never_a_reward",), "the judge said .*, and .* got the reward 0.0"
)
POLICY = {"test_the_reward_s_error_policy_decides": "DID NOT RAISE|assert 0.0 is None"}


class Forgiving(Judge):
    """Whatever goes wrong is worth nothing."""

    name = "forgiving"

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        try:
            return await super().score(sample, client)
        except Exception:
            return 0.0


class TestForgiving(RewardAdapterContract):
    plugin = Forgiving
    fails: ClassVar = {**ERRORS, **ANSWERS, **POLICY}


class Generous(Judge):
    """What is no number is zero."""

    name = "generous"

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        try:
            return await super().score(sample, client)
        except ValueError:
            return 0.0


class TestGenerous(RewardAdapterContract):
    plugin = Generous
    fails: ClassVar = ANSWERS


class Unstoppable(Judge):
    """A cancelled judge said nothing, it thinks."""

    name = "unstoppable"

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        try:
            return await super().score(sample, client)
        except asyncio.CancelledError:
            return 0.0


class TestUnstoppable(RewardAdapterContract):
    plugin = Unstoppable
    fails: ClassVar = {
        "test_a_score_that_is_cancelled_ends": "it was cancelled, and swallowed that: it returned 0.0",
        "test_a_judge_that_keeps_quiet_is_never_a_reward": "DID NOT RAISE",
    }


class Stubborn(Judge):
    """Its judge goes on when nobody wants to know any more."""

    name = "stubborn"

    async def ask(self, sample: Sample, client: ScoringClient | None) -> str:
        return await asyncio.shield(asyncio.ensure_future(super().ask(sample, client)))


class TestStubborn(RewardAdapterContract):
    plugin = Stubborn
    fails: ClassVar = {"test_a_score_that_is_cancelled_ends": "it left tasks behind"}


class StubbornRule(Rule):
    """Waits for what no one answers, and takes no end for an answer."""

    name = "stubborn_rule"

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        with suppress(asyncio.CancelledError):
            for _ in range(60):
                await asyncio.sleep(0)
        return 0.0


class TestStubbornRule(RewardAdapterContract):
    plugin = StubbornRule
    fails: ClassVar = {"test_a_score_that_is_cancelled_ends": "it was cancelled, and swallowed that"}


class Marking(Rule):
    """Leaves a note on what it has seen."""

    name = "marking"

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        sample.prompt.metadata["seen"] = True  # type: ignore[index]
        return await super().score(sample, client)


class TestMarking(RewardAdapterContract):
    plugin = Marking
    fails: ClassVar = {"test_the_sample_is_left_as_it_was": "the adapter changed prompt-0/0"}


class Comparing(Rule):
    """The reward depends on what it scored before."""

    name = "comparing"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.best = 0

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        self.best = max(self.best, len(sample.response))
        return len(sample.response) - self.best


class TestComparing(RewardAdapterContract):
    plugin = Comparing
    fails: ClassVar = {
        "test_the_same_sample_gets_the_same_reward": "the second time it is another",
        "test_scores_at_the_same_time_do_not_mix": "scored at the same time they get others",
    }


class Curious(Rule):
    """Reads what it does not declare."""

    name = "curious"

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        return await super().score(sample, client) + sample.prompt.metadata["level"]


class TestCurious(RewardAdapterContract):
    plugin = Curious
    fails: ClassVar = {
        "test_it_reads_what_it_declares": "it read prompt.metadata.level, which its reads do not name",
    }


class Misspelt(Rule):
    """Declares a field that no prompt has."""

    name = "misspelt"
    reads: ClassVar[frozenset[str]] = frozenset({"response", "prompt.anwser"})


class TestMisspelt(RewardAdapterContract):
    plugin = Misspelt
    fails: ClassVar = {"test_it_reads_what_it_declares": "prompts have no prompt.anwser"}


class Dividing(Rule):
    """An empty response is infinitely bad."""

    name = "dividing"

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        return 1 / len(sample.response) if sample.response else -float("inf")


class TestDividing(RewardAdapterContract):
    plugin = Dividing
    fails: ClassVar = {
        "test_every_sample_gets_a_finite_number": "prompt-0/3 got -inf",
        "test_an_odd_sample_gets_a_finite_number_or_an_error": "it got -inf",
        "test_a_deferred_adapter_scores_what_generation_left": "the adapter returned -inf",
    }


class Hopeful(Rule):
    """Takes it that there is a reference answer."""

    name = "hopeful"
    reads: ClassVar[frozenset[str]] = frozenset({"response", "prompt.answer"})

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        return float("nan") if sample.prompt.answer is None else await super().score(sample, client)


class TestHopeful(RewardAdapterContract):
    plugin = Hopeful
    fails: ClassVar = {"test_an_odd_sample_gets_a_finite_number_or_an_error": "it got nan"}


class Absentminded(Judge):
    """Keeps the sample that it is at where the next one overwrites it."""

    name = "absentminded"

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        self.sample = sample
        verdict = await self.ask(sample, client)
        return float(verdict) + len(self.sample.response)


class TestAbsentminded(RewardAdapterContract):
    plugin = Absentminded
    fails: ClassVar = {
        "test_scores_at_the_same_time_do_not_mix": "scored at the same time they get others",
        "test_a_deferred_adapter_scores_what_generation_left": "in a stage after generation they get others",
    }


class Fresh(Rule):
    """Scores only what no stage has touched, and still says that it can be deferred."""

    name = "fresh"

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        if "another_stage" in sample.scores:
            raise RuntimeError("generation has ended")
        return await super().score(sample, client)

    reads: ClassVar[frozenset[str]] = frozenset({"response", "another_stage"})


class TestFresh(RewardAdapterContract):
    plugin = Fresh
    fails: ClassVar = {"test_a_deferred_adapter_scores_what_generation_left": "generation has ended"}


class Idle(Judge):
    """Keeps a role awake that it never asks."""

    name = "idle"

    async def ask(self, sample: Sample, client: ScoringClient | None) -> str:
        return str(len(f"{sample.prompt.answer} {sample.response}"))


class TestIdle(RewardAdapterContract):
    plugin = Idle
    fails: ClassVar = dict.fromkeys(
        (
            "test_it_asks_its_role_and_nobody_without_one",
            *ERRORS,
            *ANSWERS,
            *POLICY,
            "test_a_score_that_is_cancelled_ends",
            "test_a_judge_that_keeps_quiet_is_never_a_reward",
        ),
        'it keeps the role "critic" awake and never asks it',
    )


class Patient(Judge):
    """Has a timeout of its own, and a number for it."""

    name = "patient"

    async def ask(self, sample: Sample, client: ScoringClient | None) -> str:
        waiting = asyncio.ensure_future(super().ask(sample, client))
        try:
            for _ in range(60):
                await asyncio.sleep(0)
            return waiting.result() if waiting.done() else "0"
        finally:
            waiting.cancel()
            await asyncio.wait({waiting})


class TestPatient(RewardAdapterContract):
    plugin = Patient
    fails: ClassVar = {"test_a_judge_that_keeps_quiet_is_never_a_reward": "DID NOT RAISE"}


class Untyped(Judge):
    """Asks with something that can not be sent."""

    name = "untyped"

    async def ask(self, sample: Sample, client: ScoringClient | None) -> str:
        assert client is not None
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": (str(sample.prompt.answer), sample.response)}
        ]
        return await client.chat(messages)


class TestUntyped(RewardAdapterContract):
    plugin = Untyped
    fails: ClassVar = {"test_it_asks_its_role_and_nobody_without_one": "this can't be sent as JSON"}
