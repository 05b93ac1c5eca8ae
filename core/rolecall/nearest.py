"""The nearest word: what somebody probably meant by a name that doesn't exist."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most like ``word``, ignoring case; None when none is close."""
    import difflib  # only a message about a wrong word needs it

    by_folded = {candidate.casefold(): candidate for candidate in known}
    matches = difflib.get_close_matches(word.casefold(), by_folded, n=1)
    return by_folded[matches[0]] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean "…"?``, or an empty text when no known word is close."""
    match = nearest(word, known)
    return "" if match is None else f'; did you mean "{match}"?'
