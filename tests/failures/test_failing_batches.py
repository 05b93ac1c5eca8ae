"""Batches that fail: on a whole job in virtual time, see ``conftest``."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from rolecall.errors import BatchFailedError, JobError, LeaseError, ScoringError, SinkError, UpstreamError
from rolecall_plugins.sinks.jsonl import sink as jsonl

WRITER, JUDGE, TEACHER = "writer", "judge", "teacher"


def raising(error: Exception) -> Callable[[], Any]:
    def fault() -> Any:
        raise error

    return fault


def test_lifecycle_call_times_out(play: Any) -> None:
    """The lease is BLOCKED, with the reason; roles that come later are not activated."""

    async def scenario(job: Any) -> None:
        job.roles[JUDGE].lost.add("offload")
        called = job.roles[TEACHER].commands.copy()
        failed = await job.failure()
        assert "deactivate had no answer within 100 s" in str(failed)
        assert "stay fenced" in str(failed)
        assert (await job.leases()) == {WRITER: "SLEEPING", JUDGE: "BLOCKED", TEACHER: "SLEEPING"}
        assert job.roles[JUDGE].commands.count("offload") == 1, "the call is not repeated"
        assert job.roles[TEACHER].commands == called
        assert job.roles[WRITER].commands.count("onload") == 1, "no second turn for the student stage"
        await job.assert_nothing_published()

    play(scenario)


@pytest.mark.parametrize("stage", ["judge", "student", "teacher"])
@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (raising(UpstreamError("engine m/replica-0 died")), UpstreamError),
        (lambda: {"prompt-0/0": {"reward": float("nan")}}, ScoringError),
        (dict, ScoringError),
    ],
    ids=["raises", "not a number", "not scored"],
)
def test_scoring_or_validation_fails(
    play: Any, stage: str, outcome: Callable[[], Any], kind: type[Exception]
) -> None:
    """The batch is FAILED; nothing is written back or converted, nothing is published."""

    async def scenario(job: Any) -> None:
        job.at[stage] = outcome
        failed = await job.failure()
        assert isinstance(failed.__cause__, kind)
        assert f"batch 0 failed in {stage}" in str(failed)
        assert job.converted == []
        await job.assert_nothing_published()
        await job.assert_all_asleep()

    play(scenario)


@pytest.mark.parametrize("confirmed", [True, False])
def test_producer_fails_after_begin_batch(play: Any, confirmed: bool) -> None:
    """The rollout is put to sleep: given back if that is confirmed, else its lease stays, with the
    reason. The batch is FAILED."""

    async def scenario(job: Any) -> None:
        job.roles[WRITER].script().release_frees = 1.0 if confirmed else 0.0
        job.at["generate"] = raising(UpstreamError("out of memory"))
        failed = await job.failure()
        assert str(failed).startswith("batch 0 failed in generate: out of memory")
        await job.assert_nothing_published()
        if confirmed:
            await job.assert_all_asleep()
            return
        assert "release was answered" in str(failed)
        assert (await job.leases())[WRITER] == "BLOCKED"
        assert "release was answered" in (await job.coordinator.status())["leases"][WRITER]["reason"]
        with pytest.raises(LeaseError, match="writer is BLOCKED"):
            await job.coordinator.deactivate(0, WRITER, "once more")

    play(scenario)


class AnswerLost:
    """The coordinator, but the answer to the writer's second activation gets lost on its way."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._activations = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def activate(self, batch: Any, role: Any, operation: Any, *, attempt: int | None) -> Any:
        token = await self._inner.activate(batch, role, operation, attempt=attempt)
        self._activations += role == WRITER
        if role == WRITER and self._activations == 2:
            raise JobError("no answer from the coordinator")
        return token


@pytest.mark.parametrize("how", ["scoring", "answer lost", "interrupted", "weights lost"])
def test_student_restore_fails(play: Any, how: str) -> None:
    """The rollout's lease is given back whatever happened; what could not be confirmed stays fenced."""

    async def scenario(job: Any) -> None:
        writer = job.roles[WRITER]
        coordinator = AnswerLost(job.coordinator) if how == "answer lost" else None
        failing = asyncio.create_task(job.failure(coordinator=coordinator))

        async def judge() -> Any:
            """The last that happens before the writer is woken again."""
            if how == "weights lost":
                writer.script().loses_weights = True
            if how == "interrupted":
                writer.script().slow["resume"] = 10.0
                asyncio.get_running_loop().call_later(5.0, failing.cancel)
            return {sample.sample_id: {"reward:judge": 1.0} for sample in job.made}

        job.at["judge"] = judge
        if how == "scoring":
            job.at["student"] = raising(UpstreamError("no log-probs"))
        if how == "interrupted":
            with pytest.raises(asyncio.CancelledError):
                await failing
            with pytest.raises(BatchFailedError, match="onload of writer: cancelled"):
                await job.consumed()
        else:
            await failing
        assert writer.commands.count("onload") == 2
        await job.assert_nothing_published()
        if how == "weights lost":
            assert (await job.leases()) == {WRITER: "BLOCKED", JUDGE: "SLEEPING", TEACHER: "SLEEPING"}
            assert "uniform" in (await job.coordinator.status())["leases"][WRITER]["reason"]
        else:
            await job.assert_all_asleep()

    play(scenario)


def test_sink_put_fails(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No commit; consumers leave with the reason."""

    async def scenario(job: Any) -> None:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        monkeypatch.setattr(jsonl, "write_durably", lambda *_: raising(full)())
        failed = await job.failure()
        assert isinstance(failed.__cause__, SinkError)
        assert "No space left on device" in str(failed)
        assert job.converted == []
        await job.assert_nothing_published()
        await job.assert_all_asleep()

    play(scenario)


def test_finaliser_fails_after_put(play: Any) -> None:
    """The partition is cleared, then the batch fails; no commit."""

    async def scenario(job: Any) -> None:
        def dump() -> None:
            assert job.partition.exists(), "it is stored by now"
            raise RuntimeError("no room for the dump")

        job.at["finalise"] = dump
        failed = await job.failure()
        assert str(failed) == "batch 0 failed in publish: RuntimeError: no room for the dump"
        await job.assert_nothing_published()
        await job.assert_all_asleep()

    play(scenario)
