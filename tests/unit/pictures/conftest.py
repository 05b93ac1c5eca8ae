"""Plans to draw, in one line each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve

from rolecall.api import Nodes, PlacementMode, PlacementPlan, RoleName, TrainingDemand
from rolecall.testing.demands import placement_job, role_demand


@pytest.fixture
def planned() -> Callable[..., PlacementPlan]:
    """Returns a plan of roles given as (name, replicas, devices per engine), each with a model "m0", and of
    training roles given as (name, devices) or (name, devices, whose processes)."""

    def plan(
        mode: PlacementMode,
        *roles: tuple[str, int, int],
        nodes: Nodes | None = None,
        training: tuple[tuple[str, int] | tuple[str, int, str], ...] = (),
    ) -> PlacementPlan:
        job = placement_job(
            *(role_demand(name, (replicas, devices)) for name, replicas, devices in roles),
            training=tuple(
                TrainingDemand(
                    role=RoleName(name), devices=devices, offload=True, on=RoleName(on[0]) if on else None
                )
                for name, devices, *on in training
            ),
        )
        answer = mode.plan(evolve(job, nodes=nodes or job.nodes))
        assert isinstance(answer, PlacementPlan), answer
        return answer

    return plan


@pytest.fixture
def uneven(planned: Callable[..., PlacementPlan]) -> PlacementPlan:
    """Everything at once: unequal nodes, an engine across nodes, a trainer, a role in another's processes."""
    from rolecall_placement.defer import Defer

    return planned(
        Defer(),
        ("rollout", 2, 8),
        ("judge", 1, 16),
        ("teacher", 5, 2),
        nodes=Nodes.of([8, 8, 4]),
        training=(("actor", 16), ("critic", 4), ("reference", 8, "actor")),
    )
