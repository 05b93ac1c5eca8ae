"""What authors of plugins test with: a contract class for each kind, fakes, a scripted engine.

    from rolecall.testing import RoutingPolicyContract

Names are imported when they are asked for, since a contract brings pytest and what its kind is about.
The fixtures of :mod:`rolecall.testing.pytest_plugin` are there in every pytest run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolecall.testing.batch_sink_contract import BatchSinkContract as BatchSinkContract
    from rolecall.testing.engine_backend_contract import EngineBackendContract as EngineBackendContract
    from rolecall.testing.observer_contract import ObserverContract as ObserverContract
    from rolecall.testing.placement_mode_contract import PlacementModeContract as PlacementModeContract
    from rolecall.testing.reward_adapter_contract import RewardAdapterContract as RewardAdapterContract
    from rolecall.testing.role_contract import RoleContract as RoleContract
    from rolecall.testing.routing_policy_contract import RoutingPolicyContract as RoutingPolicyContract

_HOMES = {
    "BatchSinkContract": "batch_sink_contract",
    "EngineBackendContract": "engine_backend_contract",
    "ObserverContract": "observer_contract",
    "PlacementModeContract": "placement_mode_contract",
    "RewardAdapterContract": "reward_adapter_contract",
    "RoleContract": "role_contract",
    "RoutingPolicyContract": "routing_policy_contract",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"{__name__} has no {name}; it has {', '.join(sorted(_HOMES))}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
