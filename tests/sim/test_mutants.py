"""The product's guards are taken away one by one, and each time somebody notices."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from mutation.hunt import hunt, known_seeds
from mutation.mutant import Mutant
from mutation.mutants import MUTANTS, page_table
from simulation.schedule import Player

SIMULATED = [mutant for mutant in MUTANTS if mutant.other is None]
SEARCHED = 400
"""Seeds that are tried after a known one has not noticed, as it is another schedule by now."""


@pytest.mark.parametrize("mutant", SIMULATED, ids=lambda mutant: f"{mutant.part}: {mutant.guard}")
def test_a_schedule_notices_that_a_guard_is_gone(mutant: Mutant) -> None:
    seed = known_seeds().get(mutant.guard)
    first = [] if seed is None else [seed]
    catch = hunt(mutant, itertools.chain(first, range(SEARCHED)))
    assert catch is not None, (
        f"{len(first) + SEARCHED} schedules did not; find one: "
        f"python3 tests/sim/mutate.py --seeds 5000 --write --only {mutant.guard!r}"
    )


def test_the_schedules_that_notice_break_nothing_otherwise() -> None:
    player = Player()
    try:
        broken = [seed for seed in set(known_seeds().values()) if player.play(seed).violation is not None]
    finally:
        player.close()
    assert broken == []


def test_a_named_test_notices_what_the_simulation_has_no_part_of() -> None:
    command = [sys.executable, str(Path(__file__).with_name("mutate.py")), "--tests"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_left_of_a_bug_afterwards() -> None:
    mutant = MUTANTS[0]
    sound = mutant.function().__code__
    with mutant.applied():
        assert mutant.function().__code__ is not sound
    assert mutant.function().__code__ is sound


def test_every_bug_is_another_one() -> None:
    assert len({mutant.guard for mutant in MUTANTS}) == len(MUTANTS) >= 25
    assert known_seeds().keys() <= {mutant.guard for mutant in SIMULATED}


def test_the_page_lists_them() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "mutation-check.md"
    assert page_table() in page.read_text(encoding="utf-8"), f"put this on {page}:\n{page_table()}"
