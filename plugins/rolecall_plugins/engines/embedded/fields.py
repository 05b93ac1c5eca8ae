"""Readers for fields of a request body; each names the field when it is wrong."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any


class InvalidField(Exception):
    """A request is wrong (400); ``field`` is the path of what to change."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        super().__init__(f"{field} {problem}")


def as_int(value: Any, field: str, *, low: int | None = None, high: int | None = None) -> int:
    """An integer within the bounds; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidField(field, f"is {value!r}, an integer is expected")
    _check_range(value, field, low, high)
    return value


def as_number(value: Any, field: str, *, low: float | None = None, high: float | None = None) -> float:
    """A finite number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidField(field, f"is {value!r}, a finite number is expected")
    _check_range(value, field, low, high)
    return float(value)


def as_bool(value: Any, field: str) -> bool:
    """True or false, nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise InvalidField(field, f"is {value!r}, true or false is expected")
    return value


def as_text(value: Any, field: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise InvalidField(field, f"is {type(value).__name__}, a string is expected")
    return value


def as_int_list(value: Any, field: str) -> list[int]:
    """A list of integers; the first wrong item is named."""
    if not isinstance(value, list):
        raise InvalidField(field, f"is {type(value).__name__}, a list of integers is expected")
    for index, item in enumerate(value):
        if isinstance(item, bool) or not isinstance(item, int):
            raise InvalidField(f"{field}[{index}]", f"is {item!r}, an integer is expected")
    return value


def as_text_list(value: Any, field: str) -> list[str]:
    """A list of strings."""
    if not isinstance(value, list):
        raise InvalidField(field, f"is {type(value).__name__}, a string or a list of strings is expected")
    for index, item in enumerate(value):
        as_text(item, f"{field}[{index}]")
    return value


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean …?`` for a misspelt name, else the names that exist."""
    names = sorted(known)
    matches = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else f"; known: {', '.join(names)}"


def _check_range(value: float, field: str, low: float | None, high: float | None) -> None:
    if (low is not None and value < low) or (high is not None and value > high):
        if high is None:
            allowed = f"at least {low}"
        else:
            allowed = f"at most {high}" if low is None else f"between {low} and {high}"
        raise InvalidField(field, f"is {value!r}; {allowed} is expected")
