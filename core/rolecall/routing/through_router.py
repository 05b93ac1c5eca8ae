"""What is different for a request that goes to its model's router instead of to an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolecall.discovery.snapshot import Snapshot
from rolecall.errors import PayloadError
from rolecall.interfaces.routing_policy import RoutingPolicy
from rolecall.routing.resolver import Target


def check_fields(policy: type[RoutingPolicy], target: Target, path: str, payload: Mapping[str, Any]) -> bool:
    """Refuse a request of which the model's router would drop a part; tell whether its ``rid`` gets through.

    Raises:
        PayloadError: names the fields that the router does not pass on.
    """
    if target.engine_id is not None or policy.router is None:
        return True
    lost = policy.router().lost_fields(path, payload)
    named = [name for name in lost if name != "rid"]
    if named:
        raise PayloadError(
            f"{', '.join(named)}: the router of model {target.model!r} (routing policy {policy.name!r}) does "
            "not pass this on; leave it out, or use a routing policy without a router",
            field=named[0],
        )
    return "rid" not in lost


def engines_behind(snapshot: Snapshot | None, target: Target) -> tuple[str, ...]:
    """Return the URLs of the engines that may be at work on a request that was sent to a target.

    Behind a router that is every head that discovery shows, and none for the halves of prefill/decode
    pairs, which it never shows.
    """
    if target.engine_id is not None:
        return (target.base_url,)
    entry = snapshot.models.get(target.model) if snapshot is not None else None
    if entry is None:
        return ()
    return tuple(engine.base_url for engine in entry.engines if engine.base_url is not None)
