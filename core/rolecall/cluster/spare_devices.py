"""The devices that a job may give to replicas that come while it runs: one owner for all of its roles.

First those of the job's own pools that the plan left over, then, if the job file does not say that the job
has no more, what the cluster has free: each such replica gets a placement group of its own, which is removed
when it has gone. What is taken is noted here before anything is started on it, so that two roles never get
one device; it is given back when nothing of the replica is left, by whoever took it.

Blocks; used from one thread at a time. :class:`SpareDevicesActor` is the Ray actor around it, one a job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from attrs import field, frozen

from rolecall.cluster.pool_groups import PoolGroups
from rolecall.cluster.ray_groups import RayGroups, WallClock
from rolecall.config.specs import JobConfig
from rolecall.engines.worker_handle import WorkerSlot
from rolecall.errors import ScaleRefused
from rolecall.ids import EngineId, ModelId, RoleName
from rolecall.leases.coordinator_actor import answer_of
from rolecall.placement.binding import bind
from rolecall.placement.bound import BoundPlan, BoundReplica, BundleProbe
from rolecall.placement.demand import job_nodes
from rolecall.placement.group_port import BlockingClock, GroupHandle, GroupPort
from rolecall.placement.node_choice import choose_nodes
from rolecall.placement.nodes import Nodes
from rolecall.placement.plan import PlacementPlan, Pool, ReplicaPlacement
from rolecall.placement.spare import SpareAsk, find_spare, refuse_no_spare

GIVE_BACK_S = 30.0

GROUP_TIMEOUT_S = 30.0
"""A group is asked for only if the cluster has room for it, so it comes soon."""


@frozen(kw_only=True)
class SpareOffer:
    """What a job may take. Picklable.

    spare: the pools' bundles that no tenant of the plan uses.
    pooled: devices of all pools. most: devices that the job may have in all; None: as many as there are.
    """

    job: str
    resource: str
    spare: tuple[BundleProbe, ...]
    pooled: int
    most: int | None


@frozen(kw_only=True)
class Taken:
    """Devices of one replica. ``groups`` has the handle of its own placement group, if it has one."""

    bound: BoundReplica
    groups: Mapping[str, GroupHandle] = field(factory=dict)


@frozen(kw_only=True)
class _OwnGroup:
    groups: PoolGroups
    devices: int


def spare_offer(config: JobConfig, bound: BoundPlan) -> SpareOffer:
    """Return what a job may take beyond what its plan uses."""
    return SpareOffer(
        job=config.job.name,
        resource=config.placement.resource,
        spare=bound.spare,
        pooled=sum(pool.devices for pool in bound.plan.pools),
        most=job_nodes(config.placement).devices,
    )


class SpareDevices:
    """See the module's contract."""

    def __init__(
        self,
        offer: SpareOffer,
        *,
        port: GroupPort | None = None,
        clock: BlockingClock | None = None,
    ) -> None:
        self._offer = offer
        self._spare = list(offer.spare)
        self._port = port or RayGroups()
        self._clock = clock or WallClock()
        self._taken: dict[tuple[RoleName, EngineId], tuple[BundleProbe, ...] | _OwnGroup] = {}
        self._gone: set[tuple[RoleName, EngineId]] = set()

    def take(self, ask: SpareAsk) -> Taken:
        """Take what one replica needs. It is the replica's until it is given back, and never its again: an
        ask that comes later than its end takes nothing.

        Raises:
            ScaleRefused: there is no place for it; says what was looked at.
            ClusterError: the cluster did not give what it said it had; nothing is kept.
        """
        key = (ask.role, ask.engine)
        if key in self._taken:
            raise ScaleRefused(f"{ask.role} {ask.engine} has devices already")
        if key in self._gone:
            raise ScaleRefused(f"{ask.role} {ask.engine} has come and gone; no replica takes its name again")
        if (found := find_spare(ask, self._spare)) is not None:
            mine = {(found.placement.pool_id, bundle) for bundle in found.placement.bundles}
            self._taken[key] = tuple(p for p in self._spare if (p.pool_id, p.bundle) in mine)
            self._spare = [p for p in self._spare if (p.pool_id, p.bundle) not in mine]
            return Taken(bound=found)
        pool = self._own_pool(ask)
        groups = self._groups(pool)
        groups.create(GROUP_TIMEOUT_S)
        try:
            bound = self._bound(ask, pool, groups)
        except BaseException as error:
            groups.remove_after(error)
            raise
        self._taken[key] = _OwnGroup(groups=groups, devices=ask.devices)
        return Taken(bound=bound, groups=groups.handles)

    def room(self, asks: Sequence[SpareAsk]) -> None:
        """Return if all of these could be taken now; takes nothing.

        Raises:
            ScaleRefused: as :meth:`take`, for the first that could not.
        """
        spare = list(self._spare)
        pools: list[Pool] = []
        for ask in asks:
            if (found := find_spare(ask, spare)) is not None:
                mine = set(found.placement.bundles)
                spare = [p for p in spare if p.pool_id != found.placement.pool_id or p.bundle not in mine]
                continue
            pools.append(self._own_pool(ask, beside=pools))

    def give_back(self, role: RoleName, engine: EngineId, timeout_s: float) -> None:
        """Give a replica's devices back, of which nothing runs any more. Repeats do nothing.

        Raises:
            CleanupPendingError: its placement group is not confirmed removed; calling again tries again.
        """
        self._gone.add((role, engine))
        taken = self._taken.get((role, engine))
        if isinstance(taken, _OwnGroup):
            taken.groups.remove(timeout_s)
        elif taken is not None:
            self._spare += taken
        self._taken.pop((role, engine), None)

    def give_all_back(self, timeout_s: float) -> None:
        """Remove every placement group that was made here.

        Raises:
            CleanupPendingError: one is not confirmed removed.
        """
        for role, engine in list(self._taken):
            self.give_back(role, engine, timeout_s)

    def _own_pool(self, ask: SpareAsk, *, beside: Sequence[Pool] = ()) -> Pool:
        """Return a pool of the replica's own for which the cluster has room, beside others of the kind."""
        offer = self._offer
        pool = Pool(pool_id=f"{ask.role}-{ask.engine}", resource=offer.resource, nodes=ask.nodes)
        new = ask.devices + sum(other.devices for other in beside)
        has = offer.pooled + sum(own.devices for own in self._taken.values() if isinstance(own, _OwnGroup))
        if offer.most is not None and has + new > offer.most:
            elsewhere = (
                f"the job may have no more than {offer.most}, of which its pools and replicas have {has}"
            )
        else:
            offered = self._port.offer(offer.resource)
            free = {node.node_id: int(node.free) for node in offered.nodes}
            if choose_nodes([*beside, pool], free) is not None:
                return pool
            nodes = ", ".join(f"{node.name}: {node.free:g}" for node in offered.nodes) or "no node has any"
            elsewhere = f"the cluster has {offered.free:g} free ({nodes})"
            if beside:
                elsewhere += f", of which {new - ask.devices} are for replicas before it"
        raise refuse_no_spare(ask, resource=offer.resource, in_pools=len(self._spare), elsewhere=elsewhere)

    def _groups(self, pool: Pool) -> PoolGroups:
        return PoolGroups([pool], job=self._offer.job, borrowed={}, port=self._port, clock=self._clock)

    def _bound(self, ask: SpareAsk, pool: Pool, groups: PoolGroups) -> BoundReplica:
        placement = ReplicaPlacement(
            engine=ask.engine,
            role=ask.role,
            model=ask.model,
            pool_id=pool.pool_id,
            bundles=tuple(range(pool.devices)),
        )
        plan = PlacementPlan(mode="", pools=(pool,), replicas=(placement,), phases=())
        (bound,) = bind(plan, groups.probe(GROUP_TIMEOUT_S)).replicas
        return bound


