"""Every fenced block of a page has a language, and a check that its language or its page gives it.

Python is type-checked in one run of pyright, strictly where a page shows files that ``rolecall plugins new``
writes, and those are what it writes. TOML, JSON and commands are read here and in ``test_pages``; what is
held equal to code or output by a test of its own page is named below with that test.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import rolecall.api
from rolecall.plugins.kinds import PluginKind
from rolecall.scaffold.distribution import render
from rolecall.scaffold.names import as_argument, choose_names, parse_kind

ROOT = Path(__file__).parents[2]
READ = {"console", "json", "python", "toml"}
"""Languages whose blocks are checked wherever they stand."""

GENERATED = {
    "docs/reference/api.md": "tests/unit/test_api_reference.py",
    "docs/reference/errors.md": "docs/generate_errors_reference.py",
    "docs/reference/refusals.md": "docs/generate_refusals_reference.py",
}
"""Pages whose blocks are written by a script and held equal to what it writes."""

HELD = {
    "docs/explanation/engine-lifecycle.md mermaid": "tests/unit/test_engines_page.py",
    "docs/explanation/leases.md mermaid": "tests/unit/test_leases_docs.py",
    "docs/howto/elasticity.md mermaid": "tests/unit/test_leases_docs.py",
    "docs/reference/admission-guard.md mermaid": "tests/unit/test_guard_page.py",
    "docs/reference/config.md text": "tests/unit/test_config_reference.py",
    "docs/reference/plugins.md text": "tests/unit/test_plugin_reference.py",
}
"""Page and language → the test that compares such blocks with the code."""

PICTURES = {
    "README.md text": "what a run printed, with the times of one machine",
    "docs/explanation/architecture.md mermaid": "a drawing of processes",
    "docs/explanation/batches.md text": "a drawing of turns",
    "docs/explanation/architecture.md text": "a drawing; the rules in it are those of lint-imports",
    "docs/explanation/engine-lifecycle.md text": "a drawing of who commands whom",
    "docs/reference/placement.md text": "a drawing, and a map that tests/unit/test_placement_docs.py prints",
    "docs/reference/roles.md text": "the order of a batch, as a drawing",
    "docs/reference/simulation.md text": "the timeline of a seed, which may be another one when code changes",
    "examples/train/README.md text": "the order of a step, as a drawing",
    "docs/tutorial/quickstart.md text": "what a run printed, with the times of one machine",
}
"""Page and language → why nothing can be checked."""

STUBS = {"docs/reference/plugins.md": "def rolecall_"}
"""Pages with bare signatures, which tests/unit/test_plugin_reference.py compares with the hook specs."""

PROGRAMS = {".", "cd", "curl", "pip", "pytest", "python3", "rolecall", "sqlite3"}
WRITTEN = re.compile(r"^\$ rolecall plugins new ([\w-]+) (\w+)$", re.MULTILINE)
FILE = re.compile(r"# (src/\S+)\n")


def is_generated(page: Any) -> bool:
    return page.name in GENERATED


def test_every_block_has_a_language_and_a_check(pages: list[Any]) -> None:
    unchecked = [
        f"{block.place}: {block.kind or 'no language'}"
        for page in pages
        if not is_generated(page)
        for block in page.blocks(*languages(page))
        if block.kind not in READ and f"{page.name} {block.kind}" not in {**HELD, **PICTURES}
    ]
    assert unchecked == []


def languages(page: Any) -> set[str]:
    return set(re.findall(r"^ *```([\w-]*)$", page.text, re.MULTILINE))


def test_what_is_listed_here_is_there(pages: list[Any]) -> None:
    found = {f"{page.name} {kind}" for page in pages for kind in languages(page) if kind}
    assert (HELD.keys() | PICTURES.keys()) - found == set()
    for place in (*GENERATED.values(), *HELD.values()):
        assert (ROOT / place).is_file(), place


def test_toml_and_json_can_be_read(pages: list[Any]) -> None:
    for page in pages:
        for block in page.blocks("toml"):
            tomllib.loads(block.text)
        for block in page.blocks("json"):
            json.loads(block.text)


# --- commands ---------------------------------------------------------------------------


def typed(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a console block; the other lines are what it said."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.startswith("$ "):
            words = shlex.split(line.removeprefix("$ "), comments=True)
            yield [word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)]


def test_commands_are_of_programs_that_a_reader_has(pages: list[Any]) -> None:
    """``rolecall``'s own words are checked in ``test_pages``."""
    unknown: list[str] = []
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = set(extras["optional-dependencies"])
    for page in pages:
        for block in page.blocks("console"):
            for program, *arguments in typed(block.text):
                scripts = [word for word in (program, *arguments) if word.startswith("scripts/")]
                unknown += [f"{block.place}: {script}" for script in scripts if not (ROOT / script).is_file()]
                beside = program == "python" and (page.path.parent / arguments[0]).is_file()
                if program not in PROGRAMS and not scripts and not beside:
                    unknown.append(f"{block.place}: {program}")
                for asked in re.findall(r"^rolecall\[([\w,-]+)\]$", "\n".join(arguments), re.MULTILINE):
                    unknown += [f"{block.place}: {asked}" for extra in asked.split(",") if extra not in known]
    assert unknown == []


