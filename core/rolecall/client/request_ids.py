"""Ids of requests that no other request has, in whatever process it is made."""

from __future__ import annotations

import itertools
import os
from secrets import token_hex


class _Numbers:
    """This process's ids: a name of its own, and a count."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.process = token_hex(8)
        self.count = itertools.count()


_numbers = _Numbers()
os.register_at_fork(after_in_child=_numbers.renew)


def unique_id() -> str:
    """Return an id that no other request has, nor begins with: all have one length."""
    return f"{_numbers.process}{next(_numbers.count):016x}"
