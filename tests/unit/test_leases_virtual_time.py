"""The virtual-time loop: no real time passes, timers keep their order, a hang is an error."""

from __future__ import annotations

import asyncio
import time

import pytest

from rolecall.testing.virtual_time import NothingScheduledError, run_virtual


def test_hours_pass_at_once_and_in_order() -> None:
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        await asyncio.gather(sleeper("late", 7200), sleeper("early", 60), sleeper("middle", 3600))

    started_s = time.monotonic()
    run_virtual(main())
    assert time.monotonic() - started_s < 5.0
    assert [name for name, _ in seen] == ["early", "middle", "late"]
    assert [at for _, at in seen] == pytest.approx([60, 3600, 7200])


def test_a_timeout_ends_what_never_comes() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await asyncio.get_running_loop().create_future()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(100)


def test_waiting_for_what_nothing_will_bring_about_is_an_error_at_once() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingScheduledError):
        run_virtual(main())


def test_what_is_given_to_a_thread_runs_at_once() -> None:
    async def main() -> None:
        assert await asyncio.to_thread(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 7, 0)
        assert asyncio.get_running_loop().time() == 0.0

    run_virtual(main())
