"""Reward policies: what happens when an adapter fails. Never a silent zero."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import evolve

from rolecall.api import NamedReward, StageContext, reward_field, reward_stage, score_with_policy
from rolecall.batches.rewards import combine_rewards
from rolecall.batches.sample import Prompt, Sample
from rolecall.errors import ModelUnavailableError, ScoringError, UpstreamError
from rolecall.testing.virtual_time import run_virtual

SAMPLE = Sample(
    sample_id="p/0",
    group_id="p",
    prompt=Prompt(prompt_id="p", text="?"),
    prompt_ids=(1,),
    response="yes",
    response_ids=(2, 3),
    rollout_log_probs=(-0.1, -0.2),
    finish_reason="stop",
    weight_version=None,
)


class Scripted:
    """An adapter that goes through a list of outcomes: a value, an error to raise, or a delay."""

    name = "scripted"
    role: str | None = None
    reads = frozenset({"response"})

    def __init__(self, outcomes: Sequence[Any], clients: list[Any] | None = None) -> None:
        self.outcomes = list(outcomes)
        self.clients = clients
        self.calls = 0

    async def score(self, sample: Sample, client: Any) -> Any:
        outcome = self.outcomes[min(self.calls, len(self.outcomes) - 1)]
        self.calls += 1
        if self.clients is not None:
            self.clients.append(client)
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is asyncio.sleep:
            await asyncio.sleep(1000)
        return outcome


def reward(adapter: Any, on_error: str = "fail_batch", *, name: str = "r", retries: int = 2) -> NamedReward:
    return NamedReward(name=name, adapter=adapter, on_error=on_error, retries=retries, timeout_s=5.0)


def score(adapter: Any, on_error: str, retries: int = 2) -> float | None:
    return run_virtual(score_with_policy(SAMPLE, reward(adapter, on_error, retries=retries), None))


FAILURES = [
    pytest.param(UpstreamError("the judge died"), "the judge died", id="raises"),
    pytest.param(ValueError("no verdict"), "ValueError: no verdict", id="raises-foreign"),
    pytest.param(TimeoutError("inner"), "TimeoutError: inner", id="own-timeout"),
    pytest.param(asyncio.sleep, "no reward within 5 s", id="hangs"),
    pytest.param(float("nan"), "returned nan, not a finite number", id="nan"),
    pytest.param(float("inf"), "returned inf, not a finite number", id="inf"),
    pytest.param(None, "returned None, not a finite number", id="none"),
    pytest.param(True, "returned True, not a finite number", id="bool"),
    pytest.param("1", "returned '1', not a finite number", id="text"),
]


@pytest.mark.parametrize(("outcome", "message"), FAILURES)
def test_fail_batch_raises_with_reward_sample_and_reason(outcome: Any, message: str) -> None:
    with pytest.raises(ScoringError) as failed:
        score(Scripted([outcome]), "fail_batch")
    assert str(failed.value) == f'reward "r" (scripted) of sample "p/0": {message}' or message in str(
        failed.value
    )
    assert str(failed.value).startswith('reward "r" (scripted) of sample "p/0": ')
    assert failed.value.__cause__ is not None


@pytest.mark.parametrize(("outcome", "message"), FAILURES)
def test_drop_sample_returns_none_and_says_so(
    outcome: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = Scripted([outcome])
    assert score(adapter, "drop_sample") is None
    assert adapter.calls == 1
    assert any("dropped" in record.message and message in record.message for record in caplog.records)


@pytest.mark.parametrize(("outcome", "message"), FAILURES)
def test_retry_tries_again_and_then_fails_the_batch(outcome: Any, message: str) -> None:
    adapter = Scripted([outcome])
    with pytest.raises(ScoringError, match="after 3 tries") as failed:
        score(adapter, "retry", retries=2)
    assert adapter.calls == 3
    assert message in str(failed.value)


def test_retry_succeeds_on_a_later_try() -> None:
    adapter = Scripted([UpstreamError("busy"), asyncio.sleep, 0.25])
    assert score(adapter, "retry") == 0.25
    assert adapter.calls == 3


def test_only_the_retry_policy_repeats() -> None:
    adapter = Scripted([UpstreamError("busy"), 1.0])
    with pytest.raises(ScoringError):
        score(adapter, "fail_batch")
    assert adapter.calls == 1


def test_a_retry_waits_as_long_as_the_role_asks() -> None:
    async def timed() -> float:
        adapter = Scripted([ModelUnavailableError("asleep", retry_after_s=3.0), 1.0])
        await score_with_policy(SAMPLE, reward(adapter, "retry"), None)
        return asyncio.get_running_loop().time()

    assert run_virtual(timed()) == 3.0


def test_cancelling_is_no_failure_of_the_adapter() -> None:
    async def cancelled() -> bool:
        adapter = Scripted([asyncio.sleep])
        task = asyncio.create_task(score_with_policy(SAMPLE, reward(adapter, "drop_sample"), None))
        await asyncio.sleep(1)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    assert run_virtual(cancelled())


def run_stage(rewards: Sequence[NamedReward], progress: Callable[[int, int], None] | None = None) -> Any:
    stage = reward_stage(name="judge", role="judge", rewards=rewards)
    samples = [SAMPLE, evolve(SAMPLE, sample_id="p/1")]
    context = StageContext(client="client", max_concurrency=1, progress=progress or (lambda *_: None))  # type: ignore[arg-type]
    return run_virtual(stage.run(samples, context))


def test_a_stage_writes_one_field_a_reward_and_hands_the_client_on() -> None:
    clients: list[Any] = []
    done: list[tuple[int, int]] = []
    rewards = [reward(Scripted([1, 2], clients), name="a"), reward(Scripted([0.5]), name="b")]
    assert run_stage(rewards, lambda *made: done.append(made)) == {
        "p/0": {"reward:a": 1.0, "reward:b": 0.5},
        "p/1": {"reward:a": 2.0, "reward:b": 0.5},
    }
    assert clients == ["client", "client"]
    assert done == [(1, 2), (1, 2)]


def test_a_stage_declares_what_its_adapters_read() -> None:
    stage = reward_stage(name="judge", role="judge", rewards=[reward(Scripted([1]), name="a")])
    assert (stage.name, stage.role) == ("judge", "judge")
    assert stage.reads == {"response"}
    assert stage.writes == {reward_field("a")}


def test_a_dropped_sample_leaves_with_all_its_rewards() -> None:
    rewards = [
        reward(Scripted([1.0]), name="a"),
        reward(Scripted([ValueError("?"), 2.0]), "drop_sample", name="b"),
    ]
    assert run_stage(rewards) == {"p/0": None, "p/1": {"reward:a": 1.0, "reward:b": 2.0}}


@pytest.mark.parametrize(
    ("names", "combined"),
    [
        ([], {"reward:a": 1.0, "reward:b": 2.0, "x": 3}),
        (["a"], {"reward": 1.0, "reward:b": 2.0, "x": 3}),
        (["b", "a"], {"reward": {"b": 2.0, "a": 1.0}, "x": 3}),
    ],
)
def test_one_reward_is_a_number_and_several_are_a_dict(names: list[str], combined: dict[str, Any]) -> None:
    assert combine_rewards({"reward:a": 1.0, "reward:b": 2.0, "x": 3}, names) == combined
