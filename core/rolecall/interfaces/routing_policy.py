"""Routing policies choose one replica for one request."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar, Protocol

from attrs import frozen

from rolecall.ids import EngineId
from rolecall.interfaces.router import RouterBackend


class Need(StrEnum):
    """What a policy needs from a request; a request without it is refused with 400."""

    AFFINITY_KEY = "affinity_key"


@frozen(kw_only=True)
class Candidate:
    """A READY, direct-eligible head."""

    engine_id: EngineId
    base_url: str
    generation: int


@frozen(kw_only=True)
class RoutingRequest:
    """What a policy may know about a request."""

    model: str
    affinity_key: str | None = None


class RoutingPolicy(Protocol):
    """One instance per (role, registry epoch, model); constructed without arguments.

    ``select`` is pure apart from the instance's own counters: synchronous, no I/O, no clock.
    ``candidates`` is never empty and sorted by ``engine_id``; the result is one of them.
    The same key over the same candidates gives the same choice in every process.

    Attributes:
        needs: what every request must bring.
        router: the router that chooses in the policy's place, one a model; ``select`` is then never
            called. None: requests go to the engine that ``select`` picks.
    """

    name: ClassVar[str]
    api_version: ClassVar[int]
    needs: ClassVar[frozenset[Need]]
    router: ClassVar[type[RouterBackend] | None]

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate: ...
