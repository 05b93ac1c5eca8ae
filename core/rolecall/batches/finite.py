"""What counts as a score's number."""

from __future__ import annotations

import math
from numbers import Real


def is_finite_number(value: object) -> bool:
    """Return whether the value is a finite real number, NumPy's included; a bool is no number."""
    if isinstance(value, bool):  # which Python counts among the integers
        return False
    return isinstance(value, Real) and math.isfinite(value)
