"""All roles of a schedule, and the coordinator's way to them through the network."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from attrs import evolve

from rolecall.engines.proof import Proof
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult
from rolecall.errors import JobError
from rolecall.ids import FencingToken, RoleName
from rolecall.interfaces.engine_backend import WeightUpdate
from rolecall.leases.port import RoleLifecycle
from simulation.chance import Chance
from simulation.layouts import Layout, RoleShape
from simulation.managed_role import ManagedRole, Surroundings
from simulation.network import Endpoint, Network
from simulation.plain_role import PlainRole
from simulation.processes import EngineProcess
from simulation.scaling import SpareProcess
from simulation.workers import Worker
from simulation.world import World


class Service(RoleLifecycle, Protocol):
    """A role's engines and what is seen of them: managed, or plain."""

    shape: RoleShape
    endpoint: Endpoint
    processes: list[EngineProcess]
    workers: list[Worker]

    async def start(self) -> LifecycleResult: ...

    async def shutdown(self, timeout_s: float) -> LifecycleResult: ...

    async def update_weights(
        self, update: WeightUpdate, version: str, timeout_s: float
    ) -> LifecycleResult: ...

    def heal(self) -> None: ...

    def serving(self) -> list[tuple[str | None, EngineProcess | None]]: ...


class RoleLink:
    """Implements :class:`~rolecall.leases.port.RoleLifecycle` from one coordinator's side of the network."""

    def __init__(self, fleet: Fleet, world: World, chance: Chance, role: RoleName, source: Endpoint) -> None:
        self._world = world
        self._network = fleet.network
        self._chance = chance
        self._host = fleet.services[role]
        self._seen = fleet.seen[role]
        self._source = source

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._command("onload", token, lambda: self._host.onload(token, timeout_s))

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._command("offload", token, lambda: self._host.offload(token, timeout_s))

    async def account(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._command("account", token, lambda: self._host.account(token, timeout_s))

    async def vacate(self, token: FencingToken, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        return await self._command("vacate", token, lambda: self._host.vacate(token, timeout_s, proof=proof))

    async def lift_fences(self, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        return await self._call("lift fences", lambda: self._host.lift_fences(timeout_s, proof=proof))

    async def prepare(self, timeout_s: float) -> None:
        await self._call("prepare", lambda: self._host.prepare(timeout_s))

    async def _command(
        self, what: str, token: FencingToken, send: Callable[[], Coroutine[Any, Any, LifecycleResult]]
    ) -> LifecycleResult:
        role, evidence = self._host.shape.name, self._world.evidence
        if self._source.alive:
            evidence.sent(role, what, token)
        answer = await self._call(f"{what}, token {token}", lambda: self._admitted(what, token, send))
        evidence.answered(role, what, token, answer)
        return answer

    async def _admitted(
        self, what: str, token: FencingToken, send: Callable[[], Coroutine[Any, Any, LifecycleResult]]
    ) -> LifecycleResult:
        """Carry a command out on the role's side, and see that one from the past is refused."""
        stale = token < self._seen[0]
        self._seen[0] = max(token, self._seen[0])
        answer = await send()
        if stale:
            self._world.violate(
                "late commands are refused",
                f"{self._host.shape.name} took {what}, token {token}, after token {self._seen[0]}",
            )
        return answer

    async def _call(self, what: str, send: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        def gone() -> Exception:
            return JobError(f"{what} failed, the actor is gone")

        return await self._network.call(
            self._source, self._host.endpoint, what, send, silence=gone, death=gone, forge=self._wrong
        )

    def _wrong(self, answer: LifecycleResult | None) -> object:
        """A right answer made wrong in a way in which answers can be."""
        if answer is None or not answer.outcomes:
            return "garbled"
        first, *rest = answer.outcomes
        return self._chance.pick(
            (
                None,
                evolve(answer, role=RoleName("nobody")),
                evolve(answer, outcomes=()),
                evolve(answer, outcomes=(evolve(first, state=ReplicaState.DRAINING), *rest)),
                evolve(answer, outcomes=(evolve(first, confirmed=False, detail="garbled"), *rest)),
            )
        )


class Fleet:
    """All roles of a schedule; ``managed`` puts the real manager into each."""

    def __init__(
        self, layout: Layout, *, managed: bool, world: World, network: Network, chance: Chance
    ) -> None:
        self.spare = SpareProcess(world)
        nodes = {
            f"node-{device}": Endpoint(f"node-{device}")
            for role in layout.roles
            for device in sorted(role.devices)
        } | {node: Endpoint(node) for node in self.spare.nodes}
        around = Surroundings(world=world, network=network, chance=chance, nodes=nodes, pids=[100])
        conflicts = layout.conflicts
        self.services: dict[RoleName, Service] = {
            shape.name: (
                ManagedRole(around, shape, self.spare, shared=bool(conflicts[shape.name]))
                if managed
                else PlainRole(shape, shared=bool(conflicts[shape.name]), world=world, chance=chance)
            )
            for shape in layout.roles
        }
        self.network = network
        self.updates = 0
        self.seen = {name: [0] for name in self.services}
        """Role → the highest token that it was sent, over all coordinators."""

    def end(self) -> None:
        """The job has ended: its actors are gone, their engines with them or soon after."""
        for service in self.services.values():
            service.endpoint.die()
            for worker in service.workers:
                worker.endpoint.die()
                worker.node.die(with_engine=False)

    def reap(self) -> None:
        """End whatever an ended job has left, as a new one does before it begins."""
        for engine in self.living():
            engine.kill()

    @property
    def workers(self) -> list[Worker]:
        return [worker for service in self.services.values() for worker in service.workers]

    def living(self) -> list[EngineProcess]:
        return [each for service in self.services.values() for each in service.processes if each.alive]