# --- Python -----------------------------------------------------------------------------


def scaffold(kind: str, name: str) -> dict[str, str]:
    """Return what ``rolecall plugins new`` writes."""
    names = choose_names(parse_kind(kind), name, taken=(), reserved=rolecall.api.__all__)
    return render(names, examples=dict.fromkeys(PluginKind, "example"))


def shown_plugins(pages: list[Any]) -> Iterator[tuple[Any, str, dict[str, str]]]:
    """Yield each page that shows a new plugin, its kind, and the files that are written."""
    for page in pages:
        for kind, name in WRITTEN.findall("".join(block.text for block in page.blocks("console"))):
            yield page, kind, scaffold(kind, name)


def test_there_is_a_page_for_every_kind(pages: list[Any]) -> None:
    shown = {kind: page.name for page, kind, _ in shown_plugins(pages)}
    assert shown == {as_argument(kind): f"docs/howto/{as_argument(kind)}-plugin.md" for kind in PluginKind}


def test_the_files_shown_are_those_that_are_written(pages: list[Any]) -> None:
    differs: list[str] = []
    for page, _, texts in shown_plugins(pages):
        for block in page.blocks("python"):
            path = FILE.match(block.text)
            if path is None or texts[path[1]] != block.text[path.end() :]:
                differs.append(f"{block.place}: not what rolecall plugins new writes")
    assert differs == []


@pytest.fixture
def blocks_folder(pages: list[Any], tmp_path: Path) -> Path:
    """All Python of the pages as files: new plugins whole, any other block in a file of its own."""
    roots = ["."]
    for _, kind, texts in shown_plugins(pages):
        for path, text in texts.items():
            file = tmp_path / kind / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        roots.append(f"{kind}/src")
    plugin_pages = {page.name for page, _, _ in shown_plugins(pages)}
    for page in pages:
        stub = STUBS.get(page.name, "\0")
        for block in page.blocks("python"):
            if page.name in plugin_pages or is_generated(page) or block.text.startswith(stub):
                continue
            name = re.sub(r"\W+", "_", block.place)
            (tmp_path / f"{name}.py").write_text(f"# pyright: basic\n{block.text}", encoding="utf-8")
    settings = {
        "include": ["."],
        "exclude": [],
        "extraPaths": roots,
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    return tmp_path


@pytest.mark.skipif(
    find_spec("pyright") is None and "ROLECALL_CI_RUN" not in os.environ,
    reason="pyright is in the dependency group lint",
)
def test_python_has_no_type_error(blocks_folder: Path) -> None:
    command = [sys.executable, "-m", "pyright", "-p", str(blocks_folder), "--pythonpath", sys.executable]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 errors" in result.stdout
