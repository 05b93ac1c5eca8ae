"""What people read: the table of a campaign, the timeline of a schedule."""

from __future__ import annotations

from collections.abc import Iterable

from simulation.campaign import Campaign, table_rows
from simulation.schedule import Outcome
from simulation.world import Row


def summary(campaign: Campaign) -> str:
    """The campaign as a table."""
    rows = table_rows()
    each_ms = 1000 * campaign.seconds / max(campaign.schedules, 1)
    lines = [
        ("schedules", f"{campaign.schedules:,}"),
        ("processor time", f"{campaign.seconds:.1f} s, {each_ms:.2f} ms a schedule"),
        ("messages", f"{campaign.messages:,}"),
        ("steps checked", f"{campaign.steps:,}"),
        ("layouts", _counted(campaign.layouts.items())),
        ("faults", _counted(campaign.faults.items())),
        ("endings", _counted(campaign.endings.items())),
        ("table rows taken", f"{len(rows) - len(campaign.untaken)} of {len(rows)}"),
        ("violations", str(len(campaign.failing))),
    ]
    lines += [("not taken", _words(row)) for row in campaign.untaken]
    lines += [("failing seed", f"{outcome.seed}: {outcome.violation}") for outcome in campaign.failing]
    return "\n".join(f"{name:<18}{value}" for name, value in lines)


def timeline(outcome: Outcome) -> str:
    """A recorded schedule, a line a step: when, who, what."""
    head = f"seed {outcome.seed}, layout {outcome.layout!r}: {outcome.violation or outcome.ending}"
    width = max((len(who) for _, who, _ in outcome.trail), default=0)
    return "\n".join(
        [head, *(f"{time_s:9.3f} s  {who:<{width}}  {what}" for time_s, who, what in outcome.trail)]
    )


def _counted(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts, key=lambda each: -each[1]))


def _words(row: Row) -> str:
    machine, before, after = row
    return f"{machine}: {before} → {after}"
