"""Putting an engine to sleep and waking it, with proof on both sides.

Pure asyncio over the :class:`~rolecall.interfaces.engine_backend.Engine` protocol; called by the
engine host, for every role alike. It owns the order of steps and what counts as proof. It does
not own who may run, replica states, or what happens after a failure.

Sleep: close the door → grace for running requests → canary → pause (abort) → abort and flush until
the engine is quiet and no permit is out → release → proof that the memory is gone.
Wake: resume weights, KV cache, CUDA graphs → proof that all tags are resident → continue →
canary → open the door.

The canary and every control call go to the engine itself, so a closed door is never in their way.
An engine that has no door (``door`` is None) is drained by its own word alone.

Every step is attempted once. What may be repeated is only what changes nothing or is idempotent
by nature: looking, aborting, flushing. A second ``resume`` after a time-out breaks engines, and a
second ``release`` may take memory from whoever has it by then. A failure at any step leaves the
engine in an unknown condition: it raises, and the caller must not hand over the devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import pvariance

from attrs import field, frozen, validators

from rolecall.engines.admission import Admission
from rolecall.engines.deadline import Deadline, DeadlineExceededError
from rolecall.errors import CanaryMismatchError, EngineError, ReleaseNotProvedError
from rolecall.interfaces.engine_backend import Engine, MemoryReport, MemoryTag
from rolecall.interfaces.role import WeightSource

RESUME_ORDER = (MemoryTag.WEIGHTS, MemoryTag.KV_CACHE, MemoryTag.CUDA_GRAPH)
"""Graphs replay over the cache's addresses and the cache is sized beside the weights."""


@frozen(kw_only=True)
class HandoverLimits:
    """What counts as proof, and how patiently it is looked for.

    minimum_freed_share: resident bytes must fall by at least this share of those held awake.
    canary_tolerance: largest difference of one log-probability, before and after a sleep.
    canary_variance: a smaller variance over the prompt is a uniform distribution: no weights.
    canary_share: share of the remaining time that the canary before a sleep may take.
    settle_s: how long the memory may take to leave after ``release`` was answered.
    look_interval_s: pause between two looks at the engine.
    """

    minimum_freed_share: float = field(default=0.5, validator=[validators.ge(0), validators.le(1)])
    canary_tolerance: float = field(default=1e-2, validator=validators.ge(0))
    canary_variance: float = field(default=1e-6, validator=validators.gt(0))
    canary_share: float = field(default=0.3, validator=[validators.gt(0), validators.le(1)])
    settle_s: float = field(default=15.0, validator=validators.gt(0))
    look_interval_s: float = field(default=0.05, validator=validators.gt(0))


@frozen(kw_only=True)
class Identity:
    """What must be the same after a sleep: log-probs for static weights, else the version."""

    canary: tuple[float, ...] | None
    weight_version: str | None


@frozen(kw_only=True)
class SleepProof:
    """A confirmed sleep: bytes held before and after the release, and what to compare on waking."""

    awake_bytes: int
    asleep_bytes: int
    aborted: bool
    identity: Identity


async def put_to_sleep(
    engine: Engine,
    tags: frozenset[MemoryTag],
    deadline: Deadline,
    *,
    weight_source: WeightSource,
    grace_s: float,
    limits: HandoverLimits,
    door: Admission | None = None,
) -> SleepProof:
    """Drain the engine, release all ``tags`` and prove that the memory has left.

    Not to be called on an engine that sleeps: the canary needs its weights.

    Raises:
        ReleaseNotProvedError: release was answered, but tags are resident or bytes did not fall.
        CanaryMismatchError: the engine answers with a uniform distribution while awake.
        DeadlineExceededError: a step, named in the message, used up the deadline.
    """
    quiet = await close_and_wait(engine, door, deadline, grace_s=grace_s, limits=limits)
    identity = await _identify(engine, deadline.share(limits.canary_share), weight_source, limits)
    await deadline.bound(engine.pause(), "pause")
    aborted = await abort_until_quiet(engine, door, deadline, limits=limits) or not quiet
    awake = await deadline.bound(engine.memory(), "memory report before the release")
    await deadline.bound(engine.release(tags), "release")
    asleep = await prove_released(engine, tags, awake, deadline, limits)
    return SleepProof(
        awake_bytes=awake.resident_bytes,
        asleep_bytes=asleep.resident_bytes,
        aborted=aborted,
        identity=identity,
    )


