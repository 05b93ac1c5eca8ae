"""What the documentation says is so: links lead somewhere, files exist, examples are accepted."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from attrs import fields

from rolecall.cli.main import cli
from rolecall.config.loader import load_config
from rolecall.config.specs import JobConfig
from rolecall.errors import ConfigError

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|<(?:img|a)\b[^>]*?(?:src|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#+ +(.+?) *#*$", re.MULTILINE)
FOLDERS = tuple(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))


def anchors(text: str) -> set[str]:
    """Return the anchors that a page's headings get."""
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {heading.strip().replace(" ", "-") for heading in kept}


def test_relative_links_lead_somewhere(pages: list[Any]) -> None:
    broken: list[str] = []
    for page in pages:
        for match in LINK.finditer(page.prose):
            link = match[1] or match[2]
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            path = (page.path.parent / target).resolve() if target else page.path
            if not path.exists():
                broken.append(f"{page.name}: {link}")
            elif anchor and anchor not in anchors(path.read_text(encoding="utf-8")):
                broken.append(f"{page.name}: {link} has no such heading")
    assert broken == []


def test_every_page_can_be_reached_from_the_index(pages: list[Any]) -> None:
    """From ``docs/README.md`` or the README; decision records are listed by their folder."""
    known = {page.path: page for page in pages}
    reached: set[Path] = set()
    waiting = [ROOT / "README.md", ROOT / "docs" / "README.md"]
    while waiting:
        path = waiting.pop()
        if path in known and path not in reached:
            reached.add(path)
            links = (match[1] or match[2] for match in LINK.finditer(known[path].prose))
            waiting += [(path.parent / link.partition("#")[0]).resolve() for link in links]
    docs = {page.path for page in pages if page.path.is_relative_to(ROOT / "docs")}
    records = {path for path in docs if path.parent.name == "decisions"}
    assert docs - records - reached == set()


def test_files_named_in_the_text_exist(pages: list[Any]) -> None:
    """A code span that starts with a folder of the project and ends like a file or folder is one."""
    named = re.compile(rf"(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]*")
    missing = [
        f"{page.name}: {span}"
        for page in pages
        for span in page.code_spans()
        if named.fullmatch(span) and not ((ROOT / span).exists() or (page.path.parent / span).exists())
    ]
    assert missing == []


def test_the_map_names_every_folder_of_the_core(pages: list[Any]) -> None:
    (architecture,) = [page for page in pages if page.path.name == "architecture.md"]
    folders = {path.parent.name for path in (ROOT / "core" / "rolecall").glob("*/__init__.py")}
    assert {folder for folder in folders if f"`core/rolecall/{folder}/`" not in architecture.text} == set()


def test_python_examples_compile(pages: list[Any]) -> None:
    for page in pages:
        for block in page.blocks("python"):
            compile(block.text, block.place, "exec")


def merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def to_toml(table: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the lines of a table whose values are plain ones and further tables."""
    if path:
        yield f"[{path}]"
    for key, value in table.items():
        if not isinstance(value, dict):
            yield f"{key} = {to_toml_value(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield from to_toml(value, f"{path}.{key}" if path else key)


def to_toml_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(to_toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {to_toml_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return repr(value)


def test_job_files_in_the_text_are_accepted(pages: list[Any], tmp_path: Path) -> None:
    """A block with ``[job]`` is a whole job file; other job tables are read on top of the quickstart."""
    quickstart = tomllib.loads((ROOT / "examples" / "quickstart.toml").read_text(encoding="utf-8"))
    tables = {field.name for field in fields(JobConfig)}
    wrong: list[str] = []
    for page in pages:
        for block in page.blocks("toml"):
            table = tomllib.loads(block.text)
            if not table or not set(table) <= tables:
                continue
            whole = "job" in table
            file = tmp_path / "job.toml"
            text = block.text if whole else "\n".join(to_toml(merge(quickstart, table)))
            file.write_text(text, encoding="utf-8")
            try:
                load_config(file)
            except ConfigError as error:
                wrong.append(f"{block.place}: {error}")
    assert wrong == []


def test_the_readme_shows_the_quickstart_as_it_is(pages: list[Any]) -> None:
    (readme,) = [page for page in pages if page.name == "README.md"]
    (shown,) = [tomllib.loads(block.text) for block in readme.blocks("toml")]
    assert shown == tomllib.loads((ROOT / "examples" / "quickstart.toml").read_text(encoding="utf-8"))


def commands_in(page: Any) -> Iterator[tuple[str, str]]:
    """Yield where and what, for each ``rolecall ...`` in a code span or a console block."""
    for span in page.code_spans():
        if span.startswith("rolecall "):
            yield page.name, span
    for block in page.blocks("console", "sh", "bash"):
        for line in block.text.splitlines():
            typed = line.strip().removeprefix("$ ")
            if typed.startswith("rolecall "):
                yield block.place, typed


def complaint(command: str) -> str | None:
    """Say what of a command line the program doesn't know; None if all of it is known."""
    at: click.Command = cli
    context = click.Context(cli)
    words = iter(shlex.split(command, comments=True)[1:])
    for word in words:
        if word in {"|", ">", "&&", ";", "…", "..."}:
            break
        if word.startswith("-"):
            known = {option: parameter for parameter in at.get_params(context) for option in parameter.opts}
            option = known.get(word.split("=")[0])
            if option is None:
                return f"`{at.name}` has no option {word}"
            if isinstance(option, click.Option) and not option.is_flag and "=" not in word:
                next(words, None)  # its value
        elif isinstance(at, click.Group):
            found = at.get_command(context, word)
            if found is None:
                return f"`{at.name}` has no command {word}"
            at = found
    return None


def test_commands_in_the_text_exist(pages: list[Any]) -> None:
    wrong = [
        f"{place}: {command}: {problem}"
        for page in pages
        for place, command in commands_in(page)
        if (problem := complaint(command)) is not None
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("rolecall plan FILE --json", True),
        ("rolecall plugins list --json | less", True),
        ("rolecall --block acme plan FILE", True),
        ("rolecall --block acme plna FILE", False),
        ("rolecall plna FILE", False),
        ("rolecall plugins lst", False),
        ("rolecall plan --jsno FILE", False),
    ],
)
def test_the_check_of_commands_itself(command: str, known: bool) -> None:
    assert (complaint(command) is None) == known
