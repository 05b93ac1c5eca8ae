"""What is imported is declared, what is declared is imported, and each has a decision record."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
OF_AN_EXTRA = {
    "datasets": "datasets",
    "math_verify": "math-verify",
    "omegaconf": "TransferQueue",
    "pyarrow": "pyarrow",
    "pynvml": "nvidia-ml-py",
    "sglang_router": "sglang-router",
    "tensordict": "TransferQueue",
    "torch": "torch",
    "transfer_queue": "TransferQueue",
}
"""Import name → the extra's requirement that brings it."""

OF_PROMPTS = "core/rolecall/batches/prompts_tables.py"
"""The one module outside plugins that imports what an extra brings (decision 0028)."""

OF_TESTS = "core/rolecall/testing/"
"""The kit for plugin authors' tests may import the test runner, which its extra brings."""
RUNNER = {"pytest": "pytest", "pytest_asyncio": "pytest-asyncio"}
"""Import name → requirement of the extra ``testing``."""


def configuration() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def bare(requirement: str) -> str:
    """Return a requirement's name without version and extras, normalised."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name.group()).lower()


def declared() -> set[str]:
    return {bare(requirement) for requirement in configuration()["project"]["dependencies"]}


def optional() -> set[str]:
    extras = configuration()["project"]["optional-dependencies"]
    return {bare(requirement) for requirements in extras.values() for requirement in requirements}


def imported() -> list[tuple[str, str]]:
    """Return each foreign top-level module that the distribution imports, with every place."""
    roots = [
        ROOT / package
        for package in configuration()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    ]
    known = sys.stdlib_module_names | {root.name for root in roots}
    return [
        (top, f"{file.relative_to(ROOT)}:{line}")
        for root in roots
        for file in sorted(root.rglob("*.py"))
        for module, line in absolute_imports(ast.parse(file.read_text(encoding="utf-8")))
        if (top := module.partition(".")[0]) not in known
    ]


def absolute_imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield module and line of each import but those that may fail: ``try: ... except ImportError``."""
    guarded = {
        id(statement)
        for block in ast.walk(tree)
        if isinstance(block, ast.Try)
        and any(isinstance(h.type, ast.Name) and h.type.id == "ImportError" for h in block.handlers)
        for statement in block.body
    }
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module, node.lineno


def test_every_import_is_declared() -> None:
    owners = packages_distributions()
    undeclared: list[str] = []
    for module, place in imported():
        if module in OF_AN_EXTRA or (module in RUNNER and place.startswith(OF_TESTS)):
            continue
        if not {bare(owner) for owner in owners.get(module, ())} & declared():
            undeclared.append(f"{place}: {module} is in no declared dependency")
    assert undeclared == []


def test_every_dependency_is_used() -> None:
    owners = packages_distributions()
    used = {bare(owner) for module, _ in imported() for owner in owners.get(module, ())}
    assert declared() - used == set()


def test_an_extra_is_imported_by_plugins_and_the_reader_of_tables_only() -> None:
    core = [place for module, place in imported() if module in OF_AN_EXTRA]
    assert [place for place in core if place.startswith("core/") and not place.startswith(OF_PROMPTS)] == []
    assert {bare(name) for name in OF_AN_EXTRA.values()} <= optional()


def test_the_kits_extra_is_the_test_runner_and_nothing_else() -> None:
    extra = configuration()["project"]["optional-dependencies"]["testing"]
    assert {bare(requirement) for requirement in extra} == set(RUNNER.values())
    assert {module for module, place in imported() if place.startswith(OF_TESTS)} >= set(RUNNER)


@pytest.mark.parametrize("name", sorted(declared() | optional()))
def test_a_decision_record_tells_why(name: str) -> None:
    named: set[str] = set()
    for record in DECISIONS.glob("[0-9]*.md"):
        for line in re.findall(r"^Depends on: (.*)$", record.read_text(encoding="utf-8"), re.MULTILINE):
            named |= {bare(requirement) for requirement in re.findall(r"`([^`]+)`", line)}
    assert name in named, f"{name}: write docs/decisions/NNNN-....md with a line: Depends on: `{name}`"


def test_decision_numbers_are_unique_and_stand_in_the_titles() -> None:
    numbers = [record.name[:4] for record in sorted(DECISIONS.glob("[0-9]*.md"))]
    assert len(numbers) == len(set(numbers))
    for record in DECISIONS.glob("[0-9]*.md"):
        assert record.read_text(encoding="utf-8").startswith(f"# {record.name[:4]}: "), record.name