async def wake(
    engine: Engine,
    tags: frozenset[MemoryTag],
    deadline: Deadline,
    *,
    weight_source: WeightSource,
    expected: Identity,
    limits: HandoverLimits,
    door: Admission | None = None,
) -> MemoryReport:
    """Resume the tags in order, prove that it is the same model, and open the door.

    Generation continues only once every tag is resident: a forward pass over a cache that is
    still away is an illegal access. The door opens last, so no caller meets an unproved model.

    Raises:
        EngineError: a tag is not resident although its resume was answered.
        CanaryMismatchError: the weights are not those expected, or are lost.
        DeadlineExceededError: a step, named in the message, used up the deadline.
    """
    for tag in RESUME_ORDER:
        if tag in tags:
            await deadline.bound(engine.resume(frozenset({tag})), f"resume of {tag}")
    memory = await deadline.bound(engine.memory(), "memory report after the resume")
    require_resident(memory, tags)
    await deadline.bound(engine.continue_generation(), "continue_generation")
    if weight_source is WeightSource.STATIC:
        canary = await deadline.bound(engine.canary(), "canary after waking")
        check_not_uniform(canary, limits, "after waking")
        _compare_canary(expected.canary, canary, limits)
    else:
        found = await deadline.bound(engine.weight_version(), "weight version after waking")
        if found != expected.weight_version:
            raise CanaryMismatchError(
                f"the engine woke with weight version {found!r}, expected {expected.weight_version!r}"
            )
    if door is not None:
        door.open()
    return memory


async def close_and_wait(
    engine: Engine, door: Admission | None, deadline: Deadline, *, grace_s: float, limits: HandoverLimits
) -> bool:
    """Close the door and let running requests end by themselves; False if some did not in time."""
    grace = deadline.at_most(grace_s)
    if door is not None:
        door.close()
        try:
            if door.permits:
                await grace.bound(door.drained(), "draining the door")
        except DeadlineExceededError:
            return False
    while True:
        if await deadline.bound(engine.running_requests(), "running-request count") == 0:
            return True
        if grace.passed:
            return False
        await grace.pause(limits.look_interval_s)


async def abort_until_quiet(
    engine: Engine, door: Admission | None, deadline: Deadline, *, limits: HandoverLimits
) -> bool:
    """Abort and flush until nothing runs and no permit is out; True if anything was to abort.

    For an engine that is paused behind a closed door. A request may need another scheduler step to
    end, and an engine may answer that nothing runs while its flush still finds something: only both
    together are quiet. A permit that stays out is a request whose end the engine did not confirm.
    """
    first: int | None = None
    while True:
        await deadline.bound(engine.abort_all(), "abort of running requests")
        flushed = await deadline.bound(engine.flush(), "flush")
        running = await deadline.bound(engine.running_requests(), "running-request count")
        permits = door.permits if door is not None else 0
        first = max(running, permits) if first is None else first
        if flushed and running == 0 and permits == 0:
            if door is not None:
                await deadline.bound(door.drained(), "draining the door")
            return first > 0
        if deadline.passed:
            raise DeadlineExceededError(
                f"the engine was not quiet within {deadline.total_s:.3g} s of aborting and flushing: "
                f"{running} requests run, flush {'succeeds' if flushed else 'says busy'}, "
                f"{permits} permits are out"
            )
        await deadline.pause(limits.look_interval_s)


