"""What a header line of HTTP/1.1 may hold (RFC 9110, 5.5 and 5.6.2): a line that says more is not sent."""

from __future__ import annotations

import re
from functools import lru_cache

UNSENDABLE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""Any of these in a value, or in a request's target, would end its line or be read as something else."""

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


@lru_cache(maxsize=1024)
def is_name(name: bytes) -> bool:
    """Whether bytes are a header's name."""
    return _NAME.fullmatch(name) is not None
