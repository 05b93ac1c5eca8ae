"""Values, types and attrs validators' complaints in plain words, for people who write TOML."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import attrs

MAPPINGS = (dict, Mapping, MutableMapping)
COLLECTIONS = (list, tuple, set, frozenset, Sequence, MutableSequence)
_SIMPLE = {
    str: "text",
    Path: "text (a path)",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
_LONGEST = 60
_COMPARISONS = {">": "greater than", ">=": "at least", "<": "less than", "<=": "at most"}
_NUMBER = re.compile(r"must be (?P<operator>[<>]=?) (?P<bound>[^:]+): .*", re.DOTALL)
_LENGTH = re.compile(r"Length of '[^']*' must be (?P<operator>[<>]=?) (?P<bound>\d+): (?P<length>\d+)")
_PATTERN = re.compile(r"must match regex '(?P<pattern>.*)' \(", re.DOTALL)
_OPTIONS = re.compile(r"must be in (?P<options>.*) \(got ", re.DOTALL)


def value_words(value: Any) -> str:
    """Return a value as TOML writes it, with the name of its type: ``"two" (text)``."""
    match value:
        case bool():
            return f"{str(value).lower()} (true or false)"
        case int():
            return f"{value} (a whole number)"
        case float():
            return f"{value} (a number)"
        case str():
            return f"{quoted(value)} (text)"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "a table"
        case _:
            return f"{value} (a date or time)"


def quoted(text: str) -> str:
    """Return text in double quotes, escaped, and cut when it is very long."""
    short = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return json.dumps(short, ensure_ascii=False)


def type_words(hint: Any) -> str:
    """Say what a value of a type is written as; None is left out, since TOML can't write it."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is Literal:
        return "one of " + choice_words(arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(type_words(member) for member in arguments if member is not type(None))
    if attrs.has(origin) or origin in MAPPINGS:
        return "a table"
    if origin in COLLECTIONS:
        return "a list"
    return "given"


def choice_words(options: Iterable[Any]) -> str:
    return ", ".join(quoted(option) if isinstance(option, str) else str(option) for option in options)


def complaint_words(error: Exception, attribute: str, value: Any) -> str:
    """Say what a validator of an attrs class has against a value.

    The built-in validators' texts are put into words; any other text is passed on, with the
    value that was found. attrs gives no structure beyond the text, so a test holds them.
    """
    text = str(error.args[0]) if error.args else type(error).__name__
    if match := _LENGTH.fullmatch(text):
        operator, bound, length = match.group("operator", "bound", "length")
        one, several = ("character", "characters") if isinstance(value, str) else ("entry", "entries")
        noun = one if bound == "1" else several
        return f"must have {_COMPARISONS[operator]} {bound} {noun}, has {length}"
    text = text.removeprefix(f"'{attribute}' ")
    if match := _NUMBER.fullmatch(text):
        text = f"must be {_COMPARISONS[match['operator']]} {match['bound']}"
    elif match := _PATTERN.match(text):
        text = f"must match the pattern {match['pattern']}"
    elif match := _OPTIONS.match(text):
        text = f"must be one of {match['options']}"
    return f"{text}, found {_shown(value)}"


def _shown(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else str(value)
