"""Resolve against a live snapshot source: cached first, then once more against a new snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolecall.discovery.source import SnapshotSource
from rolecall.errors import ModelUnavailableError
from rolecall.routing.resolver import RouteResolver, Target


async def resolve_fresh(
    resolver: RouteResolver,
    source: SnapshotSource,
    *,
    model: object = None,
    route_key: object = None,
    affinity_key: str | None = None,
    payload: Mapping[str, Any] | None = None,
) -> Target:
    """Resolve against the cached snapshot and, if the model is unavailable, once more against a new one.

    A wrong request is refused at once: no newer snapshot would make it right.

    Raises:
        PayloadError, ModelUnavailableError: see :meth:`RouteResolver.resolve`.
        RegistryUnavailableError: no valid snapshot can be read.
    """
    snapshot = await source.current()
    try:
        return resolver.resolve(
            snapshot, model=model, route_key=route_key, affinity_key=affinity_key, payload=payload
        )
    except ModelUnavailableError:
        snapshot = await source.refresh()
    return resolver.resolve(
        snapshot, model=model, route_key=route_key, affinity_key=affinity_key, payload=payload
    )
