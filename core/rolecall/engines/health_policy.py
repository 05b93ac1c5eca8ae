"""What a look at an engine means: well, doubtful, or broken. Pure.

Busy is not dead: a long prefill or a compile answers late, so one slow answer decides nothing,
and an engine that says it is working on requests is given longer. A process that has ended is
dead at once. An engine whose HTTP server lives but whose scheduler does not stays unable to
generate and to count its requests, and is found after ``failures`` looks.
"""

from __future__ import annotations

from enum import Enum

from attrs import field, frozen, validators

from rolecall.engines.worker_handle import WorkerHealth


@frozen(kw_only=True)
class HealthPolicy:
    """Looks in a row that must fail before a replica counts as broken.

    failures: of an engine that is idle or can't say.
    busy_failures: of an engine that says requests are running.
    """

    failures: int = field(default=3, validator=validators.ge(1))
    busy_failures: int = field(default=60, validator=validators.ge(1))


class Verdict(Enum):
    """WELL resets the count of failed looks, DOUBTFUL raises it, BROKEN ends the incarnation."""

    WELL = "well"
    DOUBTFUL = "doubtful"
    BROKEN = "broken"


def judge(health: WorkerHealth, *, incarnation: int, failed_before: int, policy: HealthPolicy) -> Verdict:
    """Judge one look at the engine that should be running as ``incarnation``."""
    if health.exit_code is not None or not health.has_engine or health.incarnation != incarnation:
        return Verdict.BROKEN
    if health.alive:
        return Verdict.WELL
    allowed = policy.busy_failures if health.running else policy.failures
    return Verdict.BROKEN if failed_before + 1 >= allowed else Verdict.DOUBTFUL


def judge_silence(*, failed_before: int, policy: HealthPolicy) -> Verdict:
    """Judge a worker that gave no answer: never dead, but not to be routed to for ever either."""
    return Verdict.BROKEN if failed_before + 1 >= policy.failures else Verdict.DOUBTFUL
