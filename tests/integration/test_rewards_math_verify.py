"""math_verify: what is equal as mathematics, and that a hostile expression holds nothing up."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import psutil
import pytest

from rolecall.api import NamedReward, Prompt, Sample, ScoringError, score_with_policy
from rolecall.testing.samples import make_sample

pytest.importorskip("math_verify", reason="needs rolecall[math-verify]")

from rolecall_plugins.rewards.math_verify import adapter as adapter_module
from rolecall_plugins.rewards.math_verify import workers
from rolecall_plugins.rewards.math_verify.adapter import MathVerify, MathVerifyOptions

# With the limits that are asked for, for ever and without end.
HOSTILE = "The answer is $9^{9^{9^{9^{9}}}}$"


def sample(response: str, answer: str | None) -> Sample:
    return make_sample(Prompt(prompt_id="p", text="?", answer=answer), 0, response)


def workers_now() -> list[psutil.Process]:
    return [process for process in psutil.Process().children() if "worker.py" in " ".join(_line(process))]


def _line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(scope="module")
def shared() -> MathVerify:
    return MathVerify(MathVerifyOptions(processes=1, compare_s=60.0))


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        ("The answer is $\\frac{1}{2}$.", "0.5", 1.0),
        ("It is \\boxed{\\sqrt{8}}", "2\\sqrt{2}", 1.0),
        ("so x = 3/4", "$\\frac{3}{4}$", 1.0),
        ("$x^2 + 2x + 1$", "$(x+1)^2$", 1.0),
        ("$(1, 2)$", "$(1,3)$", 0.0),
        ("5", "4", 0.0),
        ("I do not know.", "4", 0.0),
        ("", "4", 0.0),
    ],
)
async def test_equal_is_what_mathematics_says(
    shared: MathVerify, response: str, answer: str, reward: float
) -> None:
    assert await shared.score(sample(response, answer), None) == reward


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, 'prompt "p" has no reference answer'),
        (" ", "no reference"),
        ("???", "nothing in it can be read"),
    ],
)
async def test_a_reference_that_can_not_be_read_is_an_error(
    shared: MathVerify, answer: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        await shared.score(sample("4", answer), None)


async def test_a_hostile_expression_ends_with_its_time_and_holds_up_nobody() -> None:
    adapter = MathVerify(MathVerifyOptions(processes=1, compare_s=15.0))
    assert await adapter.score(sample("4", "4"), None) == 1.0  # the worker is warm
    (first,) = [p for p in workers_now() if p.pid in {w.process.pid for w in adapter._workers._all}]  # pyright: ignore[reportPrivateUsage]
    longest, before = 0.0, time.monotonic()
    reward = NamedReward(name="m", adapter=adapter, on_error="fail_batch", retries=0, timeout_s=2.0)
    scoring = asyncio.create_task(score_with_policy(sample(HOSTILE, "$9^{9^{9^{9}}}+1$"), reward, None))
    started = before
    while not scoring.done():
        await asyncio.sleep(0.01)
        longest, before = max(longest, time.monotonic() - before), time.monotonic()
    with pytest.raises(ScoringError, match="no reward within 2 s"):
        await scoring
    assert longest < 1.0, "the event loop was blocked"
    assert time.monotonic() - started < 10
    await asyncio.to_thread(first.wait, 10)  # it did not outlive the reward's time
    assert await adapter.score(sample("4", "4"), None) == 1.0, "the next one has a worker of its own"


async def test_its_own_limit_is_an_error_and_no_zero() -> None:
    adapter = MathVerify(MathVerifyOptions(processes=1, compare_s=60.0))
    await adapter.score(sample("4", "4"), None)
    with pytest.raises(ScoringError, match=r"not compared within 0\.5 s"):
        await adapter._workers.ask(  # pyright: ignore[reportPrivateUsage]
            {
                "reference": "$9^{9^{9^{9}}}+1$",
                "response": HOSTILE,
                "forms": ["latex"],
                "decimals": 6,
                "strict": True,
            },
            0.5,
        )


async def test_who_waits_for_a_worker_and_gives_up_starts_none() -> None:
    adapter = MathVerify(MathVerifyOptions(processes=1, compare_s=30.0))
    first = asyncio.create_task(adapter.score(sample(HOSTILE, "$9^{9^{9^{9}}}+1$"), None))
    second = asyncio.create_task(adapter.score(sample("4", "4"), None))
    await asyncio.sleep(0)
    for task in (second, first):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_worker_that_dies_is_an_error_and_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = MathVerify(MathVerifyOptions(processes=1))
    script = workers._SCRIPT  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(workers, "_SCRIPT", "/nowhere/worker.py")
    with pytest.raises(ScoringError, match="the worker process ended with exit code 2"):
        await adapter.score(sample("4", "4"), None)
    monkeypatch.setattr(workers, "_SCRIPT", script)
    assert await adapter.score(sample("4", "4"), None) == 1.0


async def test_workers_end_with_their_adapter() -> None:
    adapter = MathVerify(MathVerifyOptions(processes=1))
    await adapter.score(sample("4", "4"), None)
    pids = {worker.process.pid for worker in adapter._workers._all}  # pyright: ignore[reportPrivateUsage]
    assert pids
    del adapter
    async with asyncio.timeout(10):
        while any(psutil.pid_exists(pid) for pid in pids):  # until its threads have let go of it, too
            gc.collect()
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "options", [{"forms": ()}, {"forms": ("prose",)}, {"compare_s": 0}, {"processes": 0}]
)
def test_options_that_make_no_sense_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        MathVerifyOptions(**options)


def test_without_the_package_the_options_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_module, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install .rolecall\[math-verify\]"):
        MathVerifyOptions()
