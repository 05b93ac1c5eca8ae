"""A verdict that is a word or a letter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from attrs import Attribute, field, frozen, validators

from rolecall.verdicts.words import are_worths, shown

Place = Literal["first", "last", "whole"]

_LETTERS = r"[^\W_]+"
_FIRST = re.compile(rf"[\W_]*?({_LETTERS}[+-]*)")
_LAST = re.compile(rf"({_LETTERS}[+-]*)[\W_]*\Z")
_WHOLE = re.compile(rf"[\W_]*?({_LETTERS}[+-]*)[\W_]*")

_LONGEST = 1000
"""A known word further than that from the end is not how the text ends."""


def _knows_a_word(_: Any, attribute: Attribute[Mapping[str, float]], value: Mapping[str, float]) -> None:
    if not value:
        raise ValueError(f"{attribute.name} is empty: nothing that the judge could say would count")
    are_worths(_, attribute, value)


@frozen(kw_only=True)
class WordVerdict:
    """Reads one of the known words, or letters, and says what it is worth. Case and punctuation around it
    don't count.

    where: ``first`` or ``last``: of the words in the text, which has to be a known one. ``whole``: the text
        is the word and nothing else.

    >>> WordVerdict(words={"A": 1, "B": 0.5, "C": 0}, where="last").read("It is short. Grade: **B**")
    0.5
    """

    words: Mapping[str, float] = field(validator=_knows_a_word)
    where: Place = field(default="first", validator=validators.in_(("first", "last", "whole")))

    def read(self, text: str) -> float:
        """Return what the word is worth.

        Raises:
            ValueError: it is no known word, or there is none.
        """
        if self.where == "first":
            said = _FIRST.match(text)
        elif self.where == "last":
            said = _LAST.search(text[-_LONGEST:])
        else:
            said = _WHOLE.fullmatch(text)
        worth = None if said is None else self._worth(said[1])
        if worth is None:
            verb = {"first": "starts with none", "last": "ends with none", "whole": "is none"}[self.where]
            raise ValueError(f"the verdict {verb} of {self.allowed}: {shown(text)}")
        return worth

    def _worth(self, word: str) -> float | None:
        """``A-`` is a grade if it is a known one, else it is ``A`` before a dash."""
        worths = {known.casefold(): float(worth) for known, worth in self.words.items()}
        whole = worths.get(word.casefold())
        return worths.get(word.rstrip("+-").casefold()) if whole is None else whole

    @property
    def allowed(self) -> str:
        """What may be said, in words."""
        return ", ".join(self.words)
