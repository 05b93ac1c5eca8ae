"""The work of planning grows as the job does. Calls are counted, not seconds: a busy machine makes no more.

``benchmarks/plan_speed.py`` measures the seconds.
"""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from rolecall.api import Nodes, PlacementJob, PlacementMode, RoleName, TrainingDemand
from rolecall.errors import PlacementRefused
from rolecall.placement.preflight import plan_placement
from rolecall.testing.demands import role_demand
from rolecall_placement.decoupled import Decoupled
from rolecall_placement.defer import Defer
from rolecall_placement.split import Split

SHAPES = {
    "equal": ((8, 30),),
    "unequal": ((8, 10), (7, 10), (6, 10)),
}
"""Devices of a node, and how many of those nodes a job of size 1 has."""


def a_job(size: int, shape: str, engines: int) -> PlacementJob:
    nodes = Nodes.of([devices for devices, count in SHAPES[shape] for _ in range(size * count)])
    return PlacementJob(
        resource="GPU",
        nodes=nodes,
        roles=tuple(role_demand(f"role{index}", (size * engines, 3), (size, 4)) for index in range(4)),
        training=(TrainingDemand(role=RoleName("actor"), devices=40 * size, offload=True),),
    )


def calls(job: PlacementJob, mode: PlacementMode) -> tuple[int, bool]:
    """How many functions, built-in ones too, are called to plan the job, and whether it is planned."""
    count = 0

    def counts(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    planned = True
    sys.setprofile(counts)
    try:
        plan_placement(job, mode)
    except PlacementRefused:
        planned = False
    finally:
        sys.setprofile(None)
    return count, planned


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("engines", "planned"), [(8, True), (60, False)])
@pytest.mark.parametrize("mode", [Split(), Defer(), Decoupled()], ids=lambda mode: mode.name)
def test_four_times_as_many_devices_make_four_times_the_work(
    mode: PlacementMode, engines: int, planned: bool, shape: str
) -> None:
    """For a job that is refused a little more: what would do is searched by halves."""
    (once, is_planned), (four_times, _) = (calls(a_job(size, shape, engines), mode) for size in (2, 8))
    assert is_planned == planned
    assert four_times < (4.2 if planned else 5.5) * once
