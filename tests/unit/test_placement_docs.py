"""The map on the reference page is what the code prints, its keys are those of the JSON."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

from rolecall.api import ModelDemand, ModelId, Nodes, PlacementJob, RoleDemand, RoleName
from rolecall.placement.preflight import plan_placement
from rolecall.placement.pictures.legend import plan_sheet
from rolecall.placement.pictures.plan_json import plan_to_json
from rolecall.placement.pictures.terminal_map import render_map
from rolecall_placement.defer import Defer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/placement.md").read_text(encoding="utf-8")


def sample() -> PlacementJob:
    shapes = [("rollout", "policy", 4, 1), ("genrm", "judge", 1, 2), ("teacher", "teacher", 2, 1)]
    return PlacementJob(
        resource="device_slot",
        nodes=Nodes.equal(4, per_node=4),
        roles=tuple(
            RoleDemand(
                role=RoleName(role),
                deferrable=True,
                models=(
                    ModelDemand(
                        model=ModelId(model),
                        replicas=replicas,
                        devices_per_engine=devices,
                        tensor_parallel=devices,
                        pipeline_parallel=1,
                    ),
                ),
            )
            for role, model, replicas, devices in shapes
        ),
    )


def test_the_sample_map_is_what_is_printed() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(render_map(plan_sheet(plan_placement(sample(), Defer()))))
    printed = "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())
    assert f"```text\n{printed}\n```" in PAGE


def test_the_json_keys_are_those_of_the_reference() -> None:
    as_json = plan_to_json(plan_placement(sample(), Defer()))
    table = PAGE.split("`--json` prints the plan")[1].split("Exit code 2")[0]
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", table, re.MULTILINE))
    assert set(rows) == set(as_json)
    for key in ("pools", "phases", "replicas"):
        for name in as_json[key][0]:
            assert f"`{name}`" in rows[key]
