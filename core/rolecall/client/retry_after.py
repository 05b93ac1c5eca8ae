"""What a ``Retry-After`` header says."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

_LONGEST_S = 3600.0
"""Nobody who waits for an engine waits longer."""


def retry_after_s(value: bytes | None) -> float | None:
    """Return the seconds to wait, from 0 to an hour; None if nothing is said that can be read.

    >>> retry_after_s(b"2")
    2.0
    """
    if value is None:
        return None
    text = value.decode("latin-1").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text), _LONGEST_S)
    try:
        until_s = parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None
    return min(max(until_s - time.time(), 0.0), _LONGEST_S)
