"""GenRMClient: which failures are asked again, how often and when; never more at once than allowed."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from typing import Any

import pytest

from rolecall.api import (
    DeadlineError,
    ModelUnavailableError,
    PayloadError,
    RequestError,
    RoleName,
    UpstreamError,
    UpstreamStatusError,
)
from rolecall.client.inference_client import InferenceClient
from rolecall.client.retry_after import retry_after_s
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import plane
from rolecall.testing.scripted_engine import Answer
from rolecall_roles.genrm.client import GenRMClient
from rolecall_routing.round_robin import RoundRobin

MESSAGES = [{"role": "user", "content": "Is it right?"}]


class Judge:
    """Answers what the script says, then "9"; remembers the calls."""

    def __init__(self, *script: RequestError) -> None:
        self.script = list(script)
        self.calls: list[dict[str, Any]] = []
        self.under_way = self.most = 0
        self.turn = asyncio.Event()
        self.turn.set()

    async def chat(self, messages: list[dict[str, Any]], **arguments: Any) -> str:
        self.calls.append(arguments)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.turn.wait()
            await asyncio.sleep(0)
        finally:
            self.under_way -= 1
        if self.script:
            raise self.script.pop(0)
        return "9"

    async def generate(self, payload: Any, **_: Any) -> dict[str, Any]:
        raise AssertionError("a judge is asked with messages")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it would have waited."""
    found: list[float] = []
    real = asyncio.sleep

    async def sleep(delay: float) -> None:
        if delay:
            found.append(round(delay, 6))
        await real(0)

    monkeypatch.setattr("rolecall_roles.genrm.client.asyncio.sleep", sleep)
    return found


def status(code: int, after_s: float | None = None) -> UpstreamStatusError:
    return UpstreamStatusError(code, b"", str(code), retry_after_s=after_s)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (UpstreamError("reset"), True),
        (status(500), True),
        (status(503), True),
        (status(504), True),
        (status(429), True),
        (ModelUnavailableError("asleep", retry_after_s=0.0), True),
        (status(400), False),
        (status(404), False),
        (PayloadError("messages: no", field="messages"), False),
        (DeadlineError("late"), False),
    ],
)
async def test_what_is_asked_again(error: RequestError, again: bool, pauses: list[float]) -> None:
    judge = Judge(error)
    client = GenRMClient(judge)
    if again:
        assert await client.judge(MESSAGES) == "9"
        assert len(judge.calls) == 2
    else:
        with pytest.raises(type(error)):
            await client.judge(MESSAGES)
        assert (len(judge.calls), pauses) == (1, [])


async def test_three_times_again_and_then_the_last_error(pauses: list[float]) -> None:
    judge = Judge(*(UpstreamError(f"reset {number}") for number in range(9)))
    with pytest.raises(UpstreamError, match="reset 3"):
        await GenRMClient(judge, spread=lambda: 0.0).judge(MESSAGES)
    assert (len(judge.calls), pauses) == (4, [0.2, 0.4, 0.8])


async def test_it_does_not_come_back_before_it_was_told_to(pauses: list[float]) -> None:
    judge = Judge(status(503, 7.0), status(503, 0.0), ModelUnavailableError("asleep", retry_after_s=3.0))
    assert await GenRMClient(judge, spread=lambda: 1.0).judge(MESSAGES) == "9"
    assert pauses == [7.0, 0.2, 3.0], "the second says nothing that is longer than the back-off"


async def test_a_wait_that_would_outlast_the_deadline_is_not_begun(pauses: list[float]) -> None:
    judge = Judge(status(503, 60.0))
    with pytest.raises(UpstreamStatusError):
        await GenRMClient(judge).judge(MESSAGES, timeout_s=5.0)
    assert pauses == []
    assert judge.calls[0]["timeout_s"] == pytest.approx(5.0, abs=0.5)


async def test_the_template_s_settings_go_along_and_a_caller_s_own_win() -> None:
    judge = Judge()
    client = GenRMClient(judge, chat_template_kwargs={"enable_thinking": False})
    await client.judge(MESSAGES, sampling_params={"temperature": 0}, route_key="math", affinity_key="g")
    assert judge.calls[0]["sampling"] == {
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert (judge.calls[0]["route_key"], judge.calls[0]["affinity_key"]) == ("math", "g")


async def test_no_more_are_under_way_than_allowed_and_who_waits_can_be_seen() -> None:
    judge = Judge()
    judge.turn.clear()
    client = GenRMClient(judge, max_concurrency=2)
    asking = [asyncio.create_task(client.judge(MESSAGES)) for _ in range(7)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert client.queued == 5
    asking[6].cancel()
    with pytest.raises(DeadlineError, match="no turn came"):
        await client.judge(MESSAGES, timeout_s=0.01)
    judge.turn.set()
    assert await asyncio.gather(*asking[:6]) == ["9"] * 6
    assert (judge.most, client.queued, judge.under_way) == (2, 0, 0)


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"retries": -1}, {"max_concurrency": 0}):
        with pytest.raises(ValueError, match="retries must be 0 or more"):
            GenRMClient(Judge(), **wrong)


async def test_over_a_real_gateway_a_judge_that_comes_back_answers() -> None:
    async with (
        plane(PlainRole(name=RoleName("genrm"), policy=RoundRobin), engines=1) as running,
        InferenceClient(running.url, policy=RoundRobin) as direct,
    ):
        (engine,) = running.engines
        engine.behaviour.answers["/v1/chat/completions"] = Answer(status=503, body=b'{"error": "busy"}')

        class Recovers:
            """Lets the judge come back once it has refused."""

            asked = 0

            async def chat(self, messages: list[dict[str, Any]], **arguments: Any) -> str:
                self.asked += 1
                try:
                    return await direct.chat(messages, **arguments)
                finally:
                    engine.behaviour.answers.clear()

            async def generate(self, payload: Any, **arguments: Any) -> dict[str, Any]:
                raise AssertionError

        judges = Recovers()
        assert await GenRMClient(judges).judge(MESSAGES)
        assert (judges.asked, len(engine.received)) == (2, 1)


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after_s(None) is None
    assert retry_after_s(b"soon") is None
    assert retry_after_s(b"-1") is None
    assert retry_after_s(b" 3 ") == 3.0
    assert retry_after_s(b"999999") == 3600.0
    later = retry_after_s(formatdate(time.time() + 30, usegmt=True).encode())
    assert later is not None
    assert 27 < later <= 30
    assert retry_after_s(formatdate(time.time() - 30, usegmt=True).encode()) == 0.0
