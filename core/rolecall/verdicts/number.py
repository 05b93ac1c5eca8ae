"""A verdict that is a number."""

from __future__ import annotations

import re
from typing import Literal

from attrs import field, frozen, validators

from rolecall.verdicts.words import is_above_low, is_finite, number_words, shown

Place = Literal["first", "last", "whole"]

_NUMBER = re.compile(
    r"[-+\u2212\u2013]?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
    r"|[-+\u2212\u2013]?(?<![.0-9])\.[0-9]+(?:[eE][-+]?[0-9]+)?"
)
"""With its sign, thousands separators, decimals and exponent: half of a number would be another one."""

_MINUS = str.maketrans({"\u2212": "-", "\u2013": "-", ",": None})


@frozen(kw_only=True)
class NumberVerdict:
    """Reads a number from ``low`` to ``high``.

    where: ``first`` or ``last``: of the numbers in the text. ``whole``: the text is the number and nothing
        else. A number that is there and out of range is refused; the next one is not tried.

    >>> NumberVerdict(low=0, high=10).read("Grade: 7.5 of 10")
    7.5
    >>> NumberVerdict(low=0, high=10).read("2024 was a good year")
    Traceback (most recent call last):
    ValueError: the verdict 2024 is not between 0 and 10: '2024 was a good year'
    """

    low: float = field(default=0.0, validator=is_finite)
    high: float = field(default=10.0, validator=is_above_low)
    where: Place = field(default="first", validator=validators.in_(("first", "last", "whole")))

    def read(self, text: str) -> float:
        """Return the number.

        Raises:
            ValueError: there is none, or it is out of range.
        """
        found = self._found(text)
        if found is None:
            raise ValueError(f"the verdict {self._lack}: {shown(text)}; {self.allowed} is allowed")
        return self.checked(float(found.translate(_MINUS)), shown(text))

    def checked(self, number: float, where: str) -> float:
        """Return a number that is in the range; ``where`` says where it was found.

        Raises:
            ValueError: it is not, or it is no finite number.
        """
        # Written so that nan, which is neither below nor above anything, is refused, too.
        if not self.low <= number <= self.high:
            raise ValueError(
                f"the verdict {number_words(number)} is not between {self.low:g} and {self.high:g}: {where}"
            )
        return float(number)

    def share(self, number: float) -> float:
        """Return where in the range a number lies: 0 for ``low``, 1 for ``high``."""
        # Never beyond, whatever rounding does to the quotient.
        return min(max((number - self.low) / (self.high - self.low), 0.0), 1.0)

    @property
    def allowed(self) -> str:
        """What may be said, in words."""
        return f"a number from {self.low:g} to {self.high:g}"

    @property
    def _lack(self) -> str:
        return "is not a number and nothing else" if self.where == "whole" else "has no number"

    def _found(self, text: str) -> str | None:
        if self.where == "whole":
            whole = _NUMBER.fullmatch(text.strip())
            return None if whole is None else whole[0]
        if self.where == "first":
            first = _NUMBER.search(text)
            return None if first is None else first[0]
        numbers: list[str] = _NUMBER.findall(text)
        return numbers[-1] if numbers else None
