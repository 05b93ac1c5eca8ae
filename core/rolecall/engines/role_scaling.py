"""What a role service has so that its models can be scaled: places, workers, fleets, and the scaler.

Made by the role service with each of its managers; it joins the pure parts of :mod:`rolecall.scaling` with
the job's spare devices and with engines that somebody else runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from rolecall.cluster.spare_devices import ActorDevices, NoDevices, Taken
from rolecall.config.resolved import ResolvedModel
from rolecall.engines.attached_worker import AttachedWorker
from rolecall.engines.deadline import Clock
from rolecall.engines.manager import InferenceManager
from rolecall.engines.worker_handle import WorkerFactory, WorkerHandle, WorkerSlot
from rolecall.events.event import Emit
from rolecall.ids import EngineId, ModelId, RoleName
from rolecall.interfaces.engine_backend import AttachedEngine, AttachesEngines, Disaggregation
from rolecall.interfaces.role import WeightSource
from rolecall.placement.bound import BoundReplica
from rolecall.placement.nodes import Nodes
from rolecall.scaling.change import Bounds
from rolecall.scaling.fleet import DeviceOwner, ModelFleet
from rolecall.scaling.scaler import RoleScaler


class RoleScaling:
    """See the module's contract. ``groups`` has the handles of all placement groups, also those that come."""

    def __init__(
        self,
        role: RoleName,
        *,
        spares: Any,
        groups: Mapping[str, Any],
        drain_grace_s: float,
        devices_per_node: int,
        clock: Clock,
        emit: Emit,
    ) -> None:
        self.groups = dict(groups)
        self._fleets: dict[ModelId, ModelFleet] = {}
        self.scaler = RoleScaler(role, self._fleets, clock=clock, emit=emit)
        self._role = role
        self._spares = spares
        self._drain_grace_s = drain_grace_s
        self._devices_per_node = devices_per_node
        self._clock = clock
        self._managers: dict[ModelId, InferenceManager] = {}
        self._expected_paths: dict[EngineId, str | None] = {}

    def add(self, model: ResolvedModel, manager: InferenceManager) -> None:
        """Take a model in, as it is at the start of the role."""
        self._managers[model.model] = manager
        self._fleets[model.model] = ModelFleet(
            Bounds(
                model=model.model,
                most=model.config.max_replicas,
                external=model.config.external_replicas,
            ),
            manager.elastic,
            devices=self._devices(model),
            at_url=self._at_url,
            drain_grace_s=self._drain_grace_s,
            clock=self._clock,
        )

    def workers(self, model: ResolvedModel, on_devices: WorkerFactory) -> WorkerFactory:
        """Return what makes the model's workers, of its own engines and of those elsewhere."""

        def make(slot: WorkerSlot) -> WorkerHandle:
            return on_devices(slot) if slot.url is None else self._attached(model, slot, slot.url)

        return make

    def _devices(self, model: ResolvedModel) -> DeviceOwner:
        if self._spares is None:
            return NoDevices()
        return ActorDevices(
            self._spares,
            role=self._role,
            model=model.model,
            nodes=Nodes.equal(model.config.devices_per_engine, per_node=self._devices_per_node),
            slots=self._slots,
        )

    def _slots(self, taken: Taken) -> list[WorkerSlot]:
        self.groups.update(taken.groups)
        return worker_slots(taken.bound)

    # --- engines elsewhere --------------------------------------------------------------

    def _at_url(self, engine: EngineId, url: str, model_path: str | None) -> WorkerSlot:
        self._expected_paths[engine] = model_path
        host = urlsplit(url).hostname or ""
        return WorkerSlot(
            engine=engine,
            node_rank=0,
            node_id="",
            node_ip=host,
            pool_id="",
            bundles=(),
            device_ids=(),
            reservation=0.0,
            url=url,
        )

    def _attached(self, model: ResolvedModel, slot: WorkerSlot, url: str) -> AttachedWorker:
        async def other_model(paths: frozenset[str]) -> str | None:
            return await self._other_model(model, slot.engine, paths)

        return AttachedWorker(
            slot,
            lambda: _attach(model, url),
            other_model=other_model,
            static=model.weight_source is WeightSource.STATIC,
            capabilities=model.features.capabilities,
            clock=self._clock,
        )

    async def _other_model(self, model: ResolvedModel, engine: EngineId, paths: frozenset[str]) -> str | None:
        """Why an engine that names these paths is not one of the model; None if it is."""
        says = f"it names {', '.join(sorted(paths)) or 'no model'}"
        if (expected := self._expected_paths.get(engine)) is not None:
            return None if expected in paths else f"{says}, not {expected}"
        own = await self._own_paths(model)
        if not own:
            return f"{says}, and no engine of the job's own runs to compare with; give its model_path"
        if {PurePath(path).name for path in paths} & {PurePath(path).name for path in own}:
            return None
        known = ", ".join(sorted(own))
        return f"{says}; the job's own engines name {known}. If it is the same model, give its model_path"

    async def _own_paths(self, model: ResolvedModel) -> frozenset[str]:
        for replica in self._managers[model.model].elastic.members:
            if replica.url is None and replica.base_url is not None:
                engine = _attach(model, replica.base_url)
                try:
                    return await engine.model_paths()
                finally:
                    await engine.stop(0.0)
        return frozenset()


def worker_slots(replica: BoundReplica, half: Disaggregation | None = None) -> list[WorkerSlot]:
    """Return the slots of a bound replica's workers, the head's first."""
    return [
        WorkerSlot(
            engine=replica.placement.engine,
            node_rank=rank,
            node_id=worker.node_id,
            node_ip=worker.node_ip,
            pool_id=replica.placement.pool_id,
            bundles=worker.bundles,
            device_ids=worker.device_ids,
            reservation=worker.reservation,
            nodes=len(replica.workers),
            half=half,
        )
        for rank, worker in enumerate(replica.workers)
    ]


def _attach(model: ResolvedModel, url: str) -> AttachedEngine:
    assert isinstance(model.backend, AttachesEngines), "checked with the job file"
    return model.backend.attach(url, static=model.weight_source is WeightSource.STATIC)
