"""How an error is told inside another message."""

from __future__ import annotations

from rolecall.errors import RolecallError


def in_words(error: BaseException) -> str:
    """Return a rolecall error's message; any other's with its type, which its message may need."""
    return str(error) if isinstance(error, RolecallError) else f"{type(error).__name__}: {error}"
