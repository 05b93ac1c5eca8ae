"""The port through which a model's manager says who may be asked, whoever chooses among them.

The manager calls :meth:`Membership.settle` right before it makes a change visible, with every
replica that is READY. So a replica is shown as routable only once it can be reached, and one that is
to be drained, updated or stopped is out of reach before that begins. Where a policy chooses among the
heads in discovery there is nobody else to tell: :class:`DirectRoute`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from attrs import frozen

from rolecall.discovery.snapshot import RouteMode
from rolecall.ids import EngineId
from rolecall.interfaces.router import RouterWorker


@frozen(kw_only=True)
class Member:
    """A READY replica: its head, and which of its lives this is."""

    worker: RouterWorker
    generation: int


class Membership(Protocol):
    """What a manager knows of whoever brings requests to its replicas."""

    @property
    def route_mode(self) -> RouteMode: ...

    @property
    def router_url(self) -> str | None:
        """Where requests go; None for direct routing, and while no router can take any."""
        ...

    async def settle(self, members: Mapping[EngineId, Member]) -> None:
        """Bring requests to exactly these replicas from now on; never raises, and takes a few seconds at
        most.

        When this returns, no request is brought to a replica that is not in ``members``. Of those
        that are, :meth:`reaches` tells which ones requests are brought to; the others are tried again
        until the next call.
        """
        ...

    def reaches(self, engine: EngineId) -> bool:
        """Whether requests are brought to a replica now."""
        ...

    @property
    def problem(self) -> str | None:
        """Why not every member is reached; None if all are."""
        ...


class DirectRoute:
    """Requests go where discovery says, so whoever is shown is reached."""

    route_mode = RouteMode.DIRECT
    router_url = None
    problem = None

    async def settle(self, members: Mapping[EngineId, Member]) -> None:
        del members

    def reaches(self, engine: EngineId) -> bool:
        del engine
        return True
