"""The policy: the longest shared prefix among replicas that have room."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from rolecall.api import (
    ROLECALL_API,
    Candidate,
    Load,
    Need,
    RouterBackend,
    RoutingRequest,
    rendezvous,
)

from .prefixes import ServedPrefixes, prefix_keys


class PrefixAware:
    """Where the longest part of the prompt was served before, unless that replica has too much to do.

    A request with an affinity key goes to its key's replica, whatever its prompt: the same one in every
    process. Without a key, replicas without room are left out; of the others, the one that served the
    longest prefix of the prompt is chosen. Prefixes that nobody with room has served have a home by
    rendezvous hashing over the prompt's first chunk, so gateways and clients agree on it without asking
    each other.

    What was chosen is remembered at once: the second of two requests follows the first, although no answer
    has come yet.

    Attributes:
        epsilon: a replica has room while it has less than ``(1 + epsilon)`` times the mean of requests in
            flight, this one counted.
    """

    name: ClassVar[str] = "prefix_aware"
    api_version: ClassVar[int] = ROLECALL_API
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PROMPT, Need.LOAD})
    router: ClassVar[type[RouterBackend] | None] = None
    epsilon: ClassVar[float] = 0.25

    def __init__(self) -> None:
        self._served = ServedPrefixes()
        self._turns = 0

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate:
        if request.affinity_key is not None:
            return rendezvous(request.affinity_key, candidates)
        room = self._with_room(candidates, request.load)
        prefixes = prefix_keys(request.prompt)
        if not prefixes:
            self._turns += 1
            return rendezvous(f"turn {self._turns}", room)
        best = self._served.longest(prefixes, room) or room
        chosen = rendezvous(prefixes[0].hex(), best)
        self._served.add(prefixes, chosen)
        return chosen

    def _with_room(self, candidates: Sequence[Candidate], load: Load) -> Sequence[Candidate]:
        """Return who may get one more; the least loaded always may, so there is one."""
        counts = [load.at(candidate) for candidate in candidates]
        limit = math.ceil((1 + self.epsilon) * (sum(counts) + 1) / len(candidates))
        if max(counts) < limit:
            return candidates
        return [one for one, count in zip(candidates, counts, strict=True) if count < limit]
