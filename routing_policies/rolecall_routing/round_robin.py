"""``round_robin``: replicas take turns; a request with an affinity key goes to its key's replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rolecall.api import (
    ROLECALL_API,
    Candidate,
    Need,
    RouterBackend,
    RoutingPolicy,
    RoutingRequest,
    hookimpl,
    rendezvous,
)


class RoundRobin:
    """Turns are counted per instance, so per (role, epoch, model)."""

    name: ClassVar[str] = "round_robin"
    api_version: ClassVar[int] = ROLECALL_API
    needs: ClassVar[frozenset[Need]] = frozenset()
    router: ClassVar[type[RouterBackend] | None] = None

    def __init__(self) -> None:
        self._last: str | None = None

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate:
        if request.affinity_key is not None:
            return rendezvous(request.affinity_key, candidates)
        # The next after the last one served, by id: replicas that come and go disturb no one's turn.
        last = self._last
        after = (candidate for candidate in candidates if last is None or candidate.engine_id > last)
        chosen = next(after, candidates[0])
        self._last = chosen.engine_id
        return chosen


@hookimpl
def rolecall_routing_policy() -> type[RoutingPolicy]:
    return RoundRobin
