"""The map in a pipe or a file: what the terminal's map says, with whole lines below it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from rolecall.api import PlacementPlan
from rolecall.cli.plan import plan
from rolecall.placement.pictures.legend import plan_sheet
from rolecall.placement.pictures.plain_map import plain_map
from rolecall.placement.pictures.terminal_map import render_map
from rolecall_placement.decoupled import Decoupled

EXAMPLE = Path(__file__).parents[3] / "examples" / "layouts" / "roll-rlvr-judge-8.toml"


def test_it_is_the_terminal_map_without_colours(uneven: PlacementPlan) -> None:
    sheet = plan_sheet(uneven)
    out = io.StringIO()
    Console(file=out, width=120).print(render_map(sheet))
    shown = "\n".join(line.rstrip() for line in out.getvalue().splitlines())
    assert plain_map(sheet, 120) == shown


def test_in_a_narrow_pipe_the_map_is_folded_and_the_table_is_not(
    planned: Callable[..., PlacementPlan],
) -> None:
    sheet = plan_sheet(planned(Decoupled(), ("writer", 30, 1)))
    map_, _, table = plain_map(sheet, 40).partition("\n\n      role")
    drawn = [line for line in map_.splitlines() if line.startswith("    ")]
    assert max(map(len, drawn)) <= 40 < max(map(len, table.splitlines()))


@pytest.mark.parametrize(("charset", "engines"), [("utf-8", "6 × 1 device "), ("ascii", "6 x 1 device ")])
def test_the_command_prints_it_in_the_characters_that_the_reader_has(charset: str, engines: str) -> None:
    shown = CliRunner(charset=charset).invoke(plan, [str(EXAMPLE)], env={"COLUMNS": "30"})
    assert shown.exit_code == 0
    assert engines in shown.output
    assert "8 processes of actor" in shown.output


def test_colours_can_be_had_in_a_pipe() -> None:
    shown = CliRunner().invoke(
        plan, [str(EXAMPLE)], env={"FORCE_COLOR": "1", "TERM": "xterm-256color"}, color=True
    )
    assert "\x1b[" in shown.output
