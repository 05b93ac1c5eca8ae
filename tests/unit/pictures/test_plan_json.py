"""The JSON that scripts read, and its published schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from rolecall.api import Nodes, PlacementPlan, RoleName
from rolecall.placement.pictures.plan_json import plan_to_json
from rolecall.placement.plan_diff import diff_plans
from rolecall.testing.demands import any_job
from rolecall_placement.decoupled import Decoupled
from rolecall_placement.defer import Defer
from rolecall_placement.split import Split

Planned = Callable[..., PlacementPlan]

REFUSAL = {"code": "rule", "key": "placement.mode", "message": "no", "fix": "yes", "fixes": []}


def test_the_schema_is_one(plan_schema: Any) -> None:
    Draft202012Validator.check_schema(plan_schema)


def test_a_field_that_the_schema_does_not_know_is_noticed(
    uneven: PlacementPlan, plan_schema: Any, check_document: Callable[[object], None]
) -> None:
    document = plan_to_json(uneven)
    document["replicas"][0]["colour"] = "blue"
    Draft202012Validator(plan_schema).validate(document)  # fields may be added
    with pytest.raises(ValidationError):
        check_document(document)


def test_a_plan_is_complete(planned: Planned, check_document: Callable[[object], None]) -> None:
    plan = planned(
        Defer(), ("writer", 2, 1), ("judge", 1, 2), nodes=Nodes.of([2, 1]), training=(("actor", 1),)
    )
    document = json.loads(json.dumps(plan_to_json(plan)))
    check_document(document)
    assert document == {
        "schema_version": 2,
        "mode": "defer",
        "pools": [
            {
                "pool_id": "shared",
                "resource": "GPU",
                "devices": 3,
                "nodes": [{"count": 1, "devices": 2}, {"count": 1, "devices": 1}],
            }
        ],
        "phases": [
            {"name": "writer", "roles": ["writer"]},
            {"name": "judge", "roles": ["judge"]},
            {"name": "training", "roles": ["actor"]},
        ],
        "replicas": [
            {
                "role": "writer",
                "model": "m0",
                "engine": "m0/replica-0",
                "pool_id": "shared",
                "bundles": [0],
                "reservation": 0.3333,
            },
            {
                "role": "writer",
                "model": "m0",
                "engine": "m0/replica-1",
                "pool_id": "shared",
                "bundles": [1],
                "reservation": 0.5,
            },
            {
                "role": "judge",
                "model": "m0",
                "engine": "m0/replica-0",
                "pool_id": "shared",
                "bundles": [0, 1],
                "reservation": 0.3333,
            },
        ],
        "training": [
            {
                "role": "actor",
                "process": "actor",
                "pool_id": "shared",
                "bundles": [0],
                "reservation": 0.3333,
            }
        ],
        "conflicts": {
            "writer": ["actor", "judge"],
            "judge": ["actor", "writer"],
            "actor": ["judge", "writer"],
        },
    }


def test_conflicts_and_reservations_are_the_plans(uneven: PlacementPlan) -> None:
    document = plan_to_json(uneven)
    for role, conflicts in document["conflicts"].items():
        assert set(conflicts) == uneven.conflicts(RoleName(role))
    for tenant in (*document["replicas"], *document["training"]):
        assert tenant["reservation"] == uneven.reservation(tenant["pool_id"], tenant["bundles"][0])


def plans(seed: int) -> Iterator[PlacementPlan]:
    for mode in (Decoupled(), Split(), Defer()):
        plan = mode.plan(any_job(Random(seed).randrange))
        if isinstance(plan, PlacementPlan):
            yield plan


@pytest.mark.parametrize("seed", range(10))
def test_every_plan_and_every_diff_is_as_the_schema_says(
    seed: int, check_document: Callable[[object], None]
) -> None:
    for before in plans(seed):
        for after in plans(seed + 1):
            check_document(plan_to_json(after, diff_plans(before, after)))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plan: plan.pop("pools"),
        lambda plan: plan.update(schema_version=1),
        lambda plan: plan["replicas"][0].update(bundles=[0, 0]),
        lambda plan: plan["replicas"][0].update(reservation=0),
        lambda plan: plan["pools"][0]["nodes"][0].update(count=0),
        lambda plan: plan.update(
            refusals=[{"code": "c", "key": "k", "message": "m", "fix": "f", "fixes": []}], file="f"
        ),
    ],
)
def test_what_is_no_plan_is_not_taken_for_one(
    uneven: PlacementPlan, plan_schema: Any, spoil: Callable[[dict[str, Any]], object]
) -> None:
    document = plan_to_json(uneven)
    spoil(document)
    assert not Draft202012Validator(plan_schema).is_valid(document)
