"""Routing policy ``prefix_aware``: prompts that begin alike meet the same replica, within bounds on load.

The entry point names this module; rolecall imports it only when a job file selects ``prefix_aware``.
"""

from __future__ import annotations

from rolecall.api import RoutingPolicy, hookimpl

from .policy import PrefixAware

__all__ = ["PrefixAware", "rolecall_routing_policy"]


@hookimpl
def rolecall_routing_policy() -> type[RoutingPolicy]:
    """Return the policy's class."""
    return PrefixAware
