"""What differs between two plans: as values, in words, and on the map."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import pairwise
from random import Random
from textwrap import dedent

import pytest
from rich.console import Console

from rolecall.api import Nodes, PlacementPlan
from rolecall.placement.pictures.blocks import Sign
from rolecall.placement.pictures.diff_sheet import diff_sheet
from rolecall.placement.pictures.html_page import render_html
from rolecall.placement.pictures.plan_json import plan_to_json
from rolecall.placement.pictures.svg import render_svg
from rolecall.placement.pictures.terminal_map import render_map
from rolecall.placement.plan import ReplicaPlacement
from rolecall.placement.plan_diff import Change, PlanDiff, diff_plans
from rolecall.testing.demands import any_job
from rolecall_placement.decoupled import Decoupled
from rolecall_placement.defer import Defer
from rolecall_placement.split import Split

Planned = Callable[..., PlacementPlan]


@pytest.fixture
def diff(planned: Planned) -> PlanDiff:
    """A judge that grows, a guard that comes, a teacher that goes, a trainer on one node more."""
    before = planned(
        Split(),
        ("rollout", 8, 1),
        ("judge", 1, 4),
        ("teacher", 2, 2),
        nodes=Nodes.of([8, 8]),
        training=(("actor", 16),),
    )
    after = planned(
        Split(),
        ("rollout", 8, 1),
        ("judge", 1, 8),
        ("guard", 2, 1),
        nodes=Nodes.of([8, 8, 4]),
        training=(("actor", 20),),
    )
    return diff_plans(before, after)


def shown(diff: PlanDiff) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(render_map(diff_sheet(diff, before="a.toml", after="b.toml")))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip()


def test_the_map_shows_once_what_is_the_same_and_twice_what_is_not(diff: PlanDiff) -> None:
    assert shown(diff) == dedent("""\
        a.toml → b.toml · 2 resized, 2 appeared, 2 vanished

          pool shared: 16 GPU, 8 per node → 20 GPU, 2 nodes of 8 + 1 of 4
            node       0                         1                         2
            bundle     0  1  2  3  4  5  6  7    8  9  10 11 12 13 14 15   16 17 18 19
          - inference  R  R  R  R  R  R  R  R  │ J──J──J──J  T──T  T──T  │
          + inference  R  R  R  R  R  R  R  R  │ J──J──J──J──J──J──J──J  │ G  G  .  .
          - training   A  A  A  A  A  A  A  A  │ A  A  A  A  A  A  A  A  │
          + training   A  A  A  A  A  A  A  A  │ A  A  A  A  A  A  A  A  │ A  A  A  A

                            change
              pool shared   16 GPU, 8 per node → 20 GPU, 2 nodes of 8 + 1 of 4
          R   rollout       stays as it is
          J   judge         m0/replica-0 resized: bundles 8-11 → 8-15
          G   guard         2 engines of m0 appeared: bundles 16-17
          G   guard         takes turns with actor
          A   actor         its processes resized: bundles 0-15 → 0-19
          A   actor         takes turns with guard, judge and rollout; before, with judge, rollout and
                            teacher
          T   teacher       2 engines of m0 vanished: bundles 12-15""")


def test_another_mode_has_other_phases(planned: Planned) -> None:
    roles = (("rollout", 4, 1), ("judge", 1, 4))
    before, after = (planned(mode, *roles, nodes=Nodes.of([8])) for mode in (Split(), Defer()))
    text = shown(diff_plans(before, after))
    rows = [line.split() for line in text.splitlines() if line.startswith(("  -", "  +"))]
    assert rows == [
        ["-", "inference", *"RRRR", "J─J─J─J"],
        ["+", "rollout", *"RRRR", *"...."],
        ["+", "judge", "J─J─J─J", *"...."],
    ]
    for words in (
        "mode      split → defer",
        "phases    inference → rollout, judge",
        "rollout   takes turns with judge; before, with nobody",
        "judge     m0/replica-0 moved: bundles 4-7 → 0-3",
    ):
        assert words in text


def test_pools_of_their_own_are_named(planned: Planned) -> None:
    before = planned(Decoupled(), ("rollout", 4, 1), ("judge", 1, 4))
    after = planned(Decoupled(), ("rollout", 4, 1), ("scorer", 2, 2))
    text = shown(diff_plans(before, after))
    assert "pool scorer   none → 4 GPU, 4 per node" in text
    assert "scorer        2 engines of m0 appeared: bundles 0-3 of pool scorer" in text
    assert "judge         m0/replica-0 vanished: bundles 0-3 of pool judge" in text
    rows = [line.split() for line in text.splitlines() if "all together" in line]
    assert [row[0] for row in rows] == ["all", "+", "-"], "the pool that stays, the new one, the old one"


def test_bundles_that_are_other_devices_are_not_shown_as_the_same(planned: Planned) -> None:
    roles = (("rollout", 4, 1), ("judge", 1, 2))
    before = planned(Split(), *roles, nodes=Nodes.of([8, 8]))
    after = planned(Split(), *roles, nodes=Nodes.of([4, 4]))
    sheet = diff_sheet(diff_plans(before, after), before="a", after="b")
    assert [[row.sign for row in block.rows] for block in sheet.blocks] == [[Sign.BEFORE], [Sign.AFTER]]


def test_a_plan_does_not_differ_from_itself(uneven: PlacementPlan) -> None:
    diff = diff_plans(uneven, uneven)
    assert diff.empty
    sheet = diff_sheet(diff, before="a.toml", after="b.toml")
    assert sheet.headline == "both jobs get the same layout"
    assert {row.sign for block in sheet.blocks for row in block.rows} == {Sign.BOTH}
    assert {line.cells[1] for line in sheet.lines} == {"stays as it is"}


def test_what_did_not_change_is_faint_in_every_picture(diff: PlanDiff) -> None:
    sheet = diff_sheet(diff, before="a.toml", after="b.toml")
    for text in (render_svg(sheet), render_html(sheet, title="b.toml")):
        assert text.count('class="engine role-0 faint"') == 2 * 8, "the rollout, in both rows"
        assert text.count('class="engine role-1"') == 2, "the judge, small and large"
        assert '<text class="before"' in text
        assert '<text class="after"' in text


def seats(plan: PlacementPlan) -> dict[tuple[object, ...], tuple[str, tuple[int, ...]]]:
    return {
        (tenant.role, tenant.engine if isinstance(tenant, ReplicaPlacement) else None): (
            tenant.pool_id,
            tenant.bundles,
        )
        for tenant in (*plan.replicas, *plan.training)
    }


@pytest.mark.parametrize("seed", range(40))
def test_the_diff_leads_from_one_plan_to_the_other(seed: int) -> None:
    """Done to the older plan, it gives the newer one; every picture of it can be drawn."""
    answers = [
        mode.plan(any_job(Random(number).randrange))
        for number in (seed, seed + 1)
        for mode in (Decoupled(), Split(), Defer())
    ]
    plans = [answer for answer in answers if isinstance(answer, PlacementPlan)]
    for before, after in pairwise(plans):
        diff = diff_plans(before, after)
        reached = seats(before)
        unchanged = 0
        for role in diff.roles:
            unchanged += role.unchanged
            for change in role.changes:
                key = (role.role, change.engine)
                was = reached.pop(key, None)
                assert was == (change.before and (change.before.pool_id, change.before.bundles))
                if change.after:
                    reached[key] = (change.after.pool_id, change.after.bundles)
                assert (change.change is Change.APPEARED) == (was is None)
            assert set(role.conflicts_before) == before.conflicts(role.role)
            assert set(role.conflicts_after) == after.conflicts(role.role)
        assert reached == seats(after)
        assert unchanged == sum(seats(before).get(key) == seat for key, seat in seats(after).items())
        sheet = diff_sheet(diff, before="a", after="b")
        boxes = render_svg(sheet).count("<title>")
        assert boxes == render_html(sheet, title="b").count('class="hint"') > 0
        assert plan_to_json(after, diff)["diff"]["mode"] == {"before": before.mode, "after": after.mode}
