"""build_gateway: the HTTP front of one role, as an ASGI app.

The same app for every role: what differs comes from the role's plugin (payloads, more endpoints) and
from its snapshot. It allocates nothing, wakes nothing and reads no reward. Mounted at ``/{role}`` by
:mod:`rolecall.gateway.serve`; any ASGI server will do.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rolecall.client.aborter import Aborter
from rolecall.client.http1_transport import Http1Transport
from rolecall.client.inference_client import CHAT_PATH, GENERATE_PATH
from rolecall.client.transport import Transport
from rolecall.discovery.source import SnapshotSource
from rolecall.errors import PayloadError, PluginContractError, RequestError
from rolecall.gateway.access import Access
from rolecall.gateway.discovery import ENGINES_PATH, Discovery, query_fields
from rolecall.gateway.errors import error_response, plain_error
from rolecall.gateway.forward import Forward, Upstream
from rolecall.gateway.metrics import GatewayMetrics
from rolecall.gateway.openapi import STANDARD
from rolecall.gateway.pages import Pages, RoleGateway
from rolecall.gateway.paths import path_in
from rolecall.gateway.scaling import ScalePages, ScalingPort
from rolecall.gateway.settings import GatewaySettings
from rolecall.ids import RoleName
from rolecall.interfaces.role import Endpoint, Role, UpstreamCall
from rolecall.interfaces.routing_policy import RoutingPolicy
from rolecall.routing.replica_slots import ReplicaSlots
from rolecall.routing.resolver import RouteResolver

_log = logging.getLogger(__name__)

_ABORTS_AT_ONCE = 256

_Handler = Callable[[Request], Awaitable[Response]]
_Endpoint = Forward | Discovery
"""What is an ASGI app itself."""


class ServedRole(Protocol):
    """What a gateway needs of a role; ``ResolvedRole`` has it."""

    @property
    def name(self) -> RoleName: ...

    @property
    def plugin(self) -> Role: ...

    @property
    def policy(self) -> type[RoutingPolicy]: ...


def build_gateway(
    role: ServedRole,
    source: SnapshotSource,
    settings: GatewaySettings,
    *,
    transport: Transport | None = None,
    control: Transport | None = None,
    scaling: ScalingPort | None = None,
) -> ASGIApp:
    """Return the gateway of one role.

    The app owns ``source`` and the transports: its lifespan starts following discovery and, at the
    end, settles what is abandoned and closes them. ``control`` carries aborts. ``scaling`` is the way to the
    role's scaler, for a role that has its endpoints.

    Raises:
        PluginContractError: one of the role's endpoints would hide a standard one or another of its own.
    """
    transport = transport or Http1Transport(max_concurrency=settings.max_concurrency)
    aborter = Aborter(control or Http1Transport(max_concurrency=_ABORTS_AT_ONCE))
    slots = ReplicaSlots(settings.max_in_flight_per_replica, settings.max_queued_per_replica)
    metrics = GatewayMetrics(role.name, lambda: slots.queued)
    upstream = Upstream(
        source=source,
        resolver=RouteResolver(role.policy),
        transport=transport,
        aborter=aborter,
        metrics=metrics,
        settings=settings,
        slots=slots,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        source.follow()
        try:
            yield
        finally:
            await aborter.aclose()
            await transport.aclose()
            await source.aclose()

    pages = Pages(source, metrics)
    discovery = Discovery(source, settings)
    chat = Forward(upstream, _adapt_chat)
    forwards = {
        GENERATE_PATH: Forward(upstream, role.plugin.adapt_generate),
        CHAT_PATH: chat,
        CHAT_PATH.removeprefix("/v1"): chat,
    }
    handlers: dict[str, _Handler | _Endpoint] = {
        **forwards,
        "/v1/models": pages.models,
        ENGINES_PATH: discovery,
        "/health": pages.health,
        "/metrics": pages.metrics,
    }
    standard = [(method, path, handlers.pop(path)) for method, path in STANDARD]
    assert not handlers, "what is served is described"
    endpoints = role.plugin.endpoints()
    scale_pages = ScalePages(
        scaling, max_body_bytes=settings.max_body_bytes, longest_wait_s=settings.max_wait_s
    )
    app = Starlette(
        routes=_routes(standard, endpoints, RoleGateway(role.name, source, scale_pages)),
        exception_handlers={
            RequestError: _on_request_error,
            HTTPException: _on_http_exception,
            Exception: _on_bug,
        },
        lifespan=lifespan,
    )
    # Its redirects to a path without the last slash would repeat whatever host a request names.
    app.router.redirect_slashes = False
    return Access(_Gateway(app, forwards, discovery, endpoints), settings, metrics.refused)


class _Gateway:
    """The whole gateway. Generation goes straight to its forward: Starlette's way there costs as much as the
    forward itself. So does discovery, for which thousands wait. All else is Starlette's, also these paths
    with a query that may be of a role's own endpoint."""

    def __init__(
        self,
        app: Starlette,
        forwards: Mapping[str, Forward],
        discovery: Discovery,
        endpoints: Sequence[Endpoint],
    ) -> None:
        self._app = app
        self._forwards = forwards
        self._discovery = discovery
        at_engines = [endpoint for endpoint in endpoints if endpoint.path == ENGINES_PATH]
        self._of_role = frozenset(name for endpoint in at_engines for name in endpoint.query)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and not scope["query_string"]:
            forward = self._forwards.get(path_in(scope))
            if forward is not None:
                await forward(scope, receive, send)
                return
        elif self._is_discovery(scope):
            await self._discovery(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_discovery(self, scope: Scope) -> bool:
        if scope["type"] != "http" or scope["method"] != "GET" or path_in(scope) != ENGINES_PATH:
            return False
        return self._of_role.isdisjoint(query_fields(scope["query_string"]))


def _adapt_chat(payload: dict[str, Any]) -> UpstreamCall:
    messages = payload.get("messages")
    if not isinstance(messages, list) or not messages:
        raise PayloadError("messages: must be a non-empty list", field="messages")
    return UpstreamCall(path=CHAT_PATH, payload=payload)


# --- routes -----------------------------------------------------------------------------


def _routes(
    standard: list[tuple[str, str, _Handler | _Endpoint]], endpoints: Any, gateway: RoleGateway
) -> list[BaseRoute]:
    """Return one route a path, choosing among handlers by method, and by query where there are several."""
    table: dict[str, _Methods] = {}
    for method, path, handler in standard:
        table.setdefault(path, _Methods())[method] = _Choice(default=handler)
    for endpoint in endpoints:
        methods = table.setdefault(endpoint.path, _Methods())
        choice = methods.setdefault(endpoint.method.upper(), _Choice(default=None))
        choice.add(endpoint, gateway)
    return [Route(path, endpoint=methods, methods=list(methods)) for path, methods in table.items()]


class _Methods(dict[str, "_Choice"]):
    """ASGI endpoint: what serves each method of a path. Of a route with these methods, so all others are
    refused before, with the list of these."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        await self["GET" if method == "HEAD" else method](scope, receive, send)


class _Choice:
    """ASGI endpoint: the handler whose query parameters match, else the default."""

    def __init__(self, default: _Handler | _Endpoint | None) -> None:
        self._default = default
        self._by_query: list[tuple[Mapping[str, str], _Handler]] = []

    def add(self, endpoint: Endpoint, gateway: RoleGateway) -> None:
        async def handler(request: Request) -> Response:
            return await endpoint.handler(request, gateway)

        taken = (not endpoint.query and self._default is not None) or any(
            query == endpoint.query for query, _ in self._by_query
        )
        if taken:
            raise PluginContractError(
                f"role {gateway.role!r}: endpoint {endpoint.method} {endpoint.path} "
                f"with query {dict(endpoint.query)} is already served"
            )
        if endpoint.query:
            self._by_query.append((endpoint.query, handler))
        else:
            self._default = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        handler = self._chosen(request)
        if isinstance(handler, _Endpoint):
            await handler(scope, receive, send)
        else:
            response = await handler(request)
            await response(scope, receive, send)

    def _chosen(self, request: Request) -> _Handler | _Endpoint:
        given = request.query_params
        for query, handler in self._by_query:
            if all(given.get(name) == value for name, value in query.items()):
                return handler
        if self._default is None:
            raise HTTPException(404)
        return self._default


# --- errors outside of forwards -----------------------------------------------------------


async def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error, path_in(request.scope))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = path_in(request.scope)
    found = {404: f"there is no {path!r:.120} here", 405: f"{path!r:.120} does not take {request.method}"}
    message = found.get(error.status_code, error.detail)
    return plain_error(error.status_code, message, path, headers=dict(error.headers or {}))


async def _on_bug(request: Request, error: Exception) -> Response:
    # Starlette raises the error again after this answer, so the server logs it with its traceback.
    del error
    return plain_error(500, "the gateway failed; its log has the reason", path_in(request.scope))
