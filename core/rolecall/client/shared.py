"""One client per event loop and gateway, shared by all callers, closed with the loop.

A client per sample would read discovery for every sample and open connections for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any
from weakref import WeakKeyDictionary

from rolecall.client.inference_client import InferenceClient
from rolecall.interfaces.routing_policy import RoutingPolicy

_Shelf = dict[tuple[Any, ...], tuple[InferenceClient, AsyncGenerator[None]]]
_shelves: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shelf] = WeakKeyDictionary()


async def shared_client(
    base_url: str,
    *,
    policy: type[RoutingPolicy] | None = None,
    role: str | None = None,
    token: str | None = None,
    max_concurrency: int = 1024,
    timeout_s: float = 600.0,
    max_in_flight_per_replica: int | None = None,
) -> InferenceClient:
    """Return the running loop's client for a gateway; the same arguments give the same client.

    It is closed when the loop ends its asynchronous generators, as ``asyncio.run`` does; callers
    don't close it.
    """
    shelf = _shelves.setdefault(asyncio.get_running_loop(), {})
    key = (base_url.rstrip("/"), policy, role, token, max_concurrency, timeout_s, max_in_flight_per_replica)
    if key not in shelf:
        client = InferenceClient(
            base_url,
            policy=policy,
            role=role,
            token=token,
            max_concurrency=max_concurrency,
            timeout_s=timeout_s,
            max_in_flight_per_replica=max_in_flight_per_replica,
        )
        closing = _close_at_end(client, shelf, key)
        shelf[key] = (client, closing)
        await anext(closing)
    return shelf[key][0]


async def _close_at_end(client: InferenceClient, shelf: _Shelf, key: tuple[Any, ...]) -> AsyncGenerator[None]:
    """Once begun, a loop closes this generator at its own end, and so the client."""
    try:
        yield
    finally:
        shelf.pop(key, None)
        await client.aclose()
