"""Readers for the fields of a request; each names the field that is wrong."""

from __future__ import annotations

import math
from typing import Any, cast


class InvalidField(Exception):
    """The request is wrong (400); ``field`` is the path of what to change."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


def as_int(value: Any, field: str, low: int) -> int:
    """An integer from ``low``; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InvalidField(field, f"must be an integer from {low}, found {value!r:.80}")
    return value


def as_number(value: Any, field: str, high: float = math.inf) -> float:
    """A finite number from 0 to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidField(field, f"must be a finite number, found {value!r:.80}")
    if not 0 <= value <= high:
        raise InvalidField(field, f"must be from 0 to {high:g}, found {value!r}")
    return value


def as_bool(value: Any, field: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise InvalidField(field, f"must be true or false, found {value!r:.80}")
    return value


def as_text(value: Any, field: str) -> str:
    """Text."""
    if not isinstance(value, str):
        raise InvalidField(field, f"must be text, found {value!r:.80}")
    return value


def as_object(value: Any, field: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise InvalidField(field, f"must be an object, found {value!r:.80}")
    return cast("dict[str, Any]", value)


def as_texts(value: Any, field: str) -> list[str]:
    """A list of text, or one for itself."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in cast("list[Any]", items)):
        raise InvalidField(field, f"must be text or a list of text, found {value!r:.80}")
    return cast("list[str]", items)


def as_ids(value: Any, field: str) -> list[int]:
    """A list of token ids."""
    if not isinstance(value, list) or not all(
        type(item) is int and item >= 0 for item in cast("list[Any]", value)
    ):
        raise InvalidField(field, f"must be a list of token ids, found {value!r:.80}")
    return cast("list[int]", value)


def check_neutral(field: str, value: Any, neutral: Any) -> None:
    """Refuse a parameter that llama.cpp's server does not know, unless its value changes nothing."""
    if value is not None and value != neutral:
        raise InvalidField(field, f"is not offered by llama.cpp's server; leave it out, found {value!r:.80}")
