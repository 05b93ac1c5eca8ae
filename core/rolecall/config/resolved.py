"""A job with its plugins: what ``rolecall.config.resolve`` returns.

Holds plugin instances, so it never travels to another process: an actor gets config and file
name, and resolves the part it needs itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from rolecall.config.overrides import Override
from rolecall.config.specs import JobConfig, ModelConfig, RoleConfig
from rolecall.ids import ModelId, RoleName
from rolecall.interfaces.engine_backend import EngineBackend, EngineFeatures
from rolecall.interfaces.observer import Observer
from rolecall.interfaces.placement_mode import PlacementMode
from rolecall.interfaces.role import NamedReward, Role, WeightSource
from rolecall.interfaces.router import RouterBackend
from rolecall.interfaces.routing_policy import RoutingPolicy


@frozen(kw_only=True)
class ResolvedModel:
    """One model of a role.

    Attributes:
        options: instance of the backend's ``options`` class.
        features: what engines with these options can do.
        weight_source: allowed by the role.
        served_model_name: the backend's name for the model.
    """

    model: ModelId
    config: ModelConfig
    backend: EngineBackend
    options: Any
    features: EngineFeatures
    weight_source: WeightSource
    served_model_name: str


@frozen(kw_only=True)
class ResolvedRouter:
    """What the role's routing policy brings; ``options`` is an instance of the backend's class."""

    backend: RouterBackend
    options: Any


@frozen(kw_only=True)
class ResolvedRole:
    """One role; models in the order of the job file.

    Attributes:
        router: None if the policy brings none.
        default_model: the model of a request that names none; None if such a request is refused.
    """

    name: RoleName
    config: RoleConfig
    plugin: Role
    policy: type[RoutingPolicy]
    router: ResolvedRouter | None
    models: Mapping[str, ResolvedModel]
    default_model: str | None


@frozen(kw_only=True)
class ResolvedJob:
    """The whole job; roles and rewards in the order of the job file, whose path is absolute.

    The sink is checked but not made: each process that needs it opens one of its own
    (``rolecall.config.resolve.open_sink``).

    Attributes:
        config: with the keys that ``placement.layout`` stands for.
        explicit: those keys; none without a layout.
    """

    config: JobConfig
    file: Path
    roles: Mapping[str, ResolvedRole]
    mode: PlacementMode
    rewards: tuple[NamedReward, ...]
    observers: tuple[Observer, ...]
    explicit: tuple[Override, ...] = ()
