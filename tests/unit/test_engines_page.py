"""The page on the engine lifecycle names every file of its package."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "engine-lifecycle.md"
ENGINES = Path(__file__).parents[2] / "core" / "rolecall" / "engines"


def test_every_file_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    files = {path.name for path in ENGINES.glob("*.py")} - {"__init__.py", "fencing.py", "results.py"}
    assert {name for name in files if f"`{name}`" not in text} == set()
