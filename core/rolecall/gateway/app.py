"""build_gateway: the HTTP front of one role, as a Starlette app.

The same app for every role: what differs comes from the role's plugin (payloads, more endpoints) and
from its snapshot. It allocates nothing, wakes nothing and reads no reward. Mounted at ``/{role}`` by
:mod:`rolecall.gateway.serve`; any ASGI server will do.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from rolecall.client.aborter import Aborter
from rolecall.client.httpx_transport import HttpxTransport
from rolecall.client.inference_client import CHAT_PATH, GENERATE_PATH
from rolecall.client.transport import Transport
from rolecall.discovery.source import SnapshotSource
from rolecall.errors import PayloadError, PluginContractError, RequestError
from rolecall.gateway.auth import BearerToken
from rolecall.gateway.errors import error_response, plain_error
from rolecall.gateway.forward import Forward, Upstream
from rolecall.gateway.metrics import GatewayMetrics
from rolecall.gateway.pages import Pages, RoleGateway
from rolecall.gateway.paths import path_in
from rolecall.gateway.settings import GatewaySettings
from rolecall.ids import RoleName
from rolecall.interfaces.role import Endpoint, Role, UpstreamCall
from rolecall.interfaces.routing_policy import RoutingPolicy
from rolecall.routing.resolver import RouteResolver

_log = logging.getLogger(__name__)

_ABORTS_AT_ONCE = 256

_Handler = Callable[[Request], Awaitable[Response]]


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
) -> Starlette:
    """Return the gateway of one role.

    The app owns ``source`` and the transports: its lifespan starts following discovery and, at the
    end, settles what is abandoned and closes them. ``control`` carries aborts.

    Raises:
        PluginContractError: one of the role's endpoints would hide a standard one or another of its own.
    """
    transport = transport or HttpxTransport(max_concurrency=settings.max_concurrency)
    aborter = Aborter(control or HttpxTransport(max_concurrency=_ABORTS_AT_ONCE))
    metrics = GatewayMetrics(role.name)
    upstream = Upstream(
        source=source,
        resolver=RouteResolver(role.policy),
        transport=transport,
        aborter=aborter,
        metrics=metrics,
        settings=settings,
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

    pages = Pages(source, metrics, settings)
    chat = Forward(upstream, _adapt_chat)
    standard: list[tuple[str, str, _Handler | Forward]] = [
        ("POST", GENERATE_PATH, Forward(upstream, role.plugin.adapt_generate)),
        ("POST", CHAT_PATH, chat),
        ("POST", CHAT_PATH.removeprefix("/v1"), chat),
        ("GET", "/v1/models", pages.models),
        ("GET", "/engines", pages.engines),
        ("GET", "/health", pages.health),
        ("GET", "/metrics", pages.metrics),
    ]
    token = settings.bearer_token
    return Starlette(
        routes=_routes(standard, role.plugin.endpoints(), RoleGateway(role.name, source)),
        middleware=[Middleware(BearerToken, token=token)] if token is not None else [],
        exception_handlers={
            RequestError: _on_request_error,
            HTTPException: _on_http_exception,
            Exception: _on_bug,
        },
        lifespan=lifespan,
    )


def _adapt_chat(payload: dict[str, Any]) -> UpstreamCall:
    messages = payload.get("messages")
    if not isinstance(messages, list) or not messages:
        raise PayloadError("messages: must be a non-empty list", field="messages")
    return UpstreamCall(path=CHAT_PATH, payload=payload)


# --- routes -----------------------------------------------------------------------------


def _routes(
    standard: list[tuple[str, str, _Handler | Forward]], endpoints: Any, gateway: RoleGateway
) -> list[BaseRoute]:
    """Return one route a (method, path), choosing among handlers by query where there are several."""
    table: dict[tuple[str, str], _Choice] = {
        (method, path): _Choice(default=handler) for method, path, handler in standard
    }
    for endpoint in endpoints:
        choice = table.setdefault((endpoint.method.upper(), endpoint.path), _Choice(default=None))
        choice.add(endpoint, gateway)
    return [Route(path, endpoint=choice, methods=[method]) for (method, path), choice in table.items()]


class _Choice:
    """ASGI endpoint: the handler whose query parameters match, else the default."""

    def __init__(self, default: _Handler | Forward | None) -> None:
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
        if isinstance(handler, Forward):
            await handler(scope, receive, send)
        else:
            response = await handler(request)
            await response(scope, receive, send)

    def _chosen(self, request: Request) -> _Handler | Forward:
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
