"""``round_robin``: replicas take turns; a request with an affinity key goes to its key's replica."""

from __future__ import annotations

from bisect import bisect_right
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
        self._last = ""

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate:
        if request.affinity_key is not None:
            return rendezvous(request.affinity_key, candidates)
        # The next after the last one served, by id: replicas that come and go disturb no one's turn.
        after = bisect_right(candidates, self._last, key=lambda candidate: candidate.engine_id)
        chosen = candidates[after % len(candidates)]
        self._last = chosen.engine_id
        return chosen


@hookimpl
def rolecall_routing_policy() -> type[RoutingPolicy]:
    return RoundRobin
