"""The role service: all models of one role behind one Ray actor.

One actor a role, named ``role:<role>``, made by the job process and ending with it, never
restarted. It holds an inference manager a model, makes their workers in the bundles they were bound
to, publishes the role's snapshot whenever something visible changed, and runs the reconciler. The
coordinator commands it (:class:`~rolecall.leases.port.RoleLifecycle`); it knows no lease, only
the fencing token of the last one.

A command's answer means that its result is in the registry too, unless the registry was not to
be reached: then the reconciler publishes it later, and readers know that they can't know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import ray
from attrs import frozen

from rolecall.config.resolve import job_plugins, resolve_role
from rolecall.config.resolved import ResolvedModel, ResolvedRole
from rolecall.config.specs import JobConfig
from rolecall.discovery.registry_actor import RayRegistry
from rolecall.discovery.topology import RoleTopology, build_routing, new_epoch
from rolecall.engines.deadline import Deadline, LoopClock
from rolecall.engines.fencing import TokenGate
from rolecall.engines.handover import HandoverLimits
from rolecall.engines.launching import HostSetup
from rolecall.engines.manager import InferenceManager, Outcomes
from rolecall.engines.reaper_task import RayReaper
from rolecall.engines.replica_driver import LifecycleTimes, ModelSpec
from rolecall.engines.results import LifecycleResult
from rolecall.engines.weight_operations import WeightOperation
from rolecall.engines.worker import LOG_FORMAT, RayWorkers, WorkerOrder
from rolecall.engines.worker_handle import WorkerSlot
from rolecall.errors import EngineError, RolecallError
from rolecall.events.hub_actor import remote_emitter
from rolecall.ids import EngineId, FencingToken, ModelId, RoleName
from rolecall.interfaces.engine_backend import WeightsGroup, WeightUpdate
from rolecall.interfaces.role import WeightSource
from rolecall.placement.bound import BoundPlan
from rolecall.placement.demand import model_demand
from rolecall.routers.keeper import RouterKeeper, RouterPlace
from rolecall.routers.pairs import halves

logger = logging.getLogger(__name__)

FIRST_WEIGHT_VERSION = "0"
"""Version of a versioned model's weights as its source has them."""

LOOPBACK = "127.0.0.1"
"""Where engines of a private Ray listen: all of its one node's callers are on it."""

_PUBLISH_S = 5.0
_ANSWER_S = 1.0
"""Kept back from a command's time-out, so that the answer is there before the caller gives up."""


def actor_name(role: str) -> str:
    """Return the name of a role's service in the job's Ray namespace."""
    return f"role:{role}"


