"""Where in a TOML text each key stands: tomllib tells values, not positions.

A second, much smaller reading of the text, which tomllib has already accepted: it only finds
where keys begin and where values end. It never guesses: a reading that does not come to exactly
the keys that tomllib found gives no positions at all, so a line is right or absent.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import field, frozen

KeyPath = tuple[str | int, ...]
"""Keys from the top of the file down; an int is a position in an array."""

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY_PART = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_STRING = re.compile(
    r'''"""(?:[^\\]|\\.)*?"""(?:"{0,2})'''
    r"""|'''.*?'''(?:'{0,2})"""
    r'''|"(?:[^"\\\n]|\\.)*"'''
    r"""|'[^'\n]*'""",
    re.DOTALL,
)
_BARE_VALUE = re.compile(r"[^,\]}#\n]+")


@frozen
class KeyLines:
    """Lines (from 1) of the keys of one TOML text: a table's header, or else the first mention."""

    _lines: Mapping[KeyPath, int] = field(factory=dict)

    @classmethod
    def of(cls, text: str, values: Mapping[str, Any]) -> KeyLines:
        """Locate the keys of ``text``, which tomllib has read as ``values``."""
        reader = _Reader(text.replace("\r\n", "\n"))
        try:
            reader.document()
        except (_Lost, RecursionError):
            return cls()
        return cls(reader.lines) if reader.lines.keys() == set(_paths(values, ())) else cls()

    def line(self, path: KeyPath) -> int | None:
        """Return the line of the key; None if it isn't known."""
        return self._lines.get(path)

    def nearest_line(self, path: KeyPath) -> int | None:
        """Return the key's line or, for a key that is absent, that of the table it belongs to."""
        while path:
            if path in self._lines:
                return self._lines[path]
            path = path[:-1]
        return None


def _paths(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _paths(item, (*path, index))


class _Lost(Exception):
    """The text is not what this reader expects."""


class _Reader:
    """Walks one text from front to back and notes where each key path is first named."""

    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._text = text
        self._at = 0
        self._line = 1
        self._array_lengths: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._found("[["):
                table = self._header(array=True)
            elif self._found("["):
                table = self._header(array=False)
            else:
                self._key_value(table)
            self._skip(_BLANK)

    # --- keys ---------------------------------------------------------------------------

    def _header(self, *, array: bool) -> KeyPath:
        path: KeyPath = ()
        parts = list(self._dotted_key())
        for position, (part, line) in enumerate(parts):
            path = (*path, part)
            last = position == len(parts) - 1
            if last and not array:
                self.lines[path] = line  # a table's own header, although [table.child] came before
            self.lines.setdefault(path, line)
            if last and array:
                self._array_lengths[path] = self._array_lengths.get(path, 0) + 1
            if path in self._array_lengths:
                path = (*path, self._array_lengths[path] - 1)
                self.lines.setdefault(path, line)
        self._expect("]]" if array else "]")
        return path

    def _key_value(self, table: KeyPath) -> None:
        path = table
        for part, line in self._dotted_key():
            path = (*path, part)
            self.lines.setdefault(path, line)
        self._expect("=")
        self._skip(_SPACE)
        self._value(path)

    def _dotted_key(self) -> Iterator[tuple[str, int]]:
        self._skip(_SPACE)
        yield self._key_part(), self._line
        self._skip(_SPACE)
        while self._found("."):
            self._skip(_SPACE)
            yield self._key_part(), self._line
            self._skip(_SPACE)

    def _key_part(self) -> str:
        raw = self._take(_KEY_PART)
        return next(iter(tomllib.loads(f"{raw} = 0")))

    # --- values -------------------------------------------------------------------------

    def _value(self, path: KeyPath) -> None:
        if self._found("["):
            self._array(path)
        elif self._found("{"):
            self._inline_table(path)
        elif self._text[self._at : self._at + 1] in ('"', "'"):
            self._take(_STRING)
        else:
            self._take(_BARE_VALUE)

    def _array(self, path: KeyPath) -> None:
        self._skip(_BLANK)
        index = 0
        while not self._found("]"):
            self.lines[*path, index] = self._line
            self._value((*path, index))
            self._separator("]")
            index += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._skip(_BLANK)
        while not self._found("}"):
            self._key_value(path)
            self._separator("}")

    def _separator(self, end: str) -> None:
        self._skip(_BLANK)
        if not self._text.startswith(end, self._at):
            self._expect(",")
            self._skip(_BLANK)

    # --- characters ---------------------------------------------------------------------

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise _Lost
        self._line += match[0].count("\n")
        self._at = match.end()
        return match[0]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        self._take(pattern)

    def _found(self, token: str) -> bool:
        found = self._text.startswith(token, self._at)
        self._at += len(token) if found else 0
        return found

    def _expect(self, token: str) -> None:
        if not self._found(token):
            raise _Lost
