"""RoleTopology: turns what a role's managers know into snapshots with honest revisions.

Pure: no clock, no registry, no Ray. The role service owns one for the life of one incarnation and
calls :meth:`RoleTopology.update` with everything it knows; the result is published only if it
changed. The epoch is given from outside (:func:`new_epoch`) and never reused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import uuid4

from attrs import evolve, frozen

from rolecall.discovery.snapshot import EngineEntry, ModelEntry, ModelState, RouteMode, Routing, Snapshot
from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import SnapshotError
from rolecall.ids import EngineId, RoleName
from rolecall.interfaces.engine_backend import Disaggregation
from rolecall.interfaces.role import WeightSource


@frozen(kw_only=True)
class EngineView:
    """One replica as its manager sees it.

    reached: requests are brought to it; false while the model's router does not know it.
    half: it does half of each request, in a prefill/decode pair; such a replica is never shown.
    """

    engine_id: EngineId
    base_url: str | None
    state: ReplicaState
    generation: int
    reached: bool = True
    half: Disaggregation | None = None


@frozen(kw_only=True)
class ModelView:
    """One model as its manager sees it.

    state: None lets the replicas speak; give one to overrule them, e.g. FAILED for a manager that
        did not answer. A model overruled to anything but READY shows no eligible replica.
    router_url: the model's external router; None routes directly.
    """

    served_model_name: str
    weight_source: WeightSource
    weight_version: str | None = None
    engines: tuple[EngineView, ...] = ()
    state: ModelState | None = None
    route_mode: RouteMode = RouteMode.DIRECT
    router_url: str | None = None


def new_epoch() -> str:
    """Return the registry epoch of a new manager incarnation."""
    return str(uuid4())


def build_routing(
    *,
    served_names: Mapping[str, str],
    default_model: str | None,
    route_keys: Mapping[str, str],
    aliases: Mapping[str, str],
    policy: str,
) -> Routing:
    """Return the routing part of a role's snapshots.

    ``served_names`` is model → the backend's name for it. That name becomes an alias too, but only
    where it can mean one model alone. With a single model it is the default.
    """
    counts = Counter(served_names.values())
    implied = {
        served: model
        for model, served in served_names.items()
        if counts[served] == 1 and served not in served_names and served not in aliases
    }
    only = next(iter(served_names)) if len(served_names) == 1 else None
    return Routing(
        default_model=default_model if default_model is not None else only,
        route_key_map=dict(route_keys),
        aliases={**implied, **aliases},
        policy=policy,
    )


class RoleTopology:
    """The snapshots of one role and one manager incarnation, in order."""

    def __init__(self, role: RoleName, routing: Routing, epoch: str) -> None:
        self._role = role
        self._routing = routing
        self._epoch = epoch
        self._snapshot: Snapshot | None = None

    @property
    def epoch(self) -> str:
        """Distinguishes this topology's revisions from those of an earlier incarnation."""
        return self._epoch

    @property
    def snapshot(self) -> Snapshot | None:
        """The last snapshot, None before the first update."""
        return self._snapshot

    def update(self, models: Mapping[str, ModelView]) -> tuple[Snapshot, bool]:
        """Return the snapshot for ``models``, and whether it differs from the one before.

        The revision starts at 1 and rises only with a visible change; without one the earlier
        snapshot is returned. A refused update changes nothing.

        Raises:
            SnapshotError: a value is invalid, a generation went back, or a replica moved to another
                URL under its old generation.
        """
        last = self._snapshot
        snapshot = Snapshot(
            role=self._role,
            registry_epoch=self._epoch,
            topology_revision=1 if last is None else last.topology_revision,
            routing=self._routing,
            models={name: _entry(models[name]) for name in sorted(models)},
        )
        if last is not None:
            if snapshot == last:
                return last, False
            _check_generations(last, snapshot)
            snapshot = evolve(snapshot, topology_revision=last.topology_revision + 1)
        self._snapshot = snapshot
        return snapshot, True


_NEAREST_FIRST = (
    ReplicaState.ONLOADING,
    ReplicaState.STARTING,
    ReplicaState.DRAINING,
    ReplicaState.SLEEPING,
    ReplicaState.STOPPING,
    ReplicaState.FAILED,
)
"""A model without a routable replica shows the state of the one that is nearest to READY."""

_FURTHEST = (ModelState.READY, *(ModelState(state.value) for state in _NEAREST_FIRST))

_WITHOUT_URL = frozenset({ReplicaState.STARTING, ReplicaState.FAILED, ReplicaState.STOPPING})


def _entry(model: ModelView) -> ModelEntry:
    overruled = model.state is not None and model.state is not ModelState.READY
    entries = {
        engine: _engine_entry(engine, may_route=not overruled)
        for engine in sorted(model.engines, key=lambda engine: engine.engine_id)
    }
    engines = tuple(entry for engine, entry in entries.items() if engine.half is None)
    return ModelEntry(
        state=model.state or _state_of(entries),
        route_mode=model.route_mode,
        router_url=model.router_url,
        weight_source=model.weight_source,
        weight_version=model.weight_version,
        served_model_name=model.served_model_name,
        engines=engines,
    )


def _engine_entry(engine: EngineView, *, may_route: bool) -> EngineEntry:
    base_url = None if engine.state in _WITHOUT_URL else engine.base_url
    ready = engine.state is ReplicaState.READY and base_url is not None and engine.reached
    return EngineEntry(
        engine_id=engine.engine_id,
        base_url=base_url,
        state=engine.state,
        direct_eligible=ready and may_route,
        generation=engine.generation,
    )


def _state_of(entries: Mapping[EngineView, EngineEntry]) -> ModelState:
    """The model's state: that of its whole replicas, or of the half that is further from READY."""
    halves = tuple(Disaggregation) if any(engine.half for engine in entries) else (None,)
    states = [
        _model_state(tuple(entry for engine, entry in entries.items() if engine.half is half))
        for half in halves
    ]
    return max(states, key=_FURTHEST.index)


def _model_state(engines: tuple[EngineEntry, ...]) -> ModelState:
    if any(engine.direct_eligible for engine in engines):
        return ModelState.READY
    states = {engine.state for engine in engines}
    # No replica yet, or one that is READY but has published no URL: still coming up.
    nearest = next((state for state in _NEAREST_FIRST if state in states), ReplicaState.STARTING)
    return ModelState(nearest.value)


def _check_generations(last: Snapshot, snapshot: Snapshot) -> None:
    before = {engine.engine_id: engine for model in last.models.values() for engine in model.engines}
    for name, model in snapshot.models.items():
        for engine in model.engines:
            old = before.get(engine.engine_id)
            if old is None:
                continue
            path = f"models.{name}: {engine.engine_id}"
            if engine.generation < old.generation:
                raise SnapshotError(
                    f"{path}: generation went back from {old.generation} to {engine.generation}"
                )
            moved = None not in (old.base_url, engine.base_url) and old.base_url != engine.base_url
            if moved and engine.generation == old.generation:
                raise SnapshotError(
                    f"{path}: moved from {old.base_url} to {engine.base_url} under generation "
                    f"{engine.generation}; a change of endpoint raises the generation"
                )