@frozen(kw_only=True)
class RoleOrder:
    """Everything a role service is made from. Picklable.

    groups: pool id → placement group that the role's replicas are bound to; borrowed, never
        removed here.
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


class RoleService:
    """See the module's contract. ``start`` comes first; the other calls need it."""

    def __init__(self, order: RoleOrder) -> None:
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
        self._order = order
        self._emit = remote_emitter(order.events)
        self._clock = LoopClock()
        self._gate = TokenGate()
        self._epoch = new_epoch()
        self._managers: dict[ModelId, InferenceManager] = {}
        self._routers: dict[ModelId, RouterKeeper] = {}
        self._topology: RoleTopology | None = None
        self._publishing = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._unpublished = True
        self._reconciler: asyncio.Task[None] | None = None

    async def start(self) -> LifecycleResult:
        """Load the role's plugins, make its workers, start its routers, if any, and its engines.

        Repeats start only what is not running.

        Raises:
            ConfigError, PluginError: the role can't be resolved here as it was in the job process.
            CapabilityError: a replica spans nodes, and its backend doesn't.
            RouterError: a model's router did not start.
        """
        if self._topology is None:
            role = await asyncio.to_thread(self._resolve)
            self._make_managers(role)
        await asyncio.gather(*(router.start() for router in self._routers.values()))
        outcomes = await self._across(lambda manager: manager.start())
        await self._publish()
        if self._reconciler is None:
            self._reconciler = asyncio.create_task(self._reconcile_for_ever())
        return self._result(outcomes)

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        """Wake every model of the role, or none; returns within ``timeout_s``.

        Raises:
            StaleTokenError: a command with a higher token has come before.
        """
        self._gate.admit(token, f"onload of {self._order.role}")
        deadline = self._deadline(timeout_s)
        several = len(self._managers) > 1
        work = deadline.share(0.75) if several else deadline
        results = await self._each(lambda manager: manager.onload(token, work))
        awake = [model for model, outcomes in results.items() if all(o.confirmed for o in outcomes)]
        if len(awake) < len(results):
            for model in awake:
                results[model] = await self._managers[model].retract(token, deadline)
        return self._result(_joined(results))

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        """Put every model of the role to sleep, with proof; returns within ``timeout_s``.

        Raises:
            StaleTokenError: a command with a higher token has come before.
            CapabilityError: a backend of the role can't put engines to sleep.
        """
        self._gate.admit(token, f"offload of {self._order.role}")
        deadline = self._deadline(timeout_s)
        return self._result(await self._across(lambda manager: manager.offload(token, deadline)))

    async def update_weights(
        self, model: ModelId | None, update: WeightUpdate, version: str, timeout_s: float
    ) -> LifecycleResult:
        """Give all replicas of a versioned model other weights; returns within ``timeout_s``.

        ``model`` may be None for a role with one model. See the manager's method for what a repeat
        does, and for sleeping replicas.

        Raises:
            CapabilityError: the model's weights never change, or its backend has no such way.
            EngineError: the version is no name for new weights, or a replica can't take this kind now.
        """
        deadline = self._deadline(timeout_s)
        return self._result(await self._manager(model).update_weights(update, version, deadline))

    async def join_weights_group(
        self, model: ModelId | None, group: WeightsGroup, timeout_s: float
    ) -> LifecycleResult:
        """Have all replicas of a model join a group for updates by broadcast.

        Raises:
            CapabilityError: as above.
            EngineError: a replica is not awake.
        """
        deadline = self._deadline(timeout_s)
        return self._result(await self._manager(model).join_weights_group(group, deadline))

    async def leave_weights_group(
        self, model: ModelId | None, name: str, timeout_s: float
    ) -> LifecycleResult:
        """Have those replicas of a model that joined a group leave it."""
        deadline = self._deadline(timeout_s)
        return self._result(await self._manager(model).leave_weights_group(name, deadline))

    async def require(self, model: ModelId | None, operation: WeightOperation) -> None:
        """Ask whether a model takes an operation on its weights at all.

        Raises:
            CapabilityError: it does not; names the operation and the reason.
        """
        self._manager(model).require(operation)

    async def reconcile_once(self) -> None:
        """Look at every replica and repair what may be repaired; returns when that is done."""
        await self._look()
        await asyncio.gather(*(manager.repair() for manager in self._managers.values()))

    async def status(self) -> dict[str, Any]:
        """Everything known of the role as JSON values. Asks no worker."""
        snapshot = self._topology.snapshot if self._topology is not None else None
        return {
            "role": self._order.role,
            "epoch": self._epoch,
            "revision": snapshot.topology_revision if snapshot is not None else None,
            "token": self._gate.highest,
            "replicas": [entry for manager in self._managers.values() for entry in manager.status()],
            "routers": [router.status() for router in self._routers.values()],
        }

    async def stop_replica(self, selector: str, timeout_s: float) -> LifecycleResult:
        """Stop one replica for good, by its engine id or any URL it has had.

        Raises:
            EngineError: no model of the role has such a replica.
        """
        deadline = self._deadline(timeout_s)
        for manager in self._managers.values():
            if manager.knows(selector):
                return self._result(await manager.stop(selector, deadline))
        raise EngineError(f"{self._order.role}: no replica is or was {selector!r}")

    async def confirm_vacant(self, engine: EngineId, evidence: str) -> None:
        """Lift a replica's fence on an operator's word; ``evidence`` says what was seen.

        Raises:
            EngineError: the replica isn't fenced, or there is no such replica.
        """
        for manager in self._managers.values():
            if manager.knows(engine):
                manager.confirm_vacant(engine, evidence)
                return
        raise EngineError(f"{self._order.role}: there is no replica {engine!r}")

    async def shutdown(self, timeout_s: float) -> LifecycleResult:
        """Stop every engine, with confirmation; what is not confirmed is tried again by a repeat.

        Routers end last. A role that was not started has nothing to stop.

        Raises:
            EngineError: a process of a router is left.
        """
        if self._reconciler is not None:
            self._reconciler.cancel()
        if self._topology is None:
            return self._result(())
        deadline = self._deadline(timeout_s)
        outcomes = await self._across(lambda manager: manager.shutdown(deadline))
        await asyncio.gather(*(router.stop() for router in self._routers.values()))
        return self._result(outcomes)

    # --- making the managers ------------------------------------------------------------

    def _resolve(self) -> ResolvedRole:
        order = self._order
        return resolve_role(order.config, order.file, order.role, job_plugins(order.config.plugins))

    def _make_managers(self, role: ResolvedRole) -> None:
        order = self._order
        shared = bool(order.bound.plan.conflicts(order.role))
        lifecycle = order.config.lifecycle
        times = LifecycleTimes(start_s=lifecycle.start_timeout_s, drain_grace_s=lifecycle.drain_grace_s)
        self._routers = self._make_routers(role)
        self._managers = {
            model.model: InferenceManager(
                self._model_spec(model, shared=shared),
                self._slots(model),
                factory=RayWorkers(
                    lambda slot, model=model: self._worker_order(model, slot),
                    groups=order.groups,
                    resource=order.config.placement.resource,
                    namespace=order.namespace,
                ),
                reaper=RayReaper(namespace=order.namespace, role=order.role),
                times=times,
                clock=self._clock,
                emit=self._emit,
                publish=self._publish,
                membership=self._routers.get(model.model),
            )
            for model in role.models.values()
        }
        routing = build_routing(
            served_names={model.model: model.served_model_name for model in role.models.values()},
            default_model=role.default_model,
            route_keys=role.config.route_keys,
            aliases=role.config.aliases,
            policy=role.config.routing_policy,
        )
        self._topology = RoleTopology(order.role, routing, self._epoch)

    def _make_routers(self, role: ResolvedRole) -> dict[ModelId, RouterKeeper]:
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
                changed=self._publish,
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
            replica.placement.engine: [
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
                limits=HandoverLimits(),
                tensor_parallel=demand.tensor_parallel,
                pipeline_parallel=demand.pipeline_parallel,
            ),
            config=order.config,
            file=order.file,
        )

    # --- publishing, reconciling --------------------------------------------------------

    async def _publish(self) -> None:
        """Put the present view into the registry, if it differs from what is there."""
        if self._topology is None:
            return
        async with self._publishing:
            try:
                snapshot, changed = self._topology.update(
                    {model: manager.view() for model, manager in self._managers.items()}
                )
                if not changed and not self._unpublished:
                    return
                self._unpublished = True
                async with asyncio.timeout(_PUBLISH_S):
                    await self._order.registry.publish(self._order.role, snapshot.to_json())
                self._unpublished = False
            except (RolecallError, TimeoutError):
                # The engines' state is what it is, and commands must go on; the reconciler's next
                # round tries to tell it again.
                logger.exception("the snapshot of %s was not published", self._order.role)

    async def _look(self) -> None:
        # One at a time: two looks that fail together are not two failures in a row.
        async with self._looking:
            await asyncio.gather(*(manager.look() for manager in self._managers.values()))
            # Also when nothing changed: a registry that was restarted is empty until then.
            self._unpublished = True
            await self._publish()

    async def _reconcile_for_ever(self) -> None:
        """Look again and again; repairs run beside, so that one that takes long blinds nobody."""
        repairs: dict[ModelId, asyncio.Task[None]] = {}
        try:
            while True:
                await self._clock.sleep(self._order.config.lifecycle.probe_interval_s)
                await self._guarded(self._look())
                for model, manager in self._managers.items():
                    if model not in repairs or repairs[model].done():
                        repairs[model] = asyncio.create_task(self._guarded(manager.repair()))
        finally:
            for repair in repairs.values():
                repair.cancel()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # one round that breaks may not end the care for all replicas
            logger.exception("reconciling %s broke; the next round tries again", self._order.role)

    def _manager(self, model: ModelId | None) -> InferenceManager:
        if model is None and len(self._managers) == 1:
            return next(iter(self._managers.values()))
        if model is None or model not in self._managers:
            known = ", ".join(self._managers) or "none, the role was not started"
            raise EngineError(f"{self._order.role} has no model {model!r}; it has: {known}")
        return self._managers[model]

    # --- over all managers --------------------------------------------------------------

    async def _each(self, act: Callable[[InferenceManager], Awaitable[Outcomes]]) -> dict[ModelId, Outcomes]:
        """Have every manager act, all at once; raise the first error only when all have ended."""
        if self._topology is None:
            raise EngineError(f"{self._order.role} has not been started")
        answers = await asyncio.gather(
            *(act(manager) for manager in self._managers.values()), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return dict(
            zip(self._managers, (a for a in answers if not isinstance(a, BaseException)), strict=True)
        )

    async def _across(self, act: Callable[[InferenceManager], Awaitable[Outcomes]]) -> Outcomes:
        return _joined(await self._each(act))

    def _deadline(self, timeout_s: float) -> Deadline:
        return Deadline.after(self._clock, timeout_s).leaving(_ANSWER_S)

    def _result(self, outcomes: Outcomes) -> LifecycleResult:
        return LifecycleResult(role=self._order.role, outcomes=outcomes)


def _joined(results: Mapping[ModelId, Outcomes]) -> Outcomes:
    return tuple(outcome for outcomes in results.values() for outcome in outcomes)


def find_role_service(namespace: str, role: RoleName) -> Any:
    """Return the actor handle of a role's service, from any process on the job's Ray.

    Raises:
        EngineError: no such role runs in that namespace.
    """
    try:
        return ray.get_actor(actor_name(role), namespace=namespace)
    except ValueError as error:
        raise EngineError(f"no service of role {role!r} runs in Ray namespace {namespace!r}") from error


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
        )
    )
