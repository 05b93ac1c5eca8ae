"""One outer deadline: inner ones are cut to it, and a step that ignores it can't hold it up."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.engines.deadline import Deadline, DeadlineExceededError, LoopClock
from rolecall.testing.virtual_time import run_virtual


def test_inner_deadlines_never_outlive_the_outer_one() -> None:
    async def scenario() -> None:
        outer = Deadline.after(LoopClock(), 10.0)
        await asyncio.sleep(4.0)
        assert outer.remaining_s() == 6.0
        assert outer.at_most(100.0).remaining_s() == 6.0
        assert outer.at_most(1.0).remaining_s() == 1.0
        assert outer.share(0.5).remaining_s() == 3.0
        assert outer.leaving(1.0).remaining_s() == 5.0
        # A short deadline gives up a fifth at most, so that something is left to work with.
        assert outer.leaving(100.0).remaining_s() == pytest.approx(4.8)
        await asyncio.sleep(7.0)
        assert outer.passed
        assert outer.remaining_s() == 0.0
        assert outer.at_most(5.0).passed

    run_virtual(scenario())


def test_work_that_takes_too_long_is_cancelled_and_named() -> None:
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def scenario() -> None:
        with pytest.raises(DeadlineExceededError, match=r"release did not end within 3 s"):
            await Deadline.after(LoopClock(), 3.0).bound(work(), "release")
        assert asyncio.get_running_loop().time() == 3.0
        await asyncio.sleep(0)
        assert cancelled.is_set()

    run_virtual(scenario())


def test_work_that_ignores_cancellation_does_not_hold_up_the_caller() -> None:
    async def stubborn() -> None:
        for _ in range(3):
            try:
                await asyncio.sleep(100.0)
            except asyncio.CancelledError:
                continue

    async def scenario() -> None:
        with pytest.raises(DeadlineExceededError):
            await Deadline.after(LoopClock(), 1.0).bound(stubborn(), "stubborn work")
        assert asyncio.get_running_loop().time() == 1.0

    run_virtual(scenario())


def test_cancelling_the_caller_cancels_the_work() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60.0)
        finally:
            ended.append("work")

    async def scenario() -> None:
        task = asyncio.ensure_future(Deadline.after(LoopClock(), 50.0).bound(work(), "work"))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert ended == ["work"]

    run_virtual(scenario())


def test_work_that_is_already_done_counts_even_at_the_deadline() -> None:
    async def work() -> str:
        return "done"

    async def scenario() -> None:
        assert await Deadline.after(LoopClock(), 0.0).bound(work(), "work") == "done"

    run_virtual(scenario())
