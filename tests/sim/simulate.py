"""Plays many schedules and prints what came of them, or one seed and prints its timeline.

    python tests/sim/simulate.py --seeds 20000 --budget-s 60 --all-rows
    python tests/sim/simulate.py --seed 4711

``docs/reference/simulation.md`` explains both.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from simulation.campaign import Campaign, run
from simulation.report import summary, timeline
from simulation.schedule import Player


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if no invariant was broken and, if asked for, every row was taken; else 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20_000, help="how many, from --first on (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--budget-s", type=float, default=None, help="stop after so many seconds")
    parser.add_argument("--seed", type=int, default=None, help="play this seed alone and print its timeline")
    parser.add_argument(
        "--all-rows", action="store_true", help="fail if a row of a transition table was never taken"
    )
    parser.add_argument("--log", type=Path, default=None, help="keep the summary so far in this file")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # the timeline tells it all
    if options.seed is not None:
        outcome = Player().play(options.seed, record=True)
        print(timeline(outcome))
        return 0 if outcome.violation is None else 1
    campaign = run(
        range(options.first, options.first + options.seeds),
        budget_s=options.budget_s,
        progress=lambda so_far: None if options.log is None else _keep(options.log, so_far),
    )
    print(summary(campaign))
    for outcome in campaign.failing[:1]:
        print()
        print(timeline(Player().play(outcome.seed, record=True)))
    return 1 if campaign.failing or (options.all_rows and campaign.untaken) else 0


def _keep(log: Path, so_far: Campaign) -> None:
    log.write_text(summary(so_far) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
