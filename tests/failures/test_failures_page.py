"""docs/reference/failures.md: each row has a test of its name, and says what that test says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "failures.md"


@frozen
class Row:
    """A row of the page, or the test of one."""

    file: str
    test: str
    says: str


def name_of_test(failure: str) -> str:
    """The test of a row is named after it."""
    return f"test_{re.sub(r'[^a-z0-9]+', '_', failure.lower()).strip('_')}"


def on_the_page() -> list[Row]:
    found: list[Row] = []
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        (file,) = re.findall(r"\]\(\.\./\.\./(tests/failures/\w+\.py)\)", section)
        for failure, says, test in re.findall(r"^\| (.+) \| (.+) \| `(test_\w+)` \|$", section, re.MULTILINE):
            assert test == name_of_test(failure)
            found.append(Row(file, test, says))
    return found


def written() -> list[Row]:
    found: list[Row] = []
    for path in sorted((ROOT / "tests" / "failures").glob("test_failing_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                says = " ".join((ast.get_docstring(node) or "").split())
                found.append(Row(path.relative_to(ROOT).as_posix(), node.name, says))
    return found


def test_every_row_has_its_test_and_every_test_its_row() -> None:
    assert sorted(on_the_page(), key=lambda row: row.test) == sorted(written(), key=lambda row: row.test)
    assert len(on_the_page()) == 17
