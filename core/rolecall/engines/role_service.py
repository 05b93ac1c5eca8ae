"""The role service: all models of one role behind one Ray actor.

One actor a role, named ``role:<role>``, made by the job process and ending with it, never
restarted. It makes the models' managers, their workers in the bundles they were bound to and their
routers, and passes every command on to :class:`~rolecall.engines.role_engines.RoleEngines`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from attrs import frozen

from rolecall.config.resolve import job_plugins, resolve_role
from rolecall.config.resolved import ResolvedModel, ResolvedRole
from rolecall.config.specs import JobConfig
from rolecall.discovery.registry_actor import RayRegistry
from rolecall.discovery.topology import RoleTopology, build_routing, new_epoch
from rolecall.engines.deadline import LoopClock
from rolecall.engines.handover import HandoverLimits
from rolecall.engines.launching import HostSetup
from rolecall.engines.manager import InferenceManager
from rolecall.engines.proof import Proof
from rolecall.engines.reaper_task import RayReaper
from rolecall.engines.replica_driver import LifecycleTimes, ModelSpec
from rolecall.engines.results import LifecycleResult
from rolecall.engines.role_engines import RoleEngines
from rolecall.engines.role_scaling import RoleScaling, worker_slots
from rolecall.engines.weight_operations import WeightOperation
from rolecall.engines.worker import LOG_FORMAT, RayWorkers, WorkerOrder
from rolecall.engines.worker_handle import WorkerSlot
from rolecall.errors import EngineError, JobError
from rolecall.events.hub_actor import remote_emitter
from rolecall.events.outbox import flush_all
from rolecall.ids import EngineId, FencingToken, ModelId, RoleName
from rolecall.interfaces.engine_backend import WeightsGroup, WeightUpdate
from rolecall.interfaces.role import WeightSource
from rolecall.leases.coordinator_actor import answer_of
from rolecall.placement.bound import BoundPlan
from rolecall.placement.demand import job_nodes, model_demand
from rolecall.routers.keeper import RouterKeeper, RouterPlace
from rolecall.routers.pairs import halves
from rolecall.scaling.request import ScaleRequest
from rolecall.scaling.scaler import RoleScaler

logger = logging.getLogger(__name__)

FIRST_WEIGHT_VERSION = "0"
"""Version of a versioned model's weights as its source has them."""

LOOPBACK = "127.0.0.1"
"""Where engines of a private Ray listen: all of its one node's callers are on it."""


def actor_name(role: str) -> str:
    """Return the name of a role's service in the job's Ray namespace."""
    return f"role:{role}"


@frozen(kw_only=True)
class RoleOrder:
    """Everything a role service is made from. Picklable.

    groups: pool id → placement group that the role's replicas are bound to; borrowed, never
        removed here.
    spares: actor handle of who has devices for replicas that come later; None: nobody.
    events: actor handle of the event hub.
    run_dir: the job's run folder; engine logs go to a folder below it, on each engine's node.
    """

    config: JobConfig
    file: Path
    role: RoleName
    bound: BoundPlan
    groups: Mapping[str, Any]
    registry: RayRegistry
    events: Any
    run_dir: Path
    namespace: str
    spares: Any = None


