"""``affinity``: every request belongs to its key's replica, so a prefix cache is met again.

Rendezvous hashing over engine ids: a replica that joins or leaves moves only its own keys.
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


class Affinity:
    """Stateless. A request without a key is refused by the core before it gets here."""

    name: ClassVar[str] = "affinity"
    api_version: ClassVar[int] = ROLECALL_API
    needs: ClassVar[frozenset[Need]] = frozenset({Need.AFFINITY_KEY})
    router: ClassVar[type[RouterBackend] | None] = None

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate:
        assert request.affinity_key is not None
        return rendezvous(request.affinity_key, candidates)


@hookimpl
def rolecall_routing_policy() -> type[RoutingPolicy]:
    return Affinity
