"""One role's engines under the real manager: ``RoleEngines`` over simulated workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from rolecall.discovery.topology import EngineView, ModelView
from rolecall.engines.deadline import Deadline, LoopClock
from rolecall.engines.manager import InferenceManager
from rolecall.engines.proof import Proof
from rolecall.engines.reaping import ReapReport
from rolecall.engines.replica_driver import LifecycleTimes, ModelSpec
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult
from rolecall.engines.role_engines import RoleEngines
from rolecall.engines.worker_handle import WorkerHandle, WorkerSlot
from rolecall.errors import EngineError
from rolecall.ids import EngineId, FencingToken
from rolecall.interfaces.engine_backend import Capability, WeightUpdate
from rolecall.interfaces.role import WeightSource
from simulation.chance import Chance
from simulation.layouts import RoleShape, model_of, slot_of
from simulation.network import Endpoint, Network
from simulation.processes import EngineProcess, SimWorker
from simulation.scaling import Growth, RolesDevices, SpareProcess
from simulation.workers import Worker, garbled
from simulation.world import World

_CAPABILITIES = frozenset(Capability)
_TIMES = LifecycleTimes(
    start_s=30.0, prepare_s=10.0, drain_grace_s=1.0, probe_s=3.0, stop_s=20.0, longest_backoff_s=16.0
)
_PROBE_INTERVAL_S = 30.0
_CLOCK = LoopClock()
FIRST_VERSION = "0"


@frozen(kw_only=True)
class Surroundings:
    """What all roles of a schedule share. ``nodes``: node id → where its reaper answers."""

    world: World
    network: Network
    chance: Chance
    nodes: Mapping[str, Endpoint]
    pids: list[int]


class Shown:
    """What discovery shows of a role: a snapshot without its text, which nobody here reads."""

    topology_revision = 1
    epoch = "simulated"

    def __init__(self) -> None:
        self.engines: tuple[EngineView, ...] = ()
        self.snapshot = self

    def update(self, models: Mapping[str, ModelView]) -> tuple[Shown, bool]:
        engines = tuple(engine for model in models.values() for engine in model.engines)
        changed, self.engines = engines != self.engines, engines
        return self, changed

    def to_json(self) -> str:
        return ""


class _Shelf:
    """Where a role's snapshots go; what is there last is what clients see."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self.engines: tuple[EngineView, ...] = ()

    async def publish(self, role: str, snapshot_json: str) -> bool:
        del role, snapshot_json
        self.engines = self._shown.engines
        return True


class ManagedRole:
    """One role's service: the endpoint that the coordinator and the clients reach.

    ``spare`` has the devices of replicas that may come.
    """

    def __init__(self, around: Surroundings, shape: RoleShape, spare: SpareProcess, *, shared: bool) -> None:
        self.shape = shape
        self.endpoint = Endpoint(shape.name)
        self.workers: list[Worker] = []
        self.processes: list[EngineProcess] = []
        self._around = around
        shown = Shown()
        self.shelf = _Shelf(shown)
        static = shape.source is WeightSource.STATIC
        self.engines = RoleEngines(
            shape.name,
            topology=shown,  # type: ignore[arg-type]
            registry=self.shelf,
            clock=_CLOCK,
            probe_interval_s=_PROBE_INTERVAL_S,
        )
        self.model = model_of(shape)
        self._peers: dict[EngineId, list[SimWorker]] = {}
        self.manager = InferenceManager(
            ModelSpec(
                role=shape.name,
                model=self.model,
                served_model_name=self.model,
                weight_source=shape.source,
                weight_version=None if static else FIRST_VERSION,
                capabilities=_CAPABILITIES,
                shared=shared,
            ),
            {
                shape.engine(index): [slot_of(shape, index, rank) for rank in range(len(devices))]
                for index, devices in enumerate(shape.replicas)
            },
            factory=self._make_worker,
            reaper=self._reap,
            times=_TIMES,
            clock=_CLOCK,
            emit=self._emit,
            publish=self.engines.publish,
        )
        self.engines.add(self.model, self.manager)
        devices = RolesDevices(spare, around.network, self.endpoint, shape)
        self.growth = Growth(shape, self.manager, devices, self._emit)

    def _emit(self, kind: str, /, **fields: Any) -> None:
        if self.endpoint.alive:
            self._around.world.emit(kind, **fields)

    def _make_worker(self, slot: WorkerSlot) -> WorkerHandle:
        around = self._around
        node = SimWorker(around.world, around.chance, self.shape.name, slot, around.pids, self.processes)
        peers = self._peers.setdefault(slot.engine, [])
        peers[:] = [peer for peer in peers if peer.slot.node_rank != slot.node_rank] + [node]
        node.peers = peers
        endpoint = Endpoint(f"{slot.engine}@{slot.node_id}")
        worker = Worker(around.network, self.endpoint, node, endpoint)
        self.workers.append(worker)
        return worker  # type: ignore[return-value]

    async def _reap(self, slot: WorkerSlot, incarnation: int, deadline: Deadline) -> ReapReport:
        """Look for survivors on the slot's node, through the network."""

        async def look() -> ReapReport:
            killed: list[int] = []
            left: list[int] = []
            for process in self.processes:
                if process.slot == slot and process.incarnation == incarnation and process.alive:
                    if process.stubborn:
                        left.append(process.pid)
                    else:
                        process.kill()
                        killed.append(process.pid)
            return ReapReport(killed=tuple(killed), left=tuple(left), left_bytes=0, devices_seen=True)

        def silent() -> Exception:
            return EngineError("nobody could look in time")

        node = self._around.nodes[slot.node_id]
        return await self._around.network.call(
            self.endpoint,
            node,
            f"look for survivors of {slot.engine}#{incarnation}",
            look,
            silence=silent,
            death=silent,
            limit_s=deadline.remaining_s(),
            forge=garbled,
            brief=True,
        )

    def serving(self) -> list[tuple[str | None, EngineProcess | None]]:
        """Where requests go by discovery, and what is there."""
        return [
            (shown.base_url, self._engine_at(shown.engine_id, shown.generation))
            for shown in self.shelf.engines
            if shown.state is ReplicaState.READY
        ]

    def _engine_at(self, engine: EngineId, generation: int) -> EngineProcess | None:
        found = (
            each
            for each in self.processes
            if each.alive and each.slot.engine == engine and each.incarnation == generation
        )
        return next(found, None)

    def heal(self) -> None:
        """The manager looks after its engines itself."""

    # --- commands, as they arrive ---------------------------------------------------------

    async def start(self) -> LifecycleResult:
        return await self.engines.start()

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self.engines.onload(token, timeout_s)

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self.engines.offload(token, timeout_s)

    async def account(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self.engines.account(token, timeout_s)

    async def vacate(self, token: FencingToken, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        return await self.engines.vacate(token, timeout_s, proof=proof)

    async def lift_fences(self, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        return await self.engines.lift_fences(timeout_s, proof=proof)

    async def prepare(self, timeout_s: float) -> None:
        await self.engines.prepare(timeout_s)

    async def update_weights(self, update: WeightUpdate, version: str, timeout_s: float) -> LifecycleResult:
        return await self.engines.update_weights(self.model, update, version, timeout_s)

    async def shutdown(self, timeout_s: float) -> LifecycleResult:
        await self.growth.scaler.close()
        return await self.engines.shutdown(timeout_s)
