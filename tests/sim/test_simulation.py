"""Schedules with faults: no invariant breaks, a seed is one schedule everywhere, a broken guard is seen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.campaign import run, table_rows
from simulation.chance import Blow, Fate
from simulation.report import summary, timeline
from simulation.schedule import Player

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "reference" / "simulation.md"

_HASHES = """
import hashlib, logging
logging.disable(logging.CRITICAL)
from simulation.schedule import Player
player = Player()
print([hashlib.sha256(repr(player.play(seed, record=True).trail).encode()).hexdigest() for seed in range(20)])
"""


def test_no_schedule_breaks_an_invariant() -> None:
    campaign = run(range(200))
    assert not campaign.failing, summary(campaign)
    assert len(table_rows()) - len(campaign.untaken) > 20, summary(campaign)


def test_a_seed_is_one_schedule_in_every_process() -> None:
    def played(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", _HASHES],
            cwd=FOLDER,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert played("1") == played("2")


def test_a_broken_guard_is_found_and_its_timeline_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolecall.leases.coordinator.doubt", lambda answer, **asked: "")
    campaign = run(range(500), most_failing=1)
    assert campaign.failing, "an answer without proof was taken for one, and nobody saw it"
    seed = campaign.failing[0].seed
    told = timeline(Player().play(seed, record=True))
    assert f"seed {seed}" in told.splitlines()[0]
    assert "VIOLATION" in told.splitlines()[-1]
    assert re.search(r"\d s +coordinator +lease of \w+: \w+ → \w+", told)


def test_the_page_lists_every_rule_and_every_fault() -> None:
    page = PAGE.read_text(encoding="utf-8")
    code = "".join(file.read_text(encoding="utf-8") for file in (FOLDER / "simulation").glob("*.py"))
    rules = set(re.findall(r'violate\(\s*"([^"]+)"', code))
    assert rules == set(re.findall(r"^\| \*(.+?)\* \|", page, flags=re.MULTILINE))
    assert {*Fate, *Blow} == set(re.findall(r"^\| `(.+?)` \|", page, flags=re.MULTILINE))
