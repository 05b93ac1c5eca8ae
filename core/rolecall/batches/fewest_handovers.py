"""The search for an order of stages with the fewest hand-overs between roles.

Pure. Exact in the number of hand-overs. Among orders with as few, it prefers, without trying all of
them, one in which roles that share no devices can have their turns at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, field, frozen

from rolecall.batches.sharing import Sharing
from rolecall.interfaces.role import Stage


def fewest_handovers(
    stages: Sequence[Stage], needs: Mapping[int, frozenset[int]], *, awake: str | None, sharing: Sharing
) -> tuple[int, ...]:
    """Return the stages' indices in order. ``needs``: which stages each one has to wait for, no loops."""
    return _Search(stages, needs, sharing).run(awake)


@frozen(kw_only=True)
class _Position:
    """How far an order has come.

    awake: the roles that are awake after it.
    stage_levels, role_levels: how many hand-overs have to end one after the other before a stage, and
        before a role's last turn, is done.
    """

    order: tuple[int, ...]
    awake: frozenset[str]
    stage_levels: Mapping[int, int] = field(factory=dict)
    role_levels: Mapping[str, int] = field(factory=dict)


class _Search:
    """Looks for an order with the fewest hand-overs."""

    def __init__(
        self, stages: Sequence[Stage], needs: Mapping[int, frozenset[int]], sharing: Sharing
    ) -> None:
        self._stages = stages
        self._needs = needs
        self._sharing = sharing

    def run(self, awake: str | None) -> tuple[int, ...]:
        # Breadth first over the number of hand-overs. Running whatever needs none is never worse
        # than leaving it for later, so the only choice is which role comes next.
        first = frozenset() if awake is None else frozenset({awake})
        start = _Position(order=(), awake=first, role_levels=dict.fromkeys(first, 0))
        queue = deque([self._advance(start)])
        seen: set[tuple[frozenset[int], frozenset[str]]] = set()
        while queue:
            position = queue.popleft()
            if len(position.order) == len(self._stages):
                return position.order
            state = (frozenset(position.order), position.awake)
            if state not in seen:
                seen.add(state)
                queue.extend(self._next(position))
        raise AssertionError("an order without loops has an end")

    def _next(self, position: _Position) -> list[_Position]:
        """Return where one more hand-over can lead, to the one that can begin earliest first.

        A role that can do all that is left for it, and takes the devices from nobody who has work
        left, needs this one turn wherever it comes: then there is nothing else to try.
        """
        roles = sorted(self._ready_roles(position), key=lambda role: self._earliest(position, role))
        nexts = [(role, self._wake(position, role)) for role in roles]
        for role, position_after in nexts:
            put_to_sleep = position.awake - position_after.awake
            if not self._left(position_after, role) and not any(
                self._left(position, other) for other in put_to_sleep
            ):
                return [position_after]
        return [position_after for _, position_after in nexts]

    def _ready_roles(self, position: _Position) -> list[str]:
        """Roles with a stage that could run now, in the order in which the stages are listed."""
        return list(dict.fromkeys(role for _, role in self._ready(position) if role is not None))

    def _ready(self, position: _Position) -> Iterator[tuple[int, str | None]]:
        done = frozenset(position.order)
        for index, stage in enumerate(self._stages):
            if index not in done and self._needs[index] <= done:
                yield index, stage.role

    def _left(self, position: _Position, role: str) -> bool:
        return any(
            index not in position.order for index, stage in enumerate(self._stages) if stage.role == role
        )

    def _wake(self, position: _Position, role: str) -> _Position:
        return self._advance(
            evolve(
                position,
                awake=frozenset(other for other in position.awake if not self._sharing.clash(role, other))
                | {role},
                role_levels={**position.role_levels, role: self._level_of_turn(position, role)},
            )
        )

    def _level_of_turn(self, position: _Position, role: str) -> int:
        before = (level for other, level in position.role_levels.items() if self._sharing.clash(role, other))
        return 1 + max(before, default=0)

    def _earliest(self, position: _Position, role: str) -> int:
        ready = (
            self._level_of_needs(position, index) for index, other in self._ready(position) if other == role
        )
        return max(self._level_of_turn(position, role), min(ready))

    def _level_of_needs(self, position: _Position, index: int) -> int:
        return max((position.stage_levels[before] for before in self._needs[index]), default=0)

    def _advance(self, position: _Position) -> _Position:
        """Append every stage that can run without a hand-over."""
        while True:
            index = next(
                (index for index, role in self._ready(position) if self._is_up(position, role)), None
            )
            if index is None:
                return position
            role = self._stages[index].role
            level = self._level_of_needs(position, index)
            if role is not None:
                level = max(level, position.role_levels.get(role, 0))
                position = evolve(position, role_levels={**position.role_levels, role: level})
            position = evolve(
                position,
                order=(*position.order, index),
                stage_levels={**position.stage_levels, index: level},
            )

    def _is_up(self, position: _Position, role: str | None) -> bool:
        return role is None or role in position.awake or self._sharing.is_resident(role)
