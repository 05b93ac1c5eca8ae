"""The map that people read in a terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from textwrap import dedent

import pytest
from rich.console import Console

from rolecall.api import Nodes, PlacementPlan
from rolecall.placement.pictures.legend import plan_sheet
from rolecall.placement.pictures.terminal_map import render_map
from rolecall_placement.decoupled import Decoupled
from rolecall_placement.defer import Defer
from rolecall_placement.split import Split

Planned = Callable[..., PlacementPlan]


def shown(plan: PlacementPlan, width: int = 100, *, encoding: str = "utf-8", colour: bool = False) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(file=file, width=width, force_terminal=colour, color_system="256" if colour else None)
    console.print(render_map(plan_sheet(plan)))
    file.flush()
    return raw.getvalue().decode(encoding)


def lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


def test_roles_side_by_side_are_shown_in_one_row(planned: Planned) -> None:
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


def test_roles_in_turn_have_a_row_each_and_say_what_they_share(planned: Planned) -> None:
    plan = planned(Defer(), ("writer", 4, 1), ("judge", 1, 2), nodes=Nodes.of([2, 2]))
    text = lines(shown(plan))
    assert text.startswith("defer · 4 GPU in 1 pool · 2 phases, one at a time")
    assert dedent("""\
            node    0     1
            bundle  0 1   2 3
            writer  W W │ W W
            judge   J─J │ . .""").replace("\n", "\n    ") in text  # fmt: skip
    assert "0.5 or 1" in text
    assert "writer and judge take turns on bundles 0-1." in text


def test_every_pool_has_its_own_map(planned: Planned) -> None:
    text = shown(planned(Decoupled(), ("writer", 2, 1), ("judge", 1, 2)))
    assert "2 pools" in text
    assert text.index("pool writer: 2 GPU") < text.index("all together  W W")
    assert text.index("all together  W W") < text.index("pool judge: 2 GPU") < text.index("all together  J─J")


def test_a_plan_without_devices_is_one_line() -> None:
    empty = PlacementPlan(mode="any", pools=(), replicas=(), phases=())
    assert shown(empty) == "any · no role needs a device\n"


def test_a_terminal_without_unicode_gets_the_same_map_in_ascii(planned: Planned) -> None:
    plan = planned(Split(), ("writer", 2, 2), ("judge", 1, 2), nodes=Nodes.of([2, 2, 2]))
    text = shown(plan, encoding="ascii")
    assert "W-W | W-W | J-J" in text
    assert "2 x 2 devices" in text


def test_only_a_terminal_gets_colours(planned: Planned) -> None:
    plan = planned(Split(), ("writer", 2, 1), ("judge", 1, 1), nodes=Nodes.of([3]))
    assert "\x1b" not in shown(plan)
    coloured = shown(plan, colour=True)
    row = next(line for line in coloured.splitlines() if "inference" in line)
    styles = {letter: set(re.findall(rf"\x1b\[([0-9;]+)m{letter}\x1b", row)) for letter in "WJ"}
    assert len(styles["W"]) == len(styles["J"]) == 1
    assert styles["W"] != styles["J"], "each role has a colour of its own"


def test_a_letter_stands_for_one_role_only(planned: Planned) -> None:
    text = shown(
        planned(Split(), ("judge", 1, 1), ("jury", 1, 1), ("jj", 1, 1), ("j", 1, 1), nodes=Nodes.of([4]))
    )
    row = next(line for line in text.splitlines() if "inference" in line)
    letters = row.split()[1:]
    assert letters[:2] == ["J", "U"]
    assert len(set(letters)) == 4


def test_unequal_nodes_are_ruled_off_and_the_trainer_is_on_the_map(uneven: PlacementPlan) -> None:
    assert lines(shown(uneven)) == dedent("""\
        defer · 20 GPU in 1 pool · 4 phases, one at a time

          pool shared: 20 GPU, 2 nodes of 8 + 1 of 4
            node      0                         1                         2
            bundle    0  1  2  3  4  5  6  7    8  9  10 11 12 13 14 15   16 17 18 19
            rollout   R──R──R──R──R──R──R──R  │ R──R──R──R──R──R──R──R  │ .  .  .  .
            judge     J──J──J──J──J──J──J──J──┼─J──J──J──J──J──J──J──J  │ .  .  .  .
            teacher   T──T  T──T  T──T  T──T  │ T──T  .  .  .  .  .  .  │ .  .  .  .
            training  A  A  A  A  A  A  A  A  │ A  A  A  A  A  A  A  A  │ C  C  C  C

              role        model        engines                pool     bundles   device share
          R   rollout     m0           2 × 8 devices          shared   0-15      0.25
          J   judge       m0           1 × 16 devices         shared   0-15      0.25
          T   teacher     m0           5 × 2 devices          shared   0-9       0.25
          A   actor       (training)   16 processes           shared   0-15      0.25 or 0.3333
          C   critic      (training)   4 processes            shared   16-19     1
          A   reference   (training)   8 processes of actor   shared   0-7       0.25

          rollout, judge, teacher and actor take turns on bundles 0-9.
          rollout, judge and actor take turns on bundles 10-15.""")


@pytest.mark.parametrize(("width", "words_are_whole"), [(44, False), (60, True), (90, True)])
def test_a_narrow_terminal_shows_the_whole_table(
    uneven: PlacementPlan, width: int, words_are_whole: bool
) -> None:
    table = shown(uneven, width).split("take turns")[0].rsplit("\n\n", 2)[1]
    assert max(map(len, table.splitlines())) <= width
    letters = [line[2] for line in table.splitlines() if line[2:3].strip()]
    assert letters == list("RJTACA")
    whole = all(word in table for word in ("reference", "(training)", "processes", "0.3333"))
    assert whole is words_are_whole


def test_a_wide_pool_is_folded_at_nodes_and_repeats_are_counted(planned: Planned) -> None:
    plan = planned(Defer(), ("writer", 128, 8), ("judge", 40, 4), nodes=Nodes.equal(1024, per_node=8))
    text = shown(plan, width=100)
    assert max(map(len, text.splitlines())) <= 100
    assert len(text.splitlines()) < 40
    assert "bundles 40-159: 0-39 repeated 3 times" in text
    assert "bundles 200-999: 160-199 repeated 20 times" in text
    rows = [line.split() for line in text.splitlines() if line.strip().startswith("judge   ")]
    assert [len(row) for row in rows[:2]] == [1 + 10 + 4, 1 + 40 + 4], "five whole nodes, four rules"


def test_lines_that_only_repeat_together_are_folded_too(planned: Planned) -> None:
    plan = planned(Split(), ("writer", 64, 16), nodes=Nodes.equal(1024, per_node=8))
    text = shown(plan, width=104)
    assert "bundles 80-959: 0-79 repeated 11 times" in text, "five nodes a line, an engine on two of them"
    assert len([line for line in text.splitlines() if line.strip().startswith("inference")]) == 2 + 2


def test_what_differs_in_a_node_only_is_not_folded_away(planned: Planned) -> None:
    plan = planned(Split(), ("writer", 36, 4), nodes=Nodes.of([8] * 16 + [4] * 4))
    text = shown(plan, width=50)
    assert "bundles 16-127: 0-15 repeated 7 times" in text
    last = next(line for line in text.splitlines() if line.split()[:2] == ["bundle", "128"])
    assert last.split() == ["bundle", "128", "132", "136"]


def test_many_runs_of_bundles_are_only_counted(planned: Planned) -> None:
    plan = planned(Split(), ("writer", 40, 3), nodes=Nodes.of([4] * 40))
    text = shown(plan)
    assert "120 of 0-158" in text
    assert "Nobody uses 40 of bundles 3-159." in text


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize(
    "nodes", [[1], [7], [1] * 65, [3] * 21 + [2], [8] * 30 + [5] * 12, [100] * 3, [300, 7]]
)
def test_every_bundle_is_on_the_map_whatever_the_width(
    planned: Planned, width: int, nodes: list[int]
) -> None:
    devices = sum(nodes)
    text = shown(planned(Split(), ("writer", devices, 1), nodes=Nodes.of(nodes)), width=width)
    assert max(len(line) for line in text.split("      role")[0].splitlines()[1:]) <= width
    seen = sum(line.count("W") for line in text.splitlines() if line.strip().startswith("inference"))
    folded = re.findall(r"bundles (\d+)-(\d+): .* repeated", text)
    assert seen + sum(int(last) - int(first) + 1 for first, last in folded) == devices
