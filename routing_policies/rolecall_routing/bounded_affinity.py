"""``bounded_affinity``: every key has a replica, and no replica is given much more than its share.

Consistent hashing with bounded loads: a request goes to its key's replica while that has room, else to the
next one in the key's own order. A hot key thereby fills a few replicas, always the same ones, instead of
one, and what it does not fill stays free for the other keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from rolecall.api import (
    ROLECALL_API,
    Candidate,
    Need,
    RouterBackend,
    RoutingPolicy,
    RoutingRequest,
    homes,
    hookimpl,
    rendezvous,
)

from .two_choices import TwoChoices


class BoundedAffinity:
    """A request without a key goes where there is less to do, by the power of two choices.

    Attributes:
        bound: a replica has room below so many times the mean of requests under way, this one counted.
        always: and whatever the mean, below so many: an engine that batches is not busy with them.
    """

    name: ClassVar[str] = "bounded_affinity"
    api_version: ClassVar[int] = ROLECALL_API
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LOAD})
    router: ClassVar[type[RouterBackend] | None] = None
    bound: ClassVar[float] = 1.25
    always: ClassVar[int] = 16

    def __init__(self) -> None:
        self._pairs = TwoChoices()

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate:
        key, load = request.affinity_key, request.load
        if key is None:
            return self._pairs.choose(candidates, load)
        limit = max(self.always, math.ceil(self.bound * (load.total + 1) / len(candidates)))
        home = rendezvous(key, candidates)
        if load.at(home) < limit:
            return home
        # Not all can be at the limit, which is above the mean; but those that left are counted, too.
        return next((one for one in homes(key, candidates) if load.at(one) < limit), home)


@hookimpl
def rolecall_routing_policy() -> type[RoutingPolicy]:
    return BoundedAffinity
