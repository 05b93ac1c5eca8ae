"""Gateways of several roles on one socket, without Ray: what ``rolecall gateway`` runs in each process.

A role's gateway is at ``/{role}``, as on Ray Serve, and whoever watches the process asks ``/-/healthz``, as
there. The apps are those that Ray Serve has, too; only who listens differs.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from attrs import field, frozen
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rolecall.gateway.errors import plain_error
from rolecall.listener import Listener, lifespan

HEALTH_PATH = "/-/healthz"

_QUIET_S = 1.0
"""How long a process that ends goes on answering on connections that its callers have open."""

_IDLE_S = 75
"""A caller's idle connection is kept longer than the proxies in front keep theirs: nginx 60 s. Who closes
first must not be the one who is sent requests."""


class Front:
    """ASGI app: requests to the gateways of their roles. The gateways' lifespans are run by who serves it."""

    def __init__(self, gateways: Mapping[str, ASGIApp]) -> None:
        self._gateways = {role: (gateway, f"/{role}") for role, gateway in gateways.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        found = self._gateways.get(path[1:].partition("/")[0])
        if found is not None:
            gateway, scope["root_path"] = found
            await gateway(scope, receive, send)
            return
        if path == HEALTH_PATH:
            answer = PlainTextResponse("success")
        else:
            answer = plain_error(
                404, f"there is no {path!r:.120} here; roles: {', '.join(self._gateways)}", path
            )
        await answer(scope, receive, send)


@frozen(kw_only=True)
class Ending:
    """How a front is told to end.

    drain: take nobody new, answer those who are there.
    cut: end now, whoever is there.
    at_drain: called when draining begins.
    """

    drain: asyncio.Event = field(factory=asyncio.Event)
    cut: asyncio.Event = field(factory=asyncio.Event)
    at_drain: list[Callable[[], None]] = field(factory=list[Callable[[], None]])

    def ask(self) -> None:
        """Drain when asked once, cut when asked again."""
        if self.drain.is_set():
            self.cut.set()
            return
        self.drain.set()
        for told in self.at_drain:
            told()


async def serve_front(
    gateways: Mapping[str, ASGIApp],
    bound: socket.socket,
    *,
    drain_s: float,
    ending: Ending,
    ready: Callable[[], None],
) -> None:
    """Serve until told to end; then callers have ``drain_s`` to be answered.

    What is cut after that, the gateways have their engines abort. ``bound`` is closed at the end.

    Raises:
        RolecallError: a gateway did not start.
    """
    listener = Listener(Front(gateways), bound, timeout_keep_alive=_IDLE_S)
    async with AsyncExitStack() as stack:
        for gateway in gateways.values():
            await stack.enter_async_context(lifespan(gateway))
        stack.push_async_callback(listener.stop)
        await listener.start()
        ready()
        await ending.drain.wait()
        await _first(listener.drain(quiet_s=_QUIET_S, timeout_s=drain_s), ending.cut.wait())


async def _first(*waits: Awaitable[object]) -> None:
    """Return when one of them has ended; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
