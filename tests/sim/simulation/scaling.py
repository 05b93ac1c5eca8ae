"""Replicas that come and go while batches are made: spare devices, and somebody who scales the roles.

The scaler and its fleet are the real ones. The spare devices are a process of their own, as in a job: a call
that had no answer may have taken devices, or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from rolecall.cluster.spare_devices import SpareDevices, SpareOffer
from rolecall.engines.deadline import LoopClock
from rolecall.engines.manager import InferenceManager
from rolecall.engines.role_scaling import worker_slots
from rolecall.engines.worker_handle import WorkerSlot
from rolecall.errors import JobError, RolecallError, ScaleConflictError, ScaleRefused
from rolecall.events.event import Emit
from rolecall.ids import EngineId, ModelId, RoleName
from rolecall.placement.bound import BundleProbe
from rolecall.placement.nodes import Nodes
from rolecall.placement.spare import SpareAsk
from rolecall.scaling.change import Bounds
from rolecall.scaling.fleet import END_S, ModelFleet
from rolecall.scaling.request import OnPartial, ScaleIn, ScaleOut, ScaleRequest
from rolecall.scaling.scale_state import ScaleState
from rolecall.scaling.scaler import RoleScaler
from simulation.chance import Chance
from simulation.layouts import RoleShape, model_of
from simulation.network import Endpoint, Network
from simulation.world import World

T = TypeVar("T")

SPARES = 3
"""Devices that no role of the layout has; each is on a node of its own."""

_ANSWER_S = 20.0
_DRAIN_GRACE_S = 1.0
_TRIES = 8
_PAUSE_S = 60.0
_ALL_ARRIVED_S = 200.0
"""No message is held up for longer."""


class SpareProcess:
    """The process that owns a job's spare devices."""

    def __init__(self, world: World) -> None:
        self.endpoint = Endpoint("spare devices")
        self._world = world
        probes = tuple(
            BundleProbe(
                pool_id="spare",
                bundle=number,
                node_id=f"node-{100 + number}",
                node_ip=f"10.0.1.{number}",
                device_ids=(str(100 + number),),
            )
            for number in range(SPARES)
        )
        self.nodes = tuple(probe.node_id for probe in probes)
        world.spare = frozenset(device for probe in probes for device in probe.device_ids)
        self._devices = SpareDevices(
            SpareOffer(job="simulated", resource="device_slot", spare=probes, pooled=SPARES, most=SPARES)
        )
        self._slots: dict[EngineId, Sequence[WorkerSlot]] = {}

    async def take(self, ask: SpareAsk) -> Sequence[WorkerSlot]:
        slots = self._slots[ask.engine] = worker_slots(self._devices.take(ask).bound)
        return slots

    async def room(self, asks: Sequence[SpareAsk]) -> None:
        self._devices.room(asks)

    def require_all(self) -> None:
        """See that nobody has any device."""
        one = Nodes.equal(1, per_node=1)
        role, model = RoleName("nobody"), ModelId("none")
        asks = [
            SpareAsk(role=role, model=model, engine=EngineId(f"none/{number}"), nodes=one)
            for number in range(SPARES)
        ]
        try:
            self._devices.room(asks)
        except ScaleRefused as error:
            self._world.violate("what came can go again", f"{error}")

    async def give_back(self, role: RoleName, engine: EngineId) -> None:
        for slot in self._slots.pop(engine, ()):
            for holder in self._world.holders.get(slot.device_ids[0], ()):
                self._world.violate("devices are given back empty", f"{holder} has memory on {slot}")
        self._devices.give_back(role, engine, _ANSWER_S)


