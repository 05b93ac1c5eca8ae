"""Checks of option values; what they raise is told with the option's key in the job file."""

from __future__ import annotations

import math
import re
from typing import Any

from attrs import Attribute


def is_regular_expression(_: Any, attribute: Attribute[str], value: str) -> None:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{attribute.name} is no regular expression: {error} in {value!r}") from error


def is_finite(_: Any, attribute: Attribute[float], value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{attribute.name} is {value}, but a reward must be a finite number")


def is_weight(_: Any, attribute: Attribute[float], value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{attribute.name} is {value}, but a weight is a finite number from 0")
