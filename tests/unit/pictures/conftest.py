"""Plans to draw, in one line each, and what their JSON is held against."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest
from attrs import evolve
from jsonschema import Draft202012Validator

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


@pytest.fixture(scope="session")
def plan_schema() -> Any:
    """The published schema."""
    return json.loads(files("rolecall.placement.pictures").joinpath("plan.schema.json").read_text("utf-8"))


@pytest.fixture(scope="session")
def check_document(plan_schema: Any) -> Callable[[object], None]:
    """Checks that a document is as the schema says, and that the schema has all of its fields."""
    strict = _closed(plan_schema)
    for kind in ("plan", "refused", "wrong_file"):  # a document is one of them
        strict["$defs"][kind]["properties"]["schema_version"] = True

    def check(document: object) -> None:
        Draft202012Validator(plan_schema).validate(document)
        Draft202012Validator(strict).validate(document)

    return check


def _closed(schema: Any) -> Any:
    """The schema without the room that it leaves for fields to come."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: _closed(part) for key, part in schema.items()}
    if "properties" in schema and "oneOf" not in schema:
        parts["unevaluatedProperties"] = False
    return parts
