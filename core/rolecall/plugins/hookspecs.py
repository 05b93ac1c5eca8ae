"""Hook specifications: one hook a kind of plugin.

An entry point names a module; the module implements the hook of its kind and returns the
plugin's class:

    from rolecall.api import hookimpl

    @hookimpl
    def rolecall_routing_policy() -> type[RoutingPolicy]:
        return MyPolicy
"""

from __future__ import annotations

import pluggy

from rolecall.interfaces.batch_sink import BatchSink
from rolecall.interfaces.engine_backend import EngineBackend
from rolecall.interfaces.observer import Observer
from rolecall.interfaces.placement_mode import PlacementMode
from rolecall.interfaces.reward_adapter import RewardAdapter
from rolecall.interfaces.role import Role
from rolecall.interfaces.routing_policy import RoutingPolicy

ROLECALL_API = 1
"""Version of the plugin contract; a plugin's ``api_version`` must equal it."""

PROJECT = "rolecall"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def rolecall_role() -> type[Role]:
    """Return the role class."""
    raise NotImplementedError


@hookspec(firstresult=True)
def rolecall_routing_policy() -> type[RoutingPolicy]:
    """Return the routing-policy class."""
    raise NotImplementedError


@hookspec(firstresult=True)
def rolecall_placement_mode() -> type[PlacementMode]:
    """Return the placement-mode class."""
    raise NotImplementedError


@hookspec(firstresult=True)
def rolecall_reward_adapter() -> type[RewardAdapter]:
    """Return the reward-adapter class."""
    raise NotImplementedError


@hookspec(firstresult=True)
def rolecall_engine_backend() -> type[EngineBackend]:
    """Return the engine-backend class."""
    raise NotImplementedError


@hookspec(firstresult=True)
def rolecall_batch_sink() -> type[BatchSink]:
    """Return the batch-sink class."""
    raise NotImplementedError


@hookspec(firstresult=True)
def rolecall_observer() -> type[Observer]:
    """Return the observer class."""
    raise NotImplementedError
