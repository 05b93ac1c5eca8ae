"""Many schedules: seeds in a row, within a budget of time, and what came of them.

Rows of the transition tables that were taken are counted against the tables themselves, so a row that is
added to a table and that no schedule takes is seen.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable

from attrs import define, field

from rolecall.engines import replica_state
from rolecall.leases import batch_state, lease_state, operation
from rolecall.scaling import scale_state
from simulation.schedule import Outcome, Player
from simulation.world import Row

_BETWEEN_COLLECTIONS = 500


def table_rows() -> list[Row]:
    """Every row of every table: machine, from (None for a first state), to."""
    tables = {
        "replica": replica_state.TRANSITIONS,
        "lease": lease_state.TRANSITIONS,
        "batch": batch_state.TRANSITIONS,
        "operation": operation.TRANSITIONS,
        "scaling": scale_state.TRANSITIONS,
    }
    return [
        (machine, str(before), str(after))
        for machine, table in tables.items()
        for before, targets in table.items()
        for after in sorted(targets)
    ]


@define(kw_only=True)
class Campaign:
    """What came of many schedules. ``seconds`` are processor time."""

    schedules: int = 0
    seconds: float = 0.0
    messages: int = 0
    steps: int = 0
    failing: list[Outcome] = field(factory=list)
    layouts: Counter[str] = field(factory=Counter)
    faults: Counter[str] = field(factory=Counter)
    endings: Counter[str] = field(factory=Counter)
    rows: set[Row] = field(factory=set)

    @property
    def untaken(self) -> list[Row]:
        """Rows of the tables that no schedule took."""
        return [row for row in table_rows() if row not in self.rows]


def run(
    seeds: Iterable[int],
    *,
    budget_s: float | None = None,
    most_failing: int = 5,
    progress: Callable[[Campaign], None] = lambda campaign: None,
) -> Campaign:
    """Play one schedule a seed; stops early when the budget is used up or enough have failed.

    ``progress`` is called now and then.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    collecting = gc.isenabled()
    gc.disable()  # every schedule leaves cycles of tasks: collected now and then, all at once
    campaign, player = Campaign(), Player()
    began, cpu_began = time.monotonic(), time.process_time()
    try:
        for seed in seeds:
            if budget_s is not None and time.monotonic() - began >= budget_s:
                break
            outcome = player.play(seed)
            _count(campaign, outcome)
            if campaign.schedules % _BETWEEN_COLLECTIONS == 0:
                gc.collect()
                campaign.seconds, campaign.rows = time.process_time() - cpu_began, player.rows
                progress(campaign)
            if len(campaign.failing) >= most_failing:
                break
    finally:
        campaign.seconds = time.process_time() - cpu_began
        campaign.rows = player.rows
        player.close()
        logging.disable(before)
        if collecting:
            gc.enable()
    return campaign


def _count(campaign: Campaign, outcome: Outcome) -> None:
    campaign.schedules += 1
    campaign.messages += outcome.messages
    campaign.steps += outcome.steps
    campaign.layouts[outcome.layout] += 1
    campaign.faults.update(outcome.faults)
    campaign.endings[outcome.ending] += 1
    if outcome.violation is not None:
        campaign.failing.append(outcome)
