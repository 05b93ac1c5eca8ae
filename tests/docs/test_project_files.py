"""Project files say nothing about the machine they were written on, and all tests are reached."""

from __future__ import annotations

import re
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
INDEX_HOST = re.compile(r"\bpypi\.org\b|pythonhosted\.org|registry\.npmjs|https?://[^\s\"'`]+/simple\b")


def machine_paths() -> re.Pattern[str]:
    places = {ROOT, ROOT.parent, Path.home()} - {Path("/"), Path(tempfile.gettempdir())}
    return re.compile(rf"(?<![\w.])(?:{'|'.join(re.escape(str(place)) for place in sorted(places))})/")


def lines_with(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    found: list[str] = []
    for file in files:
        if file == Path(__file__):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture or the like
        found += [
            f"{file.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
            for number, line in enumerate(text.splitlines(), 1)
            if pattern.search(line)
        ]
    return found


def test_no_path_of_this_machine(files: list[Path]) -> None:
    assert lines_with(machine_paths(), files) == []


def test_no_package_index_is_named(files: list[Path]) -> None:
    assert lines_with(INDEX_HOST, files) == []


def test_every_test_lies_where_the_default_command_looks() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
    places = [ROOT / place for place in options["ini_options"]["testpaths"]]
    lost = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("test_*.py")
        if not any(file.is_relative_to(place) for place in places)
    ]
    assert lost == []
