"""The autoscaler hook: what it sees, what it has done, and what it forgets; and the example's rule."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolecall.errors import ScaleConflictError, ScaleRefused
from rolecall.scaling.autoscaler import Seen, autoscale
from rolecall.scaling.request import ScaleIn, ScaleOut, ScaleRequest
from rolecall.testing.virtual_time import run_virtual

EXAMPLE = Path(__file__).parents[2] / "examples" / "autoscale.py"


class Job:
    """A job whose model has ``replicas`` with ``permits`` each; an operation takes 100 s."""

    def __init__(self) -> None:
        self.replicas = 1
        self.permits: int | None = 0
        self.asked: list[ScaleRequest] = []
        self.refuse: Exception | None = None
        self.running: list[dict[str, Any]] = []

    async def role_status(self, role: str) -> dict[str, Any]:
        replica = {"model": "m", "state": "READY", "permits": self.permits}
        return {"role": role, "replicas": [replica] * self.replicas, "scaling": self.running}

    async def scale(self, role: str, request: ScaleRequest) -> dict[str, Any]:
        self.asked.append(request)
        if self.refuse is not None:
            raise self.refuse
        assert request.total is not None
        self.replicas = request.total
        return {"id": "1", "final": False}

    async def scale_operation(self, role: str, operation: str, *, wait_s: float = 0.0) -> dict[str, Any]:
        await asyncio.sleep(100)
        self.running = []
        return {"id": operation, "final": True, "action": "scale_out", "state": "DONE", "reason": ""}


def rounds(job: Job, decide: Callable[[Seen], int | None], seconds: float, **options: Any) -> None:
    async def main() -> None:
        try:
            async with asyncio.timeout(seconds):
                await autoscale(job, "critic", decide, **options)
        except TimeoutError:
            pass

    run_virtual(main())


def test_it_scales_to_what_is_said_and_waits_for_it() -> None:
    job, seen = Job(), list[Seen]()
    job.permits = 7

    def decide(now: Seen) -> int | None:
        seen.append(now)
        return {1: 3, 3: 2}.get(now.total)

    rounds(job, decide, 215)
    assert job.asked == [ScaleOut(total=3, model="m"), ScaleIn(total=2, model="m")]
    assert seen[0] == Seen(role="critic", model="m", total=1, ready=1, in_flight=7)
    assert [each.total for each in seen] == [1, 3]
    assert seen[1].in_flight == 21


def test_an_operation_of_somebody_else_is_waited_for_first() -> None:
    job, seen = Job(), list[Seen]()
    job.running = [{"id": "0", "final": False}]
    rounds(job, seen.append, 99, every_s=1.0)
    assert not seen
    rounds(job, seen.append, 105, every_s=1.0)
    assert seen
    assert not job.asked


@pytest.mark.parametrize("refusal", [ScaleRefused("no room"), ScaleConflictError("under way")])
def test_what_is_refused_is_asked_again_by_the_next_round(refusal: Exception) -> None:
    job = Job()
    job.refuse = refusal
    rounds(job, lambda _: 4, 25)
    assert len(job.asked) == 3


def test_what_the_function_raises_ends_it_and_a_model_has_to_be_named() -> None:
    def broken(_: Seen) -> int | None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rounds(Job(), broken, 60)
    with pytest.raises(ValueError, match="no model 'x'; it has: m"):
        rounds(Job(), lambda _: None, 60, model="x")


def test_the_example_grows_at_once_and_shrinks_after_a_while() -> None:
    spec = importlib.util.spec_from_file_location("autoscale_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    time_s = 0.0
    decide = example.ByRequests(most=4, now_s=lambda: time_s)

    def seen(total: int, in_flight: int | None, ready: int = 1) -> Seen:
        return Seen(role="r", model="m", total=total, ready=ready, in_flight=in_flight)

    assert decide(seen(1, 9)) == 3
    assert decide(seen(3, 90)) == 4, "never more than it may"
    assert decide(seen(3, None)) is None
    assert decide(seen(3, 0, ready=0)) is None
    time_s = 200.0
    assert decide(seen(3, 1)) is None
    time_s = 301.0
    assert decide(seen(3, 1)) == 1
