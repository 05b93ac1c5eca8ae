"""``least_loaded``: of two replicas that come up, the one with fewer requests under way.

A request with an affinity key goes to its key's replica, whatever it has to do.
"""

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

from .two_choices import TwoChoices


class LeastLoaded:
    """Knows what its own gateway or client has under way, not what others have."""

    name: ClassVar[str] = "least_loaded"
    api_version: ClassVar[int] = ROLECALL_API
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LOAD})
    router: ClassVar[type[RouterBackend] | None] = None

    def __init__(self) -> None:
        self._pairs = TwoChoices()

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate:
        if request.affinity_key is not None:
            return rendezvous(request.affinity_key, candidates)
        return self._pairs.choose(candidates, request.load)


@hookimpl
def rolecall_routing_policy() -> type[RoutingPolicy]:
    return LeastLoaded
