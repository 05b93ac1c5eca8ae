"""From a resolved request to one that may be sent: its load counted, its slot at the replica taken."""

from __future__ import annotations

from collections.abc import Callable

from rolecall.discovery.source import SnapshotSource
from rolecall.errors import ModelUnavailableError
from rolecall.routing.in_flight import InFlight
from rolecall.routing.replica_slots import ReplicaSlots
from rolecall.routing.resolver import Target
from rolecall.routing.standing import is_routable


async def admitted(
    slots: ReplicaSlots, in_flight: InFlight, source: SnapshotSource, target: Target
) -> Callable[[], None]:
    """Wait for a slot; call what is returned when the engine has finished with it. Repeats do nothing.

    The load is counted before the first wait: the next request has to see it.

    Raises:
        ModelUnavailableError: too many wait, or the replica left discovery while this one waited.
    """
    left_engine = in_flight.sent(target.model, target.engine_id, target.generation)
    waits = slots.is_full(target)
    try:
        give_back = await slots.take(target)
    except BaseException:
        left_engine()
        raise
    under_way = True

    def settled() -> None:
        nonlocal under_way
        if under_way:
            under_way = False
            left_engine()
            give_back()

    if waits and not is_routable(source.known(), target):
        settled()
        raise ModelUnavailableError(
            f"replica {target.engine_id} of model {target.model!r} may not be asked any more; "
            "the request had waited for it",
            model=target.model,
        )
    return settled
