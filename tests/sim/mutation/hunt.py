"""Looks for what notices a bug: schedules, until one of them breaks an invariant, or a named test."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from attrs import frozen
from simulation.schedule import Player

from mutation.mutant import Mutant

ROOT = Path(__file__).parents[3]
SEEDS = Path(__file__).with_name("seeds.json")
"""Guard → the seed of a schedule that notices its absence."""


@frozen(kw_only=True)
class Catch:
    """What noticed the bug.

    by: the schedule's seed, or the test.
    found: what broke.
    played: how many schedules were played before it.
    """

    by: int | str
    found: str
    played: int = 0


def known_seeds() -> Mapping[str, int]:
    return json.loads(SEEDS.read_text(encoding="utf-8"))


def hunt(mutant: Mutant, seeds: Iterable[int]) -> Catch | None:
    """Return the first schedule that notices the bug; None if none of them does."""
    gc.collect()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with mutant.applied():
        player = Player()
        try:
            for played, seed in enumerate(seeds):
                found = _broken(player, seed)
                if found is not None:
                    return Catch(by=seed, found=found, played=played)
        finally:
            player.close()
            logging.disable(before)
    return None


def tested(mutant: Mutant) -> Catch | None:
    """Run the named test, not from inside a test; None if it passes all the same."""
    assert mutant.other is not None
    with mutant.applied(), contextlib.redirect_stdout(io.StringIO()) as said:
        code = pytest.main(
            [
                "-q",
                "-x",
                "-p",
                "no:cacheprovider",
                "--timeout=60",
                f"--rootdir={ROOT}",
                str(ROOT / mutant.other),
            ]
        )
    if code != pytest.ExitCode.TESTS_FAILED:
        return None
    reason = next((line[2:] for line in said.getvalue().splitlines() if line.startswith("E ")), "it fails")
    return Catch(by=mutant.other.rpartition("/")[2], found=reason.strip())


def _broken(player: Player, seed: int) -> str | None:
    try:
        outcome = player.play(seed)
    except Exception as error:  # a product that stumbles over its own bug has been caught, too
        return f"{type(error).__name__}: {error}"
    return None if outcome.violation is None else str(outcome.violation)
