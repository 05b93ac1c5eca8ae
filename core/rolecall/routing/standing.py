"""Whether a target still stands in discovery."""

from __future__ import annotations

from rolecall.discovery.snapshot import Snapshot
from rolecall.routing.resolver import Target, routable


def is_routable(snapshot: Snapshot | None, target: Target) -> bool:
    """Whether the very incarnation that was asked may still be asked; a router counts by its model.

    True when nothing is known, so that nobody gives an engine up for lack of news.
    """
    if snapshot is None:
        return True
    entry = snapshot.models.get(target.model)
    if entry is None:
        return False
    if target.engine_id is None:
        return routable(entry) and entry.router_url == target.base_url
    return any(
        engine.engine_id == target.engine_id
        and engine.generation == target.generation
        and engine.direct_eligible
        for engine in entry.engines
    )