def require_resident(memory: MemoryReport, tags: frozenset[MemoryTag]) -> None:
    """Check that every tag is in the device's memory.

    Raises:
        EngineError: names the tags that are away.
    """
    if away := tags - memory.resident_tags:
        raise EngineError(f"not resident although the engine should be awake: {_names(away)}")


def check_not_uniform(canary: Sequence[float], limits: HandoverLimits, when: str) -> None:
    """Refuse log-probabilities that lost weights would give: all equal, or not finite.

    Raises:
        CanaryMismatchError: says what was seen.
    """
    if len(canary) < 2:
        raise CanaryMismatchError(f"the canary {when} has {len(canary)} log-probabilities; it takes two")
    if not all(math.isfinite(value) for value in canary):
        raise CanaryMismatchError(f"the canary {when} has log-probabilities that are not finite")
    variance = pvariance(canary)
    if variance < limits.canary_variance:
        raise CanaryMismatchError(
            f"the canary {when} is uniform: {len(canary)} log-probabilities around {canary[0]:.4f}, variance "
            f"{variance:.2e} (at least {limits.canary_variance:.0e} is needed); the weights are lost"
        )


def _compare_canary(
    before: tuple[float, ...] | None, after: tuple[float, ...], limits: HandoverLimits
) -> None:
    if before is None:
        raise CanaryMismatchError("no canary was taken before the sleep, so the weights can't be verified")
    if len(before) != len(after):
        raise CanaryMismatchError(f"the canary has {len(after)} log-probabilities, before {len(before)}")
    worst = max(abs(a - b) for a, b in zip(before, after, strict=True))
    if worst > limits.canary_tolerance:
        raise CanaryMismatchError(
            f"log-probabilities of the fixed prompt moved by up to {worst:.4f} over the sleep "
            f"(allowed: {limits.canary_tolerance:g}); the weights are not those that went to sleep"
        )


async def _identify(
    engine: Engine, deadline: Deadline, weight_source: WeightSource, limits: HandoverLimits
) -> Identity:
    if weight_source is not WeightSource.STATIC:
        version = await deadline.bound(engine.weight_version(), "weight version before the sleep")
        return Identity(canary=None, weight_version=version)
    canary = await deadline.bound(engine.canary(), "canary before the sleep")
    check_not_uniform(canary, limits, "before the sleep")
    return Identity(canary=canary, weight_version=None)


async def prove_released(
    engine: Engine,
    tags: frozenset[MemoryTag],
    awake: MemoryReport,
    deadline: Deadline,
    limits: HandoverLimits,
) -> MemoryReport:
    """Wait until no tag is resident and the bytes held ``awake`` have fallen, and return what is left.

    Raises:
        ReleaseNotProvedError: the memory is still there after ``limits.settle_s``.
    """
    settle = deadline.at_most(limits.settle_s)
    while True:
        # Engines answer before the memory has left; looking again is safe, releasing again isn't.
        now = await deadline.bound(engine.memory(), "memory report after the release")
        freed = 1.0 - now.resident_bytes / awake.resident_bytes if awake.resident_bytes > 0 else 0.0
        if not (now.resident_tags & tags) and freed >= limits.minimum_freed_share:
            return now
        if settle.passed:
            raise ReleaseNotProvedError(
                f"release was answered, but {settle.total_s:.3g} s later the engine holds {_size(now)}, "
                f"awake {_size(awake)}: {freed:.0%} freed, needed {limits.minimum_freed_share:.0%}; "
                f"resident: {_names(now.resident_tags & tags) or 'no tag'}"
            )
        await settle.pause(limits.look_interval_s)


def _names(tags: frozenset[MemoryTag]) -> str:
    return ", ".join(sorted(tags))


def _size(report: MemoryReport) -> str:
    return f"{report.resident_bytes / 2**20:,.0f} MiB"
