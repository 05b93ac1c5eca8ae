"""Which few changes of a job file would make its job feasible, in one placement mode.

A best-first search over the fixes that refusals carry, and over less of what the job asks for. A change
counts by the number of its keys, then by how far it moves them. Whatever is suggested has been planned and
was not refused, and needs each of its keys. Pure but for the clock; ``rolecall.job.suggestions`` plans.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from attrs import frozen

from rolecall.errors import Fix, Refusal

Changes = Mapping[str, Any]
"""Keys of the job file and what they would be; None takes a key out."""

_ATTEMPTS = 400
"""Plans made for one mode at most."""
_SUGGESTIONS = 3
_ROUNDS = 8
_SCALE = 64


@frozen(kw_only=True)
class Suggestions:
    """The smallest sets of changes, best first; none if none was found.

    refusals: those without any change; None if the job could not even be planned.
    complete: everything was tried; otherwise the time was over.
    """

    fixes: tuple[Fix, ...] = ()
    refusals: tuple[Refusal, ...] | None
    complete: bool = True


@frozen(kw_only=True)
class Question:
    """What the search may do and what it goes by.

    attempt: plan the job with changes; the refusals, none if it is feasible, None if it makes no sense.
    now: the value that a key has; None if it has none.
    counts: keys of numbers, of replicas and of devices, that may be smaller.
    start: changes that are made in any case.
    kept: keys that no change may touch.
    seconds: after which time no further plan is made.
    """

    attempt: Callable[[Changes], tuple[Refusal, ...] | None]
    now: Callable[[str], Any]
    counts: tuple[str, ...]
    start: Changes
    kept: frozenset[str] = frozenset()
    seconds: float = 3.0
    clock: Callable[[], float] = time.monotonic


def suggest(question: Question) -> Suggestions:
    """Return the smallest changes that make the job feasible."""
    search = _Search(question)
    refusals = search.attempt(question.start)
    found: list[Changes] = []
    if refusals is not None:
        quick = search.all_at_once()  # so that there is one also where the other way takes too long
        found = search.best_first() or quick
    return Suggestions(
        fixes=tuple(Fix(tuple(changes.items())) for changes in found),
        refusals=refusals,
        complete=search.complete,
    )


class _Search:
    def __init__(self, question: Question) -> None:
        self._question = question
        self._until = question.clock() + question.seconds
        self._known: dict[str, tuple[Refusal, ...] | None] = {}
        self.complete = True

    def attempt(self, changes: Changes) -> tuple[Refusal, ...] | None:
        """Plan with changes, once; None too when the time is over."""
        name = _name(changes)
        if name not in self._known:
            if len(self._known) >= _ATTEMPTS or self._question.clock() > self._until:
                self.complete = False
                return None
            self._known[name] = self._question.attempt(changes)
        return self._known[name]

    # --- ways to search -----------------------------------------------------------------------

    def best_first(self) -> list[Changes]:
        """Follow the cheapest changes first, and stop where others would need more keys."""
        found: list[Changes] = []
        order = count()
        queue = [(self._cost(self._question.start), next(order), self._question.start)]
        seen: set[str] = set()
        while queue and len(found) < _SUGGESTIONS:
            (keys, _), _, changes = heappop(queue)
            if found and keys > self._cost(found[0])[0] + 1:
                break
            if _name(changes) in seen or any(smaller.items() <= changes.items() for smaller in found):
                continue
            seen.add(_name(changes))
            refusals = self.attempt(changes)
            if refusals is None:
                continue
            if not refusals:
                found.append(self._needed(changes))
                continue
            for further in self._ways(changes, refusals):
                after = {**changes, **further}
                heappush(queue, (self._cost(after), next(order), after))
        distinct = [changes for number, changes in enumerate(found) if changes not in found[:number]]
        return sorted(distinct, key=self._cost)

    def all_at_once(self) -> list[Changes]:
        """Apply the first fix of every refusal, or make all counts smaller, until nothing is refused."""
        changes = self._question.start
        for _ in range(_ROUNDS):
            refusals = self.attempt(changes)
            if refusals is None:
                return []
            if not refusals:
                return [self._needed(changes)]
            for refusal in refusals:
                ways = self._fixes(refusal) or self._less_of_all(changes, refusal)
                changes = {**changes, **(ways[0] if ways else {})}
        return []

    def _needed(self, changes: Changes) -> Changes:
        """Take back what the plan does not need, and then of counts as much as can be."""
        start = self._question.start
        for key in self._changed(changes):
            kept = {other: value for other, value in changes.items() if other != key}
            without = {**kept, key: start[key]} if key in start else kept
            if self.attempt(without) == ():
                changes = without
        for key, value in self._changed(changes).items():
            if key in self._question.counts and value < self._before(key):
                changes = {**changes, key: self._most(changes, key)}
        return changes

    def _most(self, changes: Changes, key: str) -> int:
        """Return the largest value of a count, below the file's, with which the job is feasible."""
        return _last(changes[key], self._before(key), lambda n: self.attempt({**changes, key: n}) == ())

    # --- what can be done ---------------------------------------------------------------------

    def _ways(self, changes: Changes, refusals: Sequence[Refusal]) -> list[Changes]:
        """Return what lifts one of the refusals: whatever makes the job feasible has to."""
        for refusal in refusals:
            less = self._less_of_one(changes, refusal) or self._less_of_all(changes, refusal)
            ways = [*self._fixes(refusal), *less]
            if ways:
                return ways
        return []

    def _fixes(self, refusal: Refusal) -> list[Changes]:
        fixes = [dict(fix.assignments) for fix in refusal.fixes]
        return [fix for fix in fixes if self._question.kept.isdisjoint(fix)]

    def _less_of_one(self, changes: Changes, refusal: Refusal) -> list[Changes]:
        """Return for each count the most of it that lifts a refusal, if that alone does."""
        counts = self._counts(changes)
        if not self._lifts({**changes, **dict.fromkeys(counts, 1)}, refusal):
            return []
        return [
            {key: _last(1, counts[key], lambda n, key=key: self._lifts({**changes, key: n}, refusal))}
            for key in counts
            if self._lifts({**changes, key: 1}, refusal)
        ]

    def _less_of_all(self, changes: Changes, refusal: Refusal) -> list[Changes]:
        """Return how much of all counts, in proportion, lifts a refusal."""

        def part(numerator: int) -> Changes:
            return {key: max(1, n * numerator // _SCALE) for key, n in self._counts(changes).items()}

        if not self._lifts({**changes, **part(1)}, refusal):
            return []
        return [part(_last(1, _SCALE, lambda n: self._lifts({**changes, **part(n)}, refusal)))]

    def _counts(self, changes: Changes) -> Mapping[str, int]:
        """Return the counts that can be smaller."""
        counts = (key for key in self._question.counts if key not in self._question.kept)
        now = {key: changes.get(key, self._before(key)) for key in counts}
        return {key: number for key, number in now.items() if number > 1}

    def _lifts(self, changes: Changes, refusal: Refusal) -> bool:
        left = self.attempt(changes)
        return left is not None and all(
            (other.code, other.key) != (refusal.code, refusal.key) for other in left
        )

    def _cost(self, changes: Changes) -> tuple[int, float]:
        changed = self._changed(changes)
        return len(changed), sum(_distance(self._before(key), value) for key, value in changed.items())

    def _changed(self, changes: Changes) -> Changes:
        """Return the changes beyond those that are made in any case."""
        start = self._question.start
        return {key: value for key, value in changes.items() if key not in start or start[key] != value}

    def _before(self, key: str) -> Any:
        start = self._question.start
        return start[key] if key in start else self._question.now(key)


def _name(changes: Changes) -> str:
    """Return changes as what a set can hold: their values may be lists."""
    return repr(sorted(changes.items()))


def _last(first: int, end: int, true: Callable[[int], bool]) -> int:
    """Return the last number before ``end`` up to which something is true; it is of ``first``."""
    return first + bisect_left(range(first + 1, end), True, key=lambda n: not true(n))


def _distance(old: object, new: object) -> float:
    """How far a value is moved: doublings of a number; 1 for anything else."""
    numbers = [value for value in (old, new) if isinstance(value, int) and value > 0]
    return abs(math.log2(numbers[0] / numbers[1])) if len(numbers) == 2 else 1.0
