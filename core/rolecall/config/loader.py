"""From files to values: reads a job file, and checks a plugin's own table.

Knows no plugin: names are text and options are plain tables here; ``rolecall.config.resolve``
goes on from there. Every error is a :class:`ConfigError` with all problems found.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from rolecall.config.lines import KeyLines, KeyPath
from rolecall.config.overrides import Override, override
from rolecall.config.source import Source
from rolecall.config.specs import JobConfig
from rolecall.config.structure import StructureError, structure
from rolecall.errors import ConfigError, ConfigProblem

_POSITION = re.compile(
    r"(?P<fault>.*?) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)"
)
_UNQUOTED_TEXT_HINT = ' (text needs quotes: key = "text")'


def load_config(path: Path, overrides: Iterable[Override] = ()) -> JobConfig:
    """Read a job file, with other values for some of its keys.

    Raises:
        ConfigError: the file can't be read, is not TOML, or does not fit the job file's tables;
            has every problem, with key path and line.
    """
    text = _read(path)
    table = _parse(path, text)
    asked = override(table, overrides)
    source = Source(file=str(path), origins=asked.origins)
    if asked.faults:
        raise _located(source, text, table).error(asked.faults)
    try:
        return structure(JobConfig, asked.table)
    except StructureError as error:
        raise _located(source, text, table).error(error.faults) from error


def structure_options(
    options_class: type[Any], table: Mapping[str, Any], *, file: str, key: KeyPath, text: str | None = None
) -> Any:
    """Make an instance of a plugin's ``options`` class from its table in a job file.

    Args:
        file: name of the job file, for messages.
        key: path of the table, e.g. ``("roles", "judge", "options")``.
        text: content of the job file, to find lines; None leaves lines out.

    Raises:
        ConfigError: the table does not fit; has every problem.
    """
    try:
        return structure(options_class, table)
    except StructureError as error:
        lines = KeyLines() if text is None else KeyLines.of(text, tomllib.loads(text))
        raise Source(file=file, lines=lines).error(fault.under(key) for fault in error.faults) from error


def _located(source: Source, text: str, table: Mapping[str, Any]) -> Source:
    return evolve(source, lines=KeyLines.of(text, table))


def source_of(config: JobConfig, path: Path, overrides: Iterable[Override] = ()) -> Source:
    """Return where ``config`` was read from, with lines if the file still says the same.

    Actors get their config by value and may run where the file isn't, or after it was edited;
    they still name file and key.
    """
    source = Source(file=str(path))
    try:
        text = _read(path)
        table = _parse(path, text)
        asked = override(table, overrides)
        source = evolve(source, origins=asked.origins)
        # The command line may have added to the section about plugins.
        written = evolve(structure(JobConfig, asked.table), plugins=config.plugins)
    except (ConfigError, StructureError):
        return source
    return _located(source, text, table) if written == config else source


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors begin files with a byte-order mark
    except FileNotFoundError as error:
        raise _unreadable(path, f"there is no such file (looked for {path.absolute()})") from error
    except IsADirectoryError as error:
        raise _unreadable(path, "is a folder; a job file is one TOML file") from error
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise _unreadable(path, f"is not UTF-8 text ({error.reason}); save it as UTF-8", line) from error
    except OSError as error:
        raise _unreadable(path, f"can't be read: {error.strerror}") from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = _POSITION.match(str(error))
        fault = match["fault"] if match else str(error)
        hint = _UNQUOTED_TEXT_HINT if fault == "Invalid value" else ""
        if match and match["line"]:
            line, column = int(match["line"]), f", column {match['column']}"
        else:
            line, column = len(text.splitlines()), " at the end of the file"
        raise _unreadable(path, f"not valid TOML: {fault}{column}{hint}", line) from error
    except RecursionError as error:
        raise _unreadable(path, "not valid TOML: nested too deeply") from error


def _unreadable(path: Path, message: str, line: int | None = None) -> ConfigError:
    return ConfigError([ConfigProblem(file=str(path), key="", message=message, line=line)])
