"""The page on the engine lifecycle shows the transition table that the code has."""

from __future__ import annotations

import re
from pathlib import Path

from rolecall.engines.replica_state import TRANSITIONS

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "engine-lifecycle.md"
ENGINES = Path(__file__).parents[2] / "core" / "rolecall" / "engines"


def test_the_picture_is_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    picture = text.split("<!-- states -->")[1].split("<!-- end -->")[0]
    shown = set(re.findall(r"^ +(\w+) --> (\w+)$", picture, re.MULTILINE))
    assert shown == {
        (before.value, after.value) for before, afters in TRANSITIONS.items() for after in afters
    }


def test_every_file_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    files = {path.name for path in ENGINES.glob("*.py")} - {"__init__.py", "fencing.py", "results.py"}
    assert {name for name in files if f"`{name}`" not in text} == set()
