"""The map that people read in a terminal."""

from __future__ import annotations

import io
import re
from textwrap import dedent

import pytest
from attrs import evolve
from rich.console import Console

from rolecall.api import Nodes, PlacementMode, PlacementPlan, RoleName, TrainingDemand
from rolecall.placement.pictures.legend import plan_sheet
from rolecall.placement.pictures.terminal_map import render_map
from rolecall.testing.demands import placement_job, role_demand
from rolecall_placement.decoupled import Decoupled
from rolecall_placement.defer import Defer
from rolecall_placement.split import Split


def planned(
    mode: PlacementMode,
    *roles: tuple[str, int, int],
    nodes: Nodes | None = None,
    training: tuple[TrainingDemand, ...] = (),
) -> PlacementPlan:
    """A plan of roles given as (name, replicas, devices per engine), each with a model "m0"."""
    demands = (role_demand(name, (replicas, devices)) for name, replicas, devices in roles)
    job = placement_job(*demands, training=training)
    answer = mode.plan(evolve(job, nodes=nodes or job.nodes))
    assert isinstance(answer, PlacementPlan), answer
    return answer


def trainer(role: str, devices: int, *, on: str | None = None) -> TrainingDemand:
    return TrainingDemand(
        role=RoleName(role), devices=devices, offload=True, on=None if on is None else RoleName(on)
    )


def shown(plan: PlacementPlan, width: int = 100, *, encoding: str = "utf-8", colour: bool = False) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(file=file, width=width, force_terminal=colour, color_system="256" if colour else None)
    console.print(render_map(plan_sheet(plan)))
    file.flush()
    return raw.getvalue().decode(encoding)


def lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


def test_roles_side_by_side_are_shown_in_one_row() -> None:
    plan = planned(Split(), ("writer", 4, 1), ("judge", 1, 2), ("scorer", 1, 1), nodes=Nodes.of([8]))
    assert lines(shown(plan)) == dedent("""\
        split · 8 GPU in 1 pool · 1 phase: all roles awake together

          pool shared: 8 GPU, 8 per node
            bundle     0 1 2 3 4 5 6 7
            inference  W W W W J─J S .

              role     model   engines         pool     bundles   device share
          W   writer   m0      4 × 1 device    shared   0-3       1
          J   judge    m0      1 × 2 devices   shared   4-5       1
          S   scorer   m0      1 × 1 device    shared   6         1

          Nobody uses bundle 7.""")


def test_roles_in_turn_have_a_row_each_and_say_what_they_share() -> None:
    plan = planned(Defer(), ("writer", 4, 1), ("judge", 1, 2), nodes=Nodes.of([2, 2]))
    text = lines(shown(plan))
    assert text.startswith("defer · 4 GPU in 1 pool · 2 phases, one at a time")
    assert dedent("""\
            node    0     1
            bundle  0 1   2 3
            writer  W W │ W W
            judge   J─J │ . .""").replace("\n", "\n    ") in text  # fmt: skip
    assert "0.5 or 1" in text
    assert "writer and judge take turns on bundle 0-1." in text


def test_every_pool_has_its_own_map() -> None:
    text = shown(planned(Decoupled(), ("writer", 2, 1), ("judge", 1, 2)))
    assert "2 pools" in text
    assert text.index("pool writer: 2 GPU") < text.index("inference  W W")
    assert text.index("inference  W W") < text.index("pool judge: 2 GPU") < text.index("inference  J─J")


def test_a_plan_without_devices_is_one_line() -> None:
    empty = PlacementPlan(mode="any", pools=(), replicas=(), phases=())
    assert shown(empty) == "any · no role needs a device\n"


def test_a_terminal_without_unicode_gets_the_same_map_in_ascii() -> None:
    plan = planned(Split(), ("writer", 2, 2), ("judge", 1, 2), nodes=Nodes.of([2, 2, 2]))
    text = shown(plan, encoding="ascii")
    assert "W-W | W-W | J-J" in text
    assert "2 x 2 devices" in text


def test_only_a_terminal_gets_colours() -> None:
    plan = planned(Split(), ("writer", 2, 1), ("judge", 1, 1), nodes=Nodes.of([3]))
    assert "\x1b" not in shown(plan)
    coloured = shown(plan, colour=True)
    row = next(line for line in coloured.splitlines() if "inference" in line)
    styles = {letter: set(re.findall(rf"\x1b\[([0-9;]+)m{letter}\x1b", row)) for letter in "WJ"}
    assert len(styles["W"]) == len(styles["J"]) == 1
    assert styles["W"] != styles["J"], "each role has a colour of its own"


def test_a_letter_stands_for_one_role_only() -> None:
    text = shown(
        planned(Split(), ("judge", 1, 1), ("jury", 1, 1), ("jj", 1, 1), ("j", 1, 1), nodes=Nodes.of([4]))
    )
    row = next(line for line in text.splitlines() if "inference" in line)
    letters = row.split()[1:]
    assert letters[:2] == ["J", "U"]
    assert len(set(letters)) == 4


def test_a_wide_pool_is_folded_at_nodes_and_repeats_are_counted() -> None:
    plan = planned(Defer(), ("writer", 128, 8), ("judge", 40, 4), nodes=Nodes.equal(1024, per_node=8))
    text = shown(plan, width=100)
    assert max(map(len, text.splitlines())) <= 100
    assert len(text.splitlines()) < 40
    assert "bundles 40-159: 3 lines like 0-39" in text
    assert "bundles 200-1023: 21 lines like 160-199" in text
    rows = [line.split() for line in text.splitlines() if line.strip().startswith("judge   ")]
    assert [len(row) for row in rows[:2]] == [1 + 10 + 4, 1 + 40 + 4], "five whole nodes, four rules"


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("per_node", [1, 3, 8, 100])
@pytest.mark.parametrize("devices", [1, 7, 65, 300])
def test_every_bundle_is_on_the_map_whatever_the_width(width: int, per_node: int, devices: int) -> None:
    plan = planned(Split(), ("writer", devices, 1), nodes=Nodes.equal(devices, per_node=per_node))
    text = shown(plan, width=width)
    assert max(len(line) for line in text.split("      role")[0].splitlines()[1:]) <= width
    seen = sum(line.count("W") for line in text.splitlines() if line.strip().startswith("inference"))
    counted = 0
    for line in text.splitlines():
        if " lines like " in line or " line like " in line:
            first, last = line.split()[1].rstrip(":").split("-")
            counted += int(last) - int(first) + 1
    assert seen + counted == devices
