"""The power of two choices: of two candidates that come up, the one with less to do.

Nearly as even as asking who of all has least to do, at the cost of two looks, and without the herd that
runs to one replica when many gateways and clients all know the same least loaded one.
"""

from __future__ import annotations

from collections.abc import Sequence

from rolecall.api import Candidate, Load

_STEP, _MIX, _MASK = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 2**64 - 1


class TwoChoices:
    """Draws pairs from a sequence of its own that is as good as chance, and the same for every instance."""

    def __init__(self) -> None:
        self._state = 0

    def choose(self, candidates: Sequence[Candidate], load: Load) -> Candidate:
        """Return the less loaded of the next two; of equals, the first that came up."""
        size = len(candidates)
        if size == 1:
            return candidates[0]
        first, rest = divmod(self._next(), size - 1)
        first %= size
        one = candidates[first]
        other = candidates[(first + 1 + rest) % size]
        return other if load.at(other) < load.at(one) else one

    def _next(self) -> int:
        """64 bits of SplitMix64 with one round, of which the upper 48 are used."""
        self._state = (self._state + _STEP) & _MASK
        mixed = self._state ^ (self._state >> 30)
        mixed = (mixed * _MIX) & _MASK
        return (mixed ^ (mixed >> 27)) >> 16
