"""Sleep and wake: the order of steps, and every way in which an engine may lie about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rolecall.engines.deadline import Deadline, DeadlineExceededError, LoopClock
from rolecall.engines.handover import HandoverLimits, Identity, SleepProof, put_to_sleep, wake
from rolecall.errors import CanaryMismatchError, EngineError, ReleaseNotProvedError
from rolecall.interfaces.engine_backend import MemoryReport, MemoryTag
from rolecall.interfaces.role import WeightSource
from rolecall.testing.fake_engine import (
    CANARY,
    FAKE_TAGS,
    UNIFORM,
    FakeEngine,
    Script,
    fake_launch,
)
from rolecall.testing.virtual_time import run_virtual

TAGS = FAKE_TAGS
LIMITS = HandoverLimits()


def run(scenario: Callable[[FakeEngine], Any], script: Script, *, version: str | None = None) -> Any:
    """Run a scenario on a started engine, in virtual time."""

    async def main() -> Any:
        engine = FakeEngine(fake_launch(version), script)
        await engine.start(1.0)
        engine.calls.clear()
        return await scenario(engine)

    return run_virtual(main())


async def sleep(
    engine: FakeEngine,
    *,
    seconds: float = 60.0,
    grace_s: float = 0.0,
    source: WeightSource = WeightSource.STATIC,
) -> SleepProof:
    deadline = Deadline.after(LoopClock(), seconds)
    return await put_to_sleep(engine, TAGS, deadline, weight_source=source, grace_s=grace_s, limits=LIMITS)


async def rouse(
    engine: FakeEngine,
    expected: Identity,
    *,
    seconds: float = 60.0,
    source: WeightSource = WeightSource.STATIC,
) -> MemoryReport:
    deadline = Deadline.after(LoopClock(), seconds)
    return await wake(engine, TAGS, deadline, weight_source=source, expected=expected, limits=LIMITS)


def test_an_idle_engine_sleeps_and_wakes_with_the_same_weights() -> None:
    async def scenario(engine: FakeEngine) -> None:
        proof = await sleep(engine)
        assert proof.identity.canary == CANARY
        assert proof.asleep_bytes < 0.2 * proof.awake_bytes
        assert not proof.aborted
        steps = [call for call in engine.calls if call not in {"running_requests", "memory"}]
        assert steps == ["canary", "pause", "abort_all", "flush", "release"]
        engine.calls.clear()
        memory = await rouse(engine, proof.identity)
        assert memory.resident_tags == TAGS
        assert engine.calls == [
            "resume weights",
            "resume kv_cache",
            "memory",
            "continue_generation",
            "canary",
        ]

    run(scenario, Script())


def test_running_requests_get_their_grace_and_are_not_aborted() -> None:
    async def scenario(engine: FakeEngine) -> None:
        proof = await sleep(engine, grace_s=10.0)
        assert 4.0 <= asyncio.get_running_loop().time() < 4.5
        assert not proof.aborted

    run(scenario, Script(running=3, finishes_after_s=4.0, flushes_needed=None))


def test_stuck_requests_are_aborted_and_flushed_until_the_engine_is_quiet() -> None:
    """Pitfall 7: paused in abort mode, and flushed only after that, until the flush succeeds."""

    async def scenario(engine: FakeEngine) -> None:
        proof = await sleep(engine, grace_s=2.0)
        assert proof.aborted
        assert engine.calls.count("flush") == 7
        assert engine.calls.count("abort_all") == 7
        assert engine.calls.index("pause") < engine.calls.index("abort_all")
        assert engine.calls.count("release") == 1

    run(scenario, Script(running=2, flushes_needed=7))


def test_an_engine_that_never_gets_quiet_is_not_released_and_fails_within_the_deadline() -> None:
    async def scenario(engine: FakeEngine) -> None:
        with pytest.raises(DeadlineExceededError, match="2 requests run, flush says busy"):
            await sleep(engine, seconds=20.0)
        assert asyncio.get_running_loop().time() <= 20.1
        assert "release" not in engine.calls

    run(scenario, Script(running=2, flushes_needed=None))


@pytest.mark.parametrize("frees", [0.0, 0.3])
def test_a_release_that_frees_too_little_is_no_release(frees: float) -> None:
    """Pitfall 2: release answered 200 and freed nothing, or too little."""

    async def scenario(engine: FakeEngine) -> None:
        with pytest.raises(ReleaseNotProvedError, match=r"holds .* MiB, awake 900 MiB: \d+% freed"):
            await sleep(engine)
        assert engine.calls.count("release") == 1, "a release is attempted once"

    run(scenario, Script(release_frees=frees))


def test_a_tag_that_stays_is_no_release_however_much_has_left() -> None:
    async def scenario(engine: FakeEngine) -> None:
        with pytest.raises(ReleaseNotProvedError, match="67% freed, needed 50%; resident: kv_cache"):
            await sleep(engine)

    run(scenario, Script(release_keeps=frozenset({MemoryTag.KV_CACHE})))


def test_nothing_running_is_not_quiet_while_the_flush_says_busy() -> None:
    async def scenario(engine: FakeEngine) -> None:
        await sleep(engine)
        assert engine.calls.count("flush") == 5

    run(scenario, Script(running=1, quiet_is_a_lie=True, flushes_needed=5))


def test_a_flush_that_succeeds_is_not_quiet_while_something_runs() -> None:
    async def scenario(engine: FakeEngine) -> None:
        flushes = 0

        async def flush() -> bool:
            nonlocal flushes
            flushes += 1
            engine.script.running = max(0, 3 - flushes)
            return True

        engine.flush = flush  # type: ignore[method-assign]
        await sleep(engine)
        assert flushes == 3

    run(scenario, Script(running=2))


def test_memory_that_leaves_after_the_answer_is_waited_for() -> None:
    """Pitfall 2: release answered before it had freed."""

    async def scenario(engine: FakeEngine) -> None:
        proof = await sleep(engine)
        assert asyncio.get_running_loop().time() >= 3.0
        assert proof.asleep_bytes == 100 * 2**20

    run(scenario, Script(release_lag_s=3.0))


def test_a_release_that_hangs_is_not_repeated() -> None:
    """Pitfall 3, for the other direction: what timed out may still happen."""

    async def scenario(engine: FakeEngine) -> None:
        with pytest.raises(DeadlineExceededError, match="release did not end"):
            await sleep(engine, seconds=30.0)
        assert asyncio.get_running_loop().time() <= 30.1
        assert engine.calls.count("release") == 1

    run(scenario, Script(slow={"release": 1000.0}))


def test_weights_lost_over_the_sleep_are_found() -> None:
    """Pitfall 1: healthy after waking, but every log-probability is the same."""

    async def scenario(engine: FakeEngine) -> None:
        proof = await sleep(engine)
        with pytest.raises(CanaryMismatchError, match="uniform"):
            await rouse(engine, proof.identity)

    run(scenario, Script(loses_weights=True))


def test_other_weights_than_before_are_found() -> None:
    async def scenario(engine: FakeEngine) -> None:
        proof = await sleep(engine)
        other = Identity(canary=(-1.25, -0.9, -3.75, -2.0), weight_version=None)
        with pytest.raises(CanaryMismatchError, match=r"moved by up to 0\.4"):
            await rouse(engine, other)
        assert proof.identity.canary == CANARY

    run(scenario, Script())


def test_a_uniform_canary_before_the_sleep_is_refused_and_nothing_is_released() -> None:
    async def scenario(engine: FakeEngine) -> None:
        engine._lost = True
        with pytest.raises(CanaryMismatchError, match="before the sleep is uniform"):
            await sleep(engine)
        assert "pause" not in engine.calls
        assert len(set(UNIFORM)) == 1

    run(scenario, Script())


@pytest.mark.parametrize("canary", [(), (-1.0,), (-1.0, float("nan")), (-1.0, float("-inf"))])
def test_a_canary_that_proves_nothing_is_refused(canary: tuple[float, ...]) -> None:
    async def scenario(engine: FakeEngine) -> None:
        async def odd() -> tuple[float, ...]:
            return canary

        engine.canary = odd  # type: ignore[method-assign]
        with pytest.raises(CanaryMismatchError):
            await sleep(engine)

    run(scenario, Script())


def test_generation_does_not_continue_while_a_tag_is_away() -> None:
    """Pitfall 4: no forward with the cache still asleep."""

    async def scenario(engine: FakeEngine) -> None:
        proof = await sleep(engine)
        with pytest.raises(EngineError, match=r"not resident .*kv_cache"):
            await rouse(engine, proof.identity)
        assert "continue_generation" not in engine.calls

    run(scenario, Script(resume_leaves_away=frozenset({MemoryTag.KV_CACHE})))


def test_a_resume_that_hangs_is_not_repeated() -> None:
    async def scenario(engine: FakeEngine) -> None:
        proof = await sleep(engine)
        engine.script.slow["resume"] = 1000.0
        start = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineExceededError, match="resume of weights did not end"):
            await rouse(engine, proof.identity, seconds=30.0)
        assert asyncio.get_running_loop().time() - start <= 30.1
        assert [call for call in engine.calls if call.startswith("resume")] == ["resume weights"]

    run(scenario, Script())


def test_versioned_engines_are_judged_by_their_version() -> None:
    async def scenario(engine: FakeEngine) -> None:
        proof = await sleep(engine, source=WeightSource.ACTOR)
        assert proof.identity == Identity(canary=None, weight_version="7")
        assert "canary" not in engine.calls
        await rouse(engine, proof.identity, source=WeightSource.ACTOR)

    run(scenario, Script(), version="7")


def test_a_versioned_engine_that_wakes_with_another_version_is_refused() -> None:
    async def scenario(engine: FakeEngine) -> None:
        proof = await sleep(engine, source=WeightSource.ACTOR)
        with pytest.raises(CanaryMismatchError, match="'6', expected '7'"):
            await rouse(engine, proof.identity, source=WeightSource.ACTOR)

    run(scenario, Script(weight_version_after_wake="6"), version="7")
