"""Routers choose the engine themselves: one process a model, brought by a routing policy.

The *router backend* is what a policy declares (``RoutingPolicy.router``); a *router* is one running
process that it made for one model. Every request of the model goes to the router's ``base_url``, and
the router passes it on to one of its *workers*: the heads that it was told of. Who is told, when, and
what happens when a router dies is the core's business (``rolecall.routers``); a router does what it is
told and says what is true.

All methods of a router are called from one event loop; commands never two at a time. Failures raise
:class:`~rolecall.errors.RouterError`; nothing is retried inside a router but the polling for an
effect that was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from attrs import frozen

from rolecall.ids import ModelId, RoleName
from rolecall.interfaces.engine_backend import Disaggregation


@frozen(kw_only=True)
class RouterWorker:
    """A head as a router knows it.

    half: what it does of a request, in a prefill/decode pair; None: all of it.
    bootstrap_port: where a prefill engine hands its cache over; None for any other.
    """

    base_url: str
    half: Disaggregation | None = None
    bootstrap_port: int | None = None


@frozen(kw_only=True)
class RouterHealth:
    """``alive`` false means dead or not answering; ``detail`` says what was seen."""

    alive: bool
    detail: str


@frozen(kw_only=True)
class RouterLaunch:
    """Everything a backend needs to start one router.

    host, port: where it must listen; the port is reserved for it on this node.
    metrics_port: reserved as well, for routers that insist on a second listener.
    pairs: its workers are the halves of prefill/decode pairs.
    log_path: file that takes its standard output and error.
    options: instance of the backend's ``options`` class.
    """

    role: RoleName
    model: ModelId
    served_model_name: str
    host: str
    port: int
    metrics_port: int
    pairs: bool
    log_path: Path
    options: Any


class Router(Protocol):
    """One router process. ``base_url`` is fixed at construction and valid once ``start`` has returned."""

    base_url: str

    async def start(self, timeout_s: float) -> None:
        """Start the process, in a group of its own, and return when it answers; it has no workers then.

        Raises:
            RouterError: it ended or did not answer in time; the message has the log's tail, and no
                process is left.
        """
        ...

    @property
    def pid(self) -> int | None:
        """Process id of the group's leader; None before start."""
        ...

    def exit_code(self) -> int | None:
        """Exit code once the process has ended (negative: signal), None while it runs."""
        ...

    async def health(self, timeout_s: float) -> RouterHealth:
        """Ask the router itself, not its workers; changes nothing."""
        ...

    async def register(self, worker: RouterWorker, timeout_s: float) -> None:
        """Add a worker and return when requests can go to it: asked once, then polled until listed.

        One that is listed under its URL already is taken out first: what stands there may be an
        earlier engine, and afterwards the URL is served exactly once.

        Raises:
            RouterError: refused, or not listed in time; then it may still be added later.
        """
        ...

    async def deregister(self, base_url: str, timeout_s: float) -> None:
        """Take a worker out and return when it is not listed and can't come to be, by what was asked.

        Requests that are under way are not cut. A URL that is not known does nothing.

        Raises:
            RouterError: it is still listed, or may still be added.
        """
        ...

    async def listed(self, timeout_s: float) -> frozenset[RouterWorker]:
        """The workers that requests may go to now.

        Raises:
            RouterError: the router did not say.
        """
        ...

    async def stop(self, timeout_s: float) -> None:
        """End the process group and wait for it. Repeats do nothing.

        Raises:
            EngineError: a process of the group is still there after ``timeout_s``.
        """
        ...


class RouterBackend(Protocol):
    """What a routing policy brings; constructed without arguments.

    Attributes:
        options: attrs class of the role's ``router_options`` table in the job file.
        pairs: its routers can bring the halves of prefill/decode pairs together.
    """

    options: ClassVar[type[Any]]
    pairs: ClassVar[bool]

    def lost_fields(self, path: str, payload: Mapping[str, Any]) -> tuple[str, ...]:
        """Fields of a request to ``path`` that a router would not pass on, as dotted paths.

        Pure and quick: gateways and clients ask for every request. One that would lose a field is
        refused; ``rid`` alone may be lost, and an abort then relies on the cut connection.
        """
        ...

    def create(self, launch: RouterLaunch) -> Router:
        """Make the router object; starts nothing."""
        ...
