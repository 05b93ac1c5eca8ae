"""How many requests one gateway or client lets be at a replica at once; the others wait in order.

Back-pressure for engines that get slow, or run out of memory, with too much at once. Who waits has been given
a replica already and counts as its load, so policies that look at loads spread those who wait, too. Each
gateway and client counts its own; requests to a router, which picks the replica itself, are not bounded.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping

from attrs import define, field

from rolecall.errors import ModelUnavailableError
from rolecall.ids import EngineId
from rolecall.routing.resolver import Target

_Incarnation = tuple[EngineId, int]


@define(eq=False)
class _Replica:
    out: int = 0
    waiting: deque[asyncio.Future[None]] = field(factory=deque)


class ReplicaSlots:
    """Used from one event loop.

    limit: requests at one replica; None: any number.
    most_waiting: requests that may wait for one replica; more are refused. None: any number.
    """

    def __init__(self, limit: int | None = None, most_waiting: int | None = None) -> None:
        self._limit = limit
        self._most_waiting = most_waiting
        self._replicas: dict[_Incarnation, _Replica] = {}
        self._queued: Counter[str] = Counter()

    @property
    def queued(self) -> Mapping[str, int]:
        """Model → requests that wait for one of its replicas."""
        return self._queued

    def is_full(self, target: Target) -> bool:
        """Return whether a request to there would have to wait."""
        if self._limit is None or target.engine_id is None or target.generation is None:
            return False
        replica = self._replicas.get((target.engine_id, target.generation))
        return replica is not None and replica.out >= self._limit

    async def take(self, target: Target) -> Callable[[], None]:
        """Wait for a slot; call what is returned, once, when the engine has finished with the request.

        Raises:
            ModelUnavailableError: too many wait already.
        """
        if self._limit is None or target.engine_id is None or target.generation is None:
            return _nothing
        incarnation = (target.engine_id, target.generation)
        replica = self._replicas.setdefault(incarnation, _Replica())

        def give_back() -> None:
            self._give_back(incarnation, replica)

        if replica.out < self._limit:
            replica.out += 1
            return give_back
        if self._most_waiting is not None and len(replica.waiting) >= self._most_waiting:
            raise ModelUnavailableError(
                f"replica {target.engine_id} of model {target.model!r} has {replica.out} requests, and "
                f"{len(replica.waiting)} wait for it, which is as many as may",
                model=target.model,
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        replica.waiting.append(turn)
        self._queued[target.model] += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                give_back()  # the slot came at the same moment
            elif turn in replica.waiting:  # else whoever gave a slot back has passed it over
                replica.waiting.remove(turn)
            raise
        finally:
            self._queued[target.model] -= 1
        return give_back

    def _give_back(self, incarnation: _Incarnation, replica: _Replica) -> None:
        while replica.waiting:
            turn = replica.waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # its slot is the one given back
                return
        replica.out -= 1
        if not replica.out:
            self._replicas.pop(incarnation, None)  # engines come and go, and a gateway stays


def _nothing() -> None:
    """No slot was taken."""