class SpareDevicesActor:
    """The Ray actor; one call at a time. Placement groups made here end with it at the latest."""

    def __init__(self, offer: SpareOffer) -> None:
        self._devices = SpareDevices(offer)
        self._turn = asyncio.Lock()

    async def take(self, ask: SpareAsk) -> Taken:
        return await self._do(lambda: self._devices.take(ask))

    async def room(self, asks: Sequence[SpareAsk]) -> None:
        await self._do(lambda: self._devices.room(asks))

    async def give_back(self, role: RoleName, engine: EngineId, timeout_s: float) -> None:
        await self._do(lambda: self._devices.give_back(role, engine, timeout_s))

    async def give_all_back(self, timeout_s: float) -> None:
        await self._do(lambda: self._devices.give_all_back(timeout_s))

    async def _do(self, work: Callable[[], Any]) -> Any:
        async with self._turn:
            return await asyncio.to_thread(work)


class ActorDevices:
    """Implements :class:`~rolecall.scaling.fleet.DeviceOwner` for one model, by asking the actor.

    Args:
        slots: makes a replica's worker slots of what was taken.
    """

    def __init__(
        self,
        actor: Any,
        *,
        role: RoleName,
        model: ModelId,
        nodes: Nodes,
        slots: Callable[[Taken], Sequence[WorkerSlot]],
    ) -> None:
        self._actor = actor
        self._role = role
        self._model = model
        self._nodes = nodes
        self._slots = slots

    async def take(self, engine: EngineId) -> Sequence[WorkerSlot]:
        return self._slots(await self._ask("taking devices", self._actor.take.remote(self._of(engine))))

    async def room(self, engines: Sequence[EngineId]) -> None:
        await self._ask("looking for devices", self._actor.room.remote([self._of(e) for e in engines]))

    async def give_back(self, engine: EngineId) -> None:
        call = self._actor.give_back.remote(self._role, engine, GIVE_BACK_S)
        await self._ask("giving devices back", call)

    def _of(self, engine: EngineId) -> SpareAsk:
        return SpareAsk(role=self._role, model=self._model, engine=engine, nodes=self._nodes)

    async def _ask(self, doing: str, call: Any) -> Any:
        return await answer_of(f"{doing} for {self._role} {self._model}", call)


class NoDevices:
    """Of a role that runs without the job around it: nothing is to be had."""

    async def take(self, engine: EngineId) -> Sequence[WorkerSlot]:
        raise ScaleRefused(f"there are no devices for {engine}: nobody has spare ones here")

    async def room(self, engines: Sequence[EngineId]) -> None:
        raise ScaleRefused(f"there are no devices for {', '.join(engines)}: nobody has spare ones here")

    async def give_back(self, engine: EngineId) -> None:
        """Nothing was taken."""


def create_spare_devices(offer: SpareOffer) -> Any:
    """Make the actor and return its handle; it ends with the last one. It has no name, since nobody looks for
    it, and a name is free again only some time after its end."""
    actor: Any = ray.remote(SpareDevicesActor)
    return actor.options(num_cpus=0, max_restarts=0, max_task_retries=0).remote(offer)
