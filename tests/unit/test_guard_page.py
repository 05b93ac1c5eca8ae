"""The page on the guard shows the tables that the code has."""

from __future__ import annotations

import re
from pathlib import Path

from rolecall.guard.allowed import ENTRIES, Passage
from rolecall.guard.permits import NEXT_STATES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "admission-guard.md"


def part(name: str) -> str:
    return PAGE.read_text(encoding="utf-8").split(f"<!-- {name} -->")[1].split("<!-- end -->")[0]


def test_the_picture_is_the_table() -> None:
    shown = set(re.findall(r"^ +(\w+) --> (\w+)$", part("states"), re.MULTILINE))
    assert shown == {(before.name, after.name) for before, afters in NEXT_STATES.items() for after in afters}


def test_the_paths_are_those_that_pass() -> None:
    words = {
        Passage.WORK: "through the open door",
        Passage.CANCEL: "always",
        Passage.METADATA: "always, filtered",
    }
    shown = re.findall(r"^\| (\w+) \| `(.+)` \| (.+) \|$", part("paths"), re.MULTILINE)
    assert shown == [(entry.method, entry.path, words[entry.passage]) for entry in ENTRIES.values()]
