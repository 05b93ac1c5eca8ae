"""Snapshots for tests, in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rolecall.discovery.snapshot import (
    EngineEntry,
    ModelEntry,
    ModelState,
    RouteMode,
    Routing,
    Snapshot,
)
from rolecall.engines.replica_state import ReplicaState
from rolecall.ids import ModelId, engine_id
from rolecall.interfaces.role import WeightSource

EPOCH = "00000000-0000-4000-8000-000000000001"
OTHER_EPOCH = "00000000-0000-4000-8000-000000000002"


def model_entry(
    model: str,
    urls: Sequence[str] = (),
    *,
    state: ReplicaState = ReplicaState.READY,
    served_model_name: str | None = None,
    generation: int = 1,
    router_url: str | None = None,
) -> ModelEntry:
    """A model with one replica a URL, all in ``state``."""
    ready = state is ReplicaState.READY
    return ModelEntry(
        state=ModelState(state.value),
        route_mode=RouteMode.DIRECT if router_url is None else RouteMode.SGLANG_ROUTER,
        router_url=router_url,
        weight_source=WeightSource.STATIC,
        weight_version=None,
        served_model_name=served_model_name or f"served/{model}",
        engines=tuple(
            EngineEntry(
                engine_id=engine_id(ModelId(model), index),
                base_url=url if state is not ReplicaState.FAILED else None,
                state=state,
                direct_eligible=ready,
                generation=generation,
            )
            for index, url in enumerate(urls)
        ),
    )


def snapshot_of(
    models: Mapping[str, ModelEntry],
    *,
    policy: str,
    role: str = "critic",
    epoch: str = EPOCH,
    revision: int = 1,
    default_model: str | None = None,
    route_keys: Mapping[str, str] | None = None,
    aliases: Mapping[str, str] | None = None,
) -> Snapshot:
    """A snapshot of ``models``; a single model is the default."""
    only = next(iter(models)) if len(models) == 1 else None
    values: dict[str, Any] = {"route_key_map": dict(route_keys or {}), "aliases": dict(aliases or {})}
    return Snapshot(
        role=role,
        registry_epoch=epoch,
        topology_revision=revision,
        routing=Routing(default_model=default_model or only, policy=policy, **values),
        models=dict(models),
    )
