"""How many requests one gateway or client has under way at each engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from attrs import define, field

from rolecall.ids import EngineId


@define(eq=False)
class InFlight:
    """Counts requests by the incarnation of the engine that they were sent to.

    Used from one event loop. Engines that a router picks are not known, so requests to it don't count.
    """

    _counts: Counter[tuple[EngineId, int]] = field(factory=Counter, init=False)

    def at(self, engine_id: EngineId, generation: int) -> int:
        """Requests under way at an engine; none at its next incarnation."""
        return self._counts[engine_id, generation]

    def sent(self, engine_id: EngineId | None, generation: int | None) -> Callable[[], None]:
        """Count a request; call what is returned once, when the engine has finished with it."""
        if engine_id is None or generation is None:
            return lambda: None
        incarnation = (engine_id, generation)
        self._counts[incarnation] += 1

        def settled() -> None:
            self._counts[incarnation] -= 1
            if not self._counts[incarnation]:
                del self._counts[incarnation]  # engines come and go, and a gateway stays

        return settled
