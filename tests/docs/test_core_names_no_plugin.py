"""The core branches on no plugin's name: none of them stands in it as a string."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "rolecall"

ALLOWED = {
    ("config/specs.py", "round_robin"),  # the routing policy of a job file that names none
    ("discovery/snapshot.py", "sglang_router"),  # the word of schema 2 for any router
}

WORDS = frozenset({"affinity", "decoupled", "defer", "embedded", "external", "split"})
"""Names that are also plain words: only the whole string, or the name in quotes, counts."""


def first_party_names() -> frozenset[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = project["entry-points"]
    return frozenset(
        name for group, names in groups.items() if group.startswith("rolecall.") for name in names
    )


def strings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield every string of the code that is not a docstring or a string standing alone."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node


def names_in(source: str, names: frozenset[str]) -> list[tuple[int, str]]:
    coined = "|".join(map(re.escape, sorted(names - WORDS)))
    plain = "|".join(map(re.escape, sorted(names & WORDS)))
    name = re.compile(rf"\b({coined})\b|^/?({plain})/?$|[\"'`]({plain})[\"'`]", re.IGNORECASE)
    return [
        (node.lineno, next(filter(None, match.groups())).lower())
        for node in strings(ast.parse(source))
        for match in name.finditer(node.value)
    ]


@pytest.mark.parametrize(
    "file", sorted(CORE.rglob("*.py")), ids=lambda file: file.relative_to(CORE).as_posix()
)
def test_no_plugin_name_in(file: Path) -> None:
    shown = file.relative_to(CORE).as_posix()
    found = [
        f"{shown}:{line}: {name}"
        for line, name in names_in(file.read_text(encoding="utf-8"), first_party_names())
        if (shown, name) not in ALLOWED
    ]
    assert not found, "the core learns names from plugins and job files, it doesn't know them"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('if role == "judge": pass', [(1, "judge")]),
        ('"""About the judge."""', []),
        ('def f():\n    """judge"""\n    return f"/judge/{x}"', [(3, "judge")]),
        ('match x:\n    case "Judge": pass', [(2, "judge")]),
        ('x = "judge_log_probs", judge.split("s")', []),
        ('x = "a split worker", f"{affinity} key"', []),
        ('if mode == "split" or path == "/split": pass', [(1, "split"), (1, "split")]),
        ("hint = 'write mode = \"split\"'", [(1, "split")]),
    ],
)
def test_the_search_itself(source: str, found: list[tuple[int, str]]) -> None:
    assert names_in(source, frozenset({"judge", "split"})) == found
