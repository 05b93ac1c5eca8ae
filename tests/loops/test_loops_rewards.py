"""A job's reward for loops with samples of their own: what is found, and that an error is never a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rolecall.api import JobError, Prompt, ScoringError
from rolecall_loops.rewards import answer_of, job_reward, text_of

PROMPT = Prompt(prompt_id="p", text="2 + 2?", answer="4")


async def test_the_reward_is_the_job_s(served: Any, worth: Callable[[str], float]) -> None:
    value = await job_reward(served.job, served.url, "judge").score(PROMPT, "4")
    assert value == pytest.approx(worth("2 + 2?|4|4"))
    assert await job_reward(served.job, served.url, "exact").score(PROMPT, "4") == 1.0


async def test_what_the_job_would_drop_is_an_error_here(served: Any) -> None:
    served.judge.engines[0].behaviour.status = 500
    with pytest.raises(ScoringError, match="500"):
        await job_reward(served.job, served.url, "judge").score(PROMPT, "4")


async def test_a_judge_that_can_t_be_found_is_an_error(served: Any) -> None:
    with pytest.raises(JobError, match="tell the URL of its gateways"):
        await job_reward(served.job, None, "judge").score(PROMPT, "4")
    assert await job_reward(served.job, None, "exact").score(PROMPT, "4") == 1.0, "a rule asks nobody"


def test_a_reward_has_to_be_told_apart(served: Any) -> None:
    with pytest.raises(JobError, match=r"name a reward of .*: judge, exact"):
        job_reward(served.job, served.url, None)
    with pytest.raises(JobError, match='no reward "juge"'):
        job_reward(served.job, served.url, "juge")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("as it is", "as it is"),
        ([{"role": "user", "content": "2 + 2?"}], "2 + 2?"),
        (
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}],
            "system: Be brief.\n\nuser: 2 + 2?",
        ),
    ],
)
def test_messages_are_read_as_text(said: Any, text: str) -> None:
    assert text_of(said) == text


@pytest.mark.parametrize("said", [None, [], [{"role": "user"}], ["x"], [{"content": [{"type": "image"}]}]])
def test_what_is_no_text_is_refused(said: Any) -> None:
    with pytest.raises(ScoringError, match="must be text"):
        text_of(said)


def test_a_number_is_written_out_as_an_answer() -> None:
    assert [answer_of(given) for given in ("4", 4, 4.5, None)] == ["4", "4", "4.5", None]
    with pytest.raises(ScoringError, match="must be text or a number"):
        answer_of(["4"])
