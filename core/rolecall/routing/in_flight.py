"""How many requests one gateway or client has under way at each engine."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from rolecall.ids import EngineId
from rolecall.interfaces.routing_policy import Candidate, Load


@define(eq=False)
class _ModelLoad:
    """A model's part: its requests by the incarnation of the engine that they were sent to."""

    total: int = 0
    _counts: dict[tuple[EngineId, int], int] = field(factory=dict, init=False)

    def at(self, candidate: Candidate) -> int:
        return self._counts.get((candidate.engine_id, candidate.generation), 0)

    def add(self, incarnation: tuple[EngineId, int]) -> None:
        self.total += 1
        self._counts[incarnation] = self._counts.get(incarnation, 0) + 1

    def remove(self, incarnation: tuple[EngineId, int]) -> None:
        self.total -= 1
        left = self._counts[incarnation] - 1
        if left:
            self._counts[incarnation] = left
        else:
            del self._counts[incarnation]  # engines come and go, and a gateway stays


@define(eq=False)
class InFlight:
    """Counts requests; used from one event loop.

    Engines that a router picks are not known, so requests to it don't count.
    """

    _models: dict[str, _ModelLoad] = field(factory=dict, init=False)

    def of(self, model: str) -> Load:
        """The model's load, as policies read it."""
        return self._model(model)

    def sent(self, model: str, engine_id: EngineId | None, generation: int | None) -> Callable[[], None]:
        """Count a request; call what is returned when the engine has finished with it. Repeats do nothing."""
        if engine_id is None or generation is None:
            return _nothing
        load, incarnation = self._model(model), (engine_id, generation)
        load.add(incarnation)
        under_way = True

        def settled() -> None:
            nonlocal under_way
            if under_way:
                under_way = False
                load.remove(incarnation)

        return settled

    def _model(self, model: str) -> _ModelLoad:
        load = self._models.get(model)
        if load is None:
            load = self._models[model] = _ModelLoad()
        return load


def _nothing() -> None:
    """A request that no engine is known to have."""
