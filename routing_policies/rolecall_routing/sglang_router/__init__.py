"""``sglang_router``: SGLang's own router, one process a model, chooses the engine.

Importing this module imports neither the router nor an HTTP client: gateways, direct clients and
planning need the declaration only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rolecall.api import (
    ROLECALL_API,
    Candidate,
    Need,
    Router,
    RouterBackend,
    RouterLaunch,
    RoutingPolicy,
    RoutingRequest,
    hookimpl,
)

from .fields import lost_fields
from .options import SglangRouterOptions


class SglangRouterBackend:
    """Makes a router for one model; needs the extra ``rolecall[sglang-router]`` where it is started."""

    options: ClassVar[type[Any]] = SglangRouterOptions
    pairs: ClassVar[bool] = True

    def lost_fields(self, path: str, payload: Mapping[str, Any]) -> tuple[str, ...]:
        return lost_fields(path, payload)

    def create(self, launch: RouterLaunch) -> Router:
        from .router import SglangRouter

        return SglangRouter(launch)


class SglangRouterPolicy:
    """Every request goes to the model's router."""

    name: ClassVar[str] = "sglang_router"
    api_version: ClassVar[int] = ROLECALL_API
    needs: ClassVar[frozenset[Need]] = frozenset()
    router: ClassVar[type[RouterBackend] | None] = SglangRouterBackend

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate:
        del candidates, request
        raise RuntimeError("the router chooses the engine; this policy is never asked")


@hookimpl
def rolecall_routing_policy() -> type[RoutingPolicy]:
    return SglangRouterPolicy
