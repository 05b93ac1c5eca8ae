"""How the parsers of verdicts say what they found and what they allow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attrs import Attribute

_SHOWN = 80


def shown(found: object) -> str:
    """Return what was found, as Python writes it; of something long how it begins.

    >>> shown("I can't say")
    '"I can\\'t say"'
    """
    try:
        written = repr(found[: _SHOWN + 1] if isinstance(found, str) else found)
    except (RecursionError, ValueError):  # nested too deep, or a number of too many digits
        return f"something too large to be shown, {type(found).__name__}"
    return written if len(written) <= _SHOWN else f"{written[: _SHOWN - 1]}…"


def number_words(number: float) -> str:
    """Return a number for people, whatever its size; an int may be too large for a float."""
    try:
        return f"{number:g}"
    except OverflowError:
        return f"a number of {len(str(abs(number)))} digits" if abs(number) < 10**4000 else "a huge number"


def is_finite(_: object, attribute: Attribute[float], value: float) -> None:
    """Validate a field of a parser: a finite number."""
    if not math.isfinite(value):
        raise ValueError(f"{attribute.name} must be a finite number, found {value}")


def is_above_low(instance: Any, attribute: Attribute[float], value: float) -> None:
    """Validate ``high``: finite, and above ``low``."""
    is_finite(instance, attribute, value)
    if value <= instance.low:
        raise ValueError(f"{attribute.name} must be above low ({instance.low:g}), found {value:g}")


def are_worths(_: object, attribute: Attribute[Mapping[str, float]], value: Mapping[str, float]) -> None:
    """Validate a table of words: each is one word, each worth a finite number, no two differ by case only."""
    seen: dict[str, str] = {}
    for word, worth in value.items():
        if not word or not all(character.isalnum() or character in "+-" for character in word):
            raise ValueError(
                f"{attribute.name} has {word!r}; each must be one word of letters and digits, perhaps with a "
                "plus or minus"
            )
        if not math.isfinite(worth):
            raise ValueError(f"{attribute.name}.{word} is {worth}, but a worth must be a finite number")
        if (other := seen.setdefault(word.casefold(), word)) != word:
            raise ValueError(f"{attribute.name} has {other} and {word}, but case does not count")