class RolesDevices:
    """Implements :class:`~rolecall.scaling.fleet.DeviceOwner` for one role, over the network."""

    def __init__(self, owner: SpareProcess, network: Network, role: Endpoint, shape: RoleShape) -> None:
        self._owner = owner
        self._network = network
        self._role = role
        self._shape = shape

    async def take(self, engine: EngineId) -> Sequence[WorkerSlot]:
        ask = self.ask(engine)
        return await self._call(f"devices for {engine}", lambda: self._owner.take(ask))

    async def room(self, engines: Sequence[EngineId]) -> None:
        asks = [self.ask(engine) for engine in engines]
        await self._call(f"is there room for {len(asks)}?", lambda: self._owner.room(asks))

    async def give_back(self, engine: EngineId) -> None:
        role = self._shape.name
        await self._call(f"devices of {engine} back", lambda: self._owner.give_back(role, engine))

    def ask(self, engine: EngineId) -> SpareAsk:
        nodes = Nodes.equal(len(self._shape.replicas[0]), per_node=1)
        return SpareAsk(role=self._shape.name, model=model_of(self._shape), engine=engine, nodes=nodes)

    async def _call(self, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        def silent() -> Exception:
            return JobError(f"{what}: no answer")

        return await self._network.call(
            self._role,
            self._owner.endpoint,
            what,
            work,
            silence=silent,
            death=silent,
            limit_s=_ANSWER_S,
            brief=True,
        )


class ScaledRole(Protocol):
    """What is scaled: a role's service."""

    shape: RoleShape
    endpoint: Endpoint
    growth: Growth


class Growth:
    """What a role has so that it can be scaled."""

    def __init__(
        self, shape: RoleShape, manager: InferenceManager, devices: RolesDevices, emit: Emit
    ) -> None:
        model = model_of(shape)
        self.initial = len(manager.elastic.members)
        self.elastic = manager.elastic
        fleet = ModelFleet(
            Bounds(model=model, most=self.initial + SPARES, external=False),
            manager.elastic,
            devices=devices,
            at_url=_nobody_elses,
            drain_grace_s=_DRAIN_GRACE_S,
            clock=LoopClock(),
        )
        self.scaler = RoleScaler(shape.name, {model: fleet}, clock=LoopClock(), emit=emit)


def _nobody_elses(engine: EngineId, url: str, model_path: str | None) -> WorkerSlot:
    raise AssertionError(f"{engine} at {url} ({model_path}): engines elsewhere are not allowed here")


class Scaling:
    """Somebody who scales roles, whatever they are doing."""

    def __init__(
        self, world: World, network: Network, chance: Chance, roles: Sequence[ScaledRole], spare: SpareProcess
    ) -> None:
        self._world = world
        self._network = network
        self._chance = chance
        self._roles = roles
        self._spare = spare
        self._endpoint = Endpoint("scaling")

    def begin(self, times: int) -> None:
        """Ask for so many changes, one after the other; some are cancelled, some not even waited for."""
        self._acting = self._world.loop.create_task(self._act(times))

    async def _act(self, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(self._chance.delay() * 5)
            try:
                await self._change(self._chance.pick(self._roles))
            except (ScaleConflictError, ScaleRefused, JobError) as error:
                self._world.note("scaling", f"refused: {error}")
            except RolecallError as error:
                self._world.violate("a refusal is of its kind", f"{type(error).__name__}: {error}")

    async def end(self) -> None:
        """See that every operation ends, and that what came can go again: nothing is left of it."""
        await asyncio.wait({self._acting})
        await asyncio.sleep(_ALL_ARRIVED_S)
        for role in self._roles:
            if not role.endpoint.alive:
                continue
            scaler = role.growth.scaler
            for operation in scaler.operations():
                told = await scaler.status(operation["id"], wait_s=_longest(operation))
                if not told["final"] and role.endpoint.alive:
                    self._world.violate("a scaling operation ends", f"{told}")
            await self._back_to_the_start(role)
        if all(role.endpoint.alive for role in self._roles):
            self._spare.require_all()

    async def _back_to_the_start(self, role: ScaledRole) -> None:
        growth = role.growth
        for _ in range(_TRIES):
            if not role.endpoint.alive:
                return
            request = ScaleIn(total=growth.initial, force=True, timeout_s=60.0)
            begun = await growth.scaler.begin(request)
            told = await growth.scaler.status(begun["id"], wait_s=_longest(begun))
            if told["state"] == ScaleState.DONE and not told["left"] and not growth.elastic.apart:
                return
            await asyncio.sleep(_PAUSE_S)
        if role.endpoint.alive:
            self._world.violate("what came can go again", f"{growth.scaler.operations()[-1]}")

    async def _change(self, role: ScaledRole) -> None:
        chance, growth = self._chance, role.growth
        policy = chance.pick((OnPartial.KEEP, OnPartial.ROLL_BACK))
        timeout_s = chance.pick((0.02, 5.0, 60.0, 60.0))
        total = growth.initial + chance.pick((0, 1, 1, 2, 2, 3))
        request: ScaleRequest
        if chance.happens(0.6):
            request = ScaleOut(total=total, on_partial=policy, timeout_s=timeout_s)
        else:
            request = ScaleIn(total=total, on_partial=policy, timeout_s=timeout_s, force=chance.happens(0.3))
        begun = await self._ask(role, f"{request}", lambda: growth.scaler.begin(request))
        if chance.happens(0.3):
            await asyncio.sleep(chance.delay() * 5)
            await self._ask(role, "cancel", lambda: growth.scaler.cancel(begun["id"]))
        if chance.happens(0.8):
            await self._ask(role, "status", lambda: growth.scaler.status(begun["id"], wait_s=_ANSWER_S / 2))

    async def _ask(self, role: ScaledRole, what: str, send: Callable[[], Coroutine[Any, Any, T]]) -> T:
        def silent() -> Exception:
            return JobError(f"{what} of {role.shape.name} had no answer")

        return await self._network.call(
            self._endpoint, role.endpoint, what, send, silence=silent, death=silent, limit_s=_ANSWER_S
        )


def _longest(operation: dict[str, Any]) -> float:
    """When an operation has to be over, whatever happened to it; each of its replicas is ended in turn."""
    return 60.0 + 6 * END_S * (1 + len(operation["replicas"]))