class RoleService:
    """See the module's contract. ``start`` comes first; the other calls need it."""

    def __init__(self, order: RoleOrder) -> None:
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
        self._order = order
        self._emit = remote_emitter(order.events)
        self._clock = LoopClock()
        self._engines: RoleEngines | None = None
        self._routers: dict[ModelId, RouterKeeper] = {}
        self._scaling: RoleScaling | None = None

    async def start(self) -> LifecycleResult:
        """Load the role's plugins, make its workers, start its routers, if any, and its engines.

        Repeats start only what is not running.

        Raises:
            ConfigError, PluginError: the role can't be resolved here as it was in the job process.
            CapabilityError: a replica spans nodes, and its backend doesn't.
            RouterError: a model's router did not start.
        """
        if self._engines is None:
            role = await asyncio.to_thread(self._resolve)
            self._engines = self._make_engines(role)
        await asyncio.gather(*(router.start() for router in self._routers.values()))
        return await self._engines.start()

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        """As :meth:`RoleEngines.onload`."""
        return await self._started.onload(token, timeout_s)

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        """As :meth:`RoleEngines.offload`."""
        return await self._started.offload(token, timeout_s)

    async def prepare(self, timeout_s: float) -> None:
        """As :meth:`RoleEngines.prepare`."""
        await self._started.prepare(timeout_s)

    async def update_weights(
        self, model: ModelId | None, update: WeightUpdate, version: str, timeout_s: float
    ) -> LifecycleResult:
        """As :meth:`RoleEngines.update_weights`."""
        return await self._started.update_weights(model, update, version, timeout_s)

    async def join_weights_group(
        self, model: ModelId | None, group: WeightsGroup, timeout_s: float
    ) -> LifecycleResult:
        """As :meth:`RoleEngines.join_weights_group`."""
        return await self._started.join_weights_group(model, group, timeout_s)

    async def leave_weights_group(
        self, model: ModelId | None, name: str, timeout_s: float
    ) -> LifecycleResult:
        """As :meth:`RoleEngines.leave_weights_group`."""
        return await self._started.leave_weights_group(model, name, timeout_s)

    async def require(self, model: ModelId | None, operation: WeightOperation) -> None:
        """As :meth:`RoleEngines.require`."""
        self._started.require(model, operation)

    async def reconcile_once(self) -> None:
        """As :meth:`RoleEngines.reconcile_once`."""
        await self._started.reconcile_once()

    async def status(self) -> dict[str, Any]:
        """Everything known of the role as JSON values, empty before the start. Asks no worker."""
        if self._engines is None:
            return {
                "role": self._order.role,
                "epoch": None,
                "revision": None,
                "token": 0,
                "replicas": [],
                "routers": [],
                "scaling": [],
            }
        return {
            **self._engines.status(),
            "routers": [router.status() for router in self._routers.values()],
            "scaling": self._scaler.operations(),
        }

    async def stop_replica(self, selector: str, timeout_s: float) -> LifecycleResult:
        """As :meth:`RoleEngines.stop_replica`."""
        return await self._started.stop_replica(selector, timeout_s)

    async def scale(self, request: ScaleRequest) -> dict[str, Any]:
        """As :meth:`RoleScaler.begin`."""
        return await self._scaler.begin(request)

    async def scale_operation(self, operation: str, wait_s: float = 0.0) -> dict[str, Any]:
        """As :meth:`RoleScaler.status`."""
        return await self._scaler.status(operation, wait_s)

    async def scale_operations(self) -> list[dict[str, Any]]:
        """As :meth:`RoleScaler.operations`."""
        return self._scaler.operations()

    async def cancel_scale(self, operation: str) -> dict[str, Any]:
        """As :meth:`RoleScaler.cancel`."""
        return await self._scaler.cancel(operation)

    async def account(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        """As :meth:`RoleEngines.account`."""
        return await self._started.account(token, timeout_s)

    async def vacate(self, token: FencingToken, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        """As :meth:`RoleEngines.vacate`."""
        return await self._started.vacate(token, timeout_s, proof=proof)

    async def lift_fences(self, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        """As :meth:`RoleEngines.lift_fences`."""
        return await self._started.lift_fences(timeout_s, proof=proof)

    async def shutdown(self, timeout_s: float) -> LifecycleResult:
        """As :meth:`RoleEngines.shutdown`; routers end last. A role that was not started has nothing to stop.

        Raises:
            EngineError: a process of a router is left.
        """
        if self._engines is None:
            return LifecycleResult(role=self._order.role, outcomes=())
        await self._scaler.close()
        result = await self._engines.shutdown(timeout_s)
        await asyncio.gather(*(router.stop() for router in self._routers.values()))
        flush_all()  # the job ends next
        return result

    @property
    def _started(self) -> RoleEngines:
        if self._engines is None:
            raise EngineError(f"{self._order.role} has not been started")
        return self._engines

    @property
    def _scaler(self) -> RoleScaler:
        if self._scaling is None:
            raise EngineError(f"{self._order.role} has not been started")
        return self._scaling.scaler

    # --- making the managers ------------------------------------------------------------

    def _resolve(self) -> ResolvedRole:
        order = self._order
        return resolve_role(order.config, order.file, order.role, job_plugins(order.config.plugins))

    def _make_engines(self, role: ResolvedRole) -> RoleEngines:
        order = self._order
        lifecycle = order.config.lifecycle
        routing = build_routing(
            served_names={model.model: model.served_model_name for model in role.models.values()},
            default_model=role.default_model,
            route_keys=role.config.route_keys,
            aliases=role.config.aliases,
            policy=role.config.routing_policy,
        )
        engines = RoleEngines(
            order.role,
            topology=RoleTopology(order.role, routing, new_epoch()),
            registry=order.registry,
            clock=self._clock,
            probe_interval_s=lifecycle.probe_interval_s,
        )
        self._routers = self._make_routers(role, engines)
        shared = bool(order.bound.plan.conflicts(order.role))
        times = LifecycleTimes(start_s=lifecycle.start_timeout_s, drain_grace_s=lifecycle.drain_grace_s)
        scaling = self._scaling = RoleScaling(
            order.role,
            spares=order.spares,
            groups=order.groups,
            drain_grace_s=lifecycle.drain_grace_s,
            devices_per_node=job_nodes(order.config.placement).largest,
            clock=self._clock,
            emit=self._emit,
        )
        for model in role.models.values():
            manager = InferenceManager(
                self._model_spec(model, shared=shared),
                self._slots(model),
                factory=scaling.workers(
                    model,
                    RayWorkers(
                        lambda slot, model=model: self._worker_order(model, slot),
                        groups=scaling.groups,
                        resource=order.config.placement.resource,
                        namespace=order.namespace,
                    ),
                ),
                reaper=RayReaper(namespace=order.namespace, role=order.role),
                times=times,
                clock=self._clock,
                emit=self._emit,
                publish=engines.publish,
                membership=self._routers.get(model.model),
            )
            engines.add(model.model, manager)
            scaling.add(model, manager)
        return engines

    def _make_routers(self, role: ResolvedRole, engines: RoleEngines) -> dict[ModelId, RouterKeeper]:
        """One for each model, on this node, if the role's policy brings any."""
        router = role.router
        if router is None:
            return {}
        order = self._order
        host = LOOPBACK if order.config.cluster.is_private else ray.util.get_node_ip_address()
        return {
            model.model: RouterKeeper(
                router.backend,
                RouterPlace(
                    role=order.role,
                    model=model.model,
                    served_model_name=model.served_model_name,
                    host=host,
                    pairs=model.config.prefill_replicas > 0,
                    log_dir=order.run_dir / "routers",
                    options=router.options,
                ),
                clock=self._clock,
                emit=self._emit,
                changed=engines.publish,
            )
            for model in role.models.values()
        }

    def _model_spec(self, model: ResolvedModel, *, shared: bool) -> ModelSpec:
        static = model.weight_source is WeightSource.STATIC
        return ModelSpec(
            role=self._order.role,
            model=model.model,
            served_model_name=model.served_model_name,
            weight_source=model.weight_source,
            weight_version=None if static else FIRST_WEIGHT_VERSION,
            capabilities=model.features.capabilities,
            shared=shared,
        )

    def _slots(self, model: ResolvedModel) -> dict[EngineId, list[WorkerSlot]]:
        replicas = [
            replica
            for replica in self._order.bound.replicas_of(self._order.role)
            if replica.placement.model == model.model
        ]
        return {
            replica.placement.engine: worker_slots(replica, half)
            for replica, half in zip(
                replicas, halves(len(replicas), model.config.prefill_replicas), strict=True
            )
        }

    def _worker_order(self, model: ResolvedModel, slot: WorkerSlot) -> WorkerOrder:
        order = self._order
        demand = model_demand(model.model, model.config)
        return WorkerOrder(
            setup=HostSetup(
                namespace=order.namespace,
                slot=slot,
                role=order.role,
                model=model.model,
                served_model_name=model.served_model_name,
                weight_source=model.weight_source,
                listen_host=LOOPBACK if order.config.cluster.is_private else slot.node_ip,
                log_dir=order.run_dir / "engines",
                run=str(order.run_dir),
                limits=HandoverLimits(),
                tensor_parallel=demand.tensor_parallel,
                pipeline_parallel=demand.pipeline_parallel,
            ),
            config=order.config,
            file=order.file,
        )


def find_role_service(namespace: str, role: RoleName) -> Any:
    """Return the actor handle of a role's service, from any process on the job's Ray.

    Raises:
        EngineError: no such role runs in that namespace.
    """
    try:
        return ray.get_actor(actor_name(role), namespace=namespace)
    except ValueError as error:
        raise EngineError(f"no service of role {role!r} runs in Ray namespace {namespace!r}") from error


class ServiceScaling:
    """Scales a role from any process on the job's Ray; operations are JSON values.

    Every call raises ``JobError`` if the role's service does not answer, beside what it says itself.
    """

    def __init__(self, namespace: str, role: RoleName) -> None:
        self._namespace = namespace
        self._role = role
        self._handle: Any = None

    async def begin(self, request: ScaleRequest) -> dict[str, Any]:
        """As :meth:`RoleScaler.begin`."""
        return await self._ask("scale", request)

    async def status(self, operation: str, wait_s: float = 0.0) -> dict[str, Any]:
        """As :meth:`RoleScaler.status`."""
        return await self._ask("scale_operation", operation, wait_s)

    async def cancel(self, operation: str) -> dict[str, Any]:
        """As :meth:`RoleScaler.cancel`."""
        return await self._ask("cancel_scale", operation)

    async def operations(self) -> list[dict[str, Any]]:
        """As :meth:`RoleScaler.operations`."""
        return await self._ask("scale_operations")

    async def _ask(self, method: str, *arguments: Any) -> Any:
        if self._handle is None:
            try:
                self._handle = await asyncio.to_thread(find_role_service, self._namespace, self._role)
            except EngineError as error:
                raise JobError(str(error)) from error
        return await answer_of(f"{self._role}'s {method}", getattr(self._handle, method).remote(*arguments))


def create_role_service(
    *,
    config: JobConfig,
    file: Path,
    role: RoleName,
    bound: BoundPlan,
    groups: Mapping[str, Any],
    registry: RayRegistry,
    events: Any,
    run_dir: Path,
    namespace: str,
    spares: Any = None,
) -> Any:
    """Make a role's service and return its actor handle; nothing is started yet.

    The actor ends when the handle is dropped or this process ends, and its workers and their
    engines with it. See :class:`RoleOrder` for the arguments.
    """
    actor: Any = ray.remote(RoleService)
    return actor.options(
        name=actor_name(role), namespace=namespace, num_cpus=0, max_restarts=0, max_task_retries=0
    ).remote(
        RoleOrder(
            config=config,
            file=file,
            role=role,
            bound=bound,
            groups=dict(groups),
            registry=registry,
            events=events,
            run_dir=run_dir,
            namespace=namespace,
            spares=spares,
        )
    )
