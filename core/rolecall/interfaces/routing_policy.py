"""Routing policies choose one replica for one request."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar, Protocol

from attrs import frozen

from rolecall.ids import EngineId
from rolecall.interfaces.router import RouterBackend


class Need(StrEnum):
    """What a policy has to be told; the core finds out nothing for policies that do not ask.

    AFFINITY_KEY: ``RoutingRequest.affinity_key``; a request without one is refused with 400.
    PROMPT: ``RoutingRequest.prompt``.
    LOAD: ``RoutingRequest.load``.
    """

    AFFINITY_KEY = "affinity_key"
    PROMPT = "prompt"
    LOAD = "load"


@frozen(kw_only=True)
class Candidate:
    """A READY, direct-eligible head."""

    engine_id: EngineId
    base_url: str
    generation: int


class Load(Protocol):
    """Requests that this gateway or client has sent to a model's engines and that they have not finished
    with. What others have sent there is not known. Live: read it while choosing, don't keep it."""

    @property
    def total(self) -> int:
        """Requests under way at all engines of the model."""
        ...

    def at(self, candidate: Candidate) -> int:
        """Requests under way at one candidate; none at its next incarnation."""
        ...


class _Idle:
    """Nothing is under way."""

    total = 0

    def at(self, candidate: Candidate) -> int:
        del candidate
        return 0


IDLE: Load = _Idle()
"""The load of a policy that did not ask for it."""


@frozen(kw_only=True)
class RoutingRequest:
    """What a policy may know about a request.

    load: for a policy that needs LOAD; else nothing is under way by it.
    prompt: text or token ids as they were sent, for a policy that needs PROMPT. Of a chat, a text in
        which conversations that begin alike begin alike. None if nobody asked, or there is none.
    """

    model: str
    affinity_key: str | None = None
    prompt: str | Sequence[int] | None = None
    load: Load = IDLE


class RoutingPolicy(Protocol):
    """One instance per (role, registry epoch, model); constructed without arguments.

    ``select`` is pure apart from the instance's own counters: synchronous, no I/O, no clock.
    ``candidates`` is never empty and sorted by ``engine_id``; the result is one of them. It is the same tuple
    until discovery shows another fleet, so what was derived from it may be kept by its identity.
    The same key over the same candidates gives the same choice in every process.

    Attributes:
        needs: what ``select`` has to be told.
        router: the router that chooses in the policy's place, one a model; ``select`` is then never
            called. None: requests go to the engine that ``select`` picks.
    """

    name: ClassVar[str]
    api_version: ClassVar[int]
    needs: ClassVar[frozenset[Need]]
    router: ClassVar[type[RouterBackend] | None]

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate: ...
