"""The maps and the picture on the reference page are what the code prints, its keys those of the JSON."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner
from rich.console import Console

from rolecall.api import ModelId, PlacementJob, PlacementPlan
from rolecall.cli.plan import plan
from rolecall.placement.pictures.legend import plan_sheet
from rolecall.placement.pictures.plan_json import plan_to_json
from rolecall.placement.pictures.terminal_map import render_map
from rolecall.placement.plan import TrainingDemand
from rolecall.placement.plan_diff import diff_plans
from rolecall.placement.preflight import plan_placement
from rolecall.testing.demands import placement_job, role_demand
from rolecall_placement.defer import Defer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/placement.md").read_text(encoding="utf-8")


def sample() -> PlacementJob:
    shapes = [("rollout", "policy", 4, 1), ("genrm", "judge", 1, 2), ("teacher", "teacher", 2, 1)]
    roles = [role_demand(role, (replicas, devices)) for role, _, replicas, devices in shapes]
    return placement_job(
        *(
            evolve(role, models=(evolve(role.models[0], model=ModelId(model)),))
            for role, (_, model, _, _) in zip(roles, shapes, strict=True)
        ),
        resource="device_slot",
        devices=4,
        per_node=4,
    )


def test_the_sample_map_is_what_is_printed() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(render_map(plan_sheet(plan_placement(sample(), Defer()))))
    printed = "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())
    assert f"```text\n{printed}\n```" in PAGE


def test_the_sample_diff_is_what_its_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    block = PAGE.split("$ rolecall plan ")[1].split("```")[0]
    command, printed = block.split("\n", 1)
    result = CliRunner().invoke(plan, shlex.split(command), catch_exceptions=False)
    assert "\n".join(line.rstrip() for line in result.stdout.strip().splitlines()) == printed.strip()


def test_the_picture_is_what_its_command_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    command = re.search(r"\*`rolecall plan (\S+ --svg) (\S+)`\*", PAGE)
    assert command
    arguments, path = command.groups()
    drawn = tmp_path / "plan.svg"
    CliRunner().invoke(plan, [*arguments.split(), str(drawn)], catch_exceptions=False)
    assert drawn.read_text("utf-8") == (ROOT / path).read_text("utf-8"), "run the command again"


def test_the_json_keys_are_those_of_the_reference() -> None:
    trained = evolve(sample(), training=(TrainingDemand(role="actor", devices=4, offload=True),))
    after: PlacementPlan = plan_placement(trained, Defer())
    as_json = plan_to_json(after, diff_plans(plan_placement(sample(), Defer()), after))
    table = PAGE.split("`--json` prints the plan")[1].split("Exit code 2")[0]
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", table, re.MULTILINE))
    assert set(rows) == set(as_json)
    for key in ("pools", "phases", "replicas", "training"):
        for name in as_json[key][0]:
            assert f"`{name}`" in rows[key]
    for name in as_json["diff"]:
        assert f"`{name}`" in rows["diff"]
