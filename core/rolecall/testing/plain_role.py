"""A role that passes every payload on to its engines, for tests of gateways and clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import field, frozen

from rolecall.ids import RoleName
from rolecall.interfaces.role import UpstreamCall
from rolecall.interfaces.routing_policy import Candidate, Need, RoutingRequest
from rolecall.plugins.hookspecs import ROLECALL_API
from rolecall.routing.rendezvous import rendezvous


class PassesOn:
    """The plugin of such a role."""

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        return UpstreamCall(path="/generate", payload=payload)

    def endpoints(self) -> Sequence[Any]:
        return ()


class ByKey:
    """A routing policy: a key has the same home everywhere, requests without one share theirs."""

    name: ClassVar[str] = "by_key"
    api_version: ClassVar[int] = ROLECALL_API
    needs: ClassVar[frozenset[Need]] = frozenset()
    router: ClassVar[None] = None

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate:
        return rendezvous(request.affinity_key or "", candidates)


@frozen(kw_only=True)
class PlainRole:
    """Fits ``rolecall.gateway.app.ServedRole``."""

    name: RoleName = field(default=RoleName("critic"))
    plugin: Any = field(factory=PassesOn)
    policy: Any = ByKey
