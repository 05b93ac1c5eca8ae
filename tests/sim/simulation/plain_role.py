"""A role without a manager: engines that are commanded directly, in schedules about the coordinator.

It keeps the promises of :class:`~rolecall.leases.port.RoleLifecycle` in the shortest way: one command at a
time, lower tokens refused, outcomes replica by replica and only with proof.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rolecall.engines.fencing import TokenGate
from rolecall.engines.proof import Proof
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult, ReplicaOutcome
from rolecall.errors import EngineError
from rolecall.ids import FencingToken
from rolecall.interfaces.engine_backend import WeightUpdate
from simulation.chance import Chance
from simulation.layouts import RoleShape, slot_of
from simulation.network import Endpoint
from simulation.processes import EngineProcess
from simulation.workers import Worker
from simulation.world import World


class PlainRole:
    """One role's engines, each spanning all devices of its replica."""

    def __init__(self, shape: RoleShape, *, shared: bool, world: World, chance: Chance) -> None:
        self.shape = shape
        self._shared = shared
        self.endpoint = Endpoint(shape.name)
        self.processes: list[EngineProcess] = []
        self.workers: list[Worker] = []
        self._world = world
        self._chance = chance
        self._gate = TokenGate()
        self._lock = asyncio.Lock()
        self._engines: list[EngineProcess] = []
        self._has_devices = True

    async def start(self) -> LifecycleResult:
        self._engines = [self._launch(index, 1) for index in range(len(self.shape.replicas))]
        for engine in self._engines:
            engine.awake = True
        return self._result([_outcome(engine, ReplicaState.READY) for engine in self._engines])

    def serving(self) -> list[tuple[str | None, EngineProcess | None]]:
        """Where requests go, and what is there."""
        return [(str(engine), engine) for engine in self._engines if engine.awake]

    def heal(self) -> None:
        """A resident role has nobody but itself to look after its engines."""
        for index, engine in enumerate(self._engines):
            if not self._shared and not (engine.awake and not engine.hangs):
                self._living(index, broken=True).awake = True

    # --- commands ---------------------------------------------------------------------------

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._command(token, timeout_s, self._wake, has_devices=True)

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._command(token, timeout_s, self._sleep, has_devices=False)

    async def account(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._command(token, timeout_s, self._tell)

    async def vacate(self, token: FencingToken, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        del proof
        return await self._command(token, timeout_s, self._vacate, has_devices=False)

    async def lift_fences(self, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        """No replica is ever fenced apart from its role."""
        del timeout_s, proof
        return self._result([])

    async def prepare(self, timeout_s: float) -> None:
        """There is nothing to do ahead."""

    async def update_weights(self, update: WeightUpdate, version: str, timeout_s: float) -> LifecycleResult:
        """Which weights it has is of no account here."""
        del update, version, timeout_s
        return self._result([])

    async def shutdown(self, timeout_s: float) -> LifecycleResult:
        """The engines end with their role."""
        del timeout_s
        for engine in self.processes:
            engine.kill()
        return self._result([])

    async def _command(
        self,
        token: FencingToken,
        timeout_s: float,
        act: Callable[[int, float], Awaitable[ReplicaOutcome]],
        *,
        has_devices: bool | None = None,
    ) -> LifecycleResult:
        """Act on every engine; ``has_devices``: whether the role has its devices afterwards."""
        self._gate.admit(token, self.shape.name)
        async with self._lock:
            self._gate.admit(token, self.shape.name)
            if has_devices:
                self._has_devices = True
            result = self._result(
                [await self._act(act, index, timeout_s) for index in range(len(self._engines))]
            )
            if has_devices is False:
                self._has_devices = False
            return result

    async def _act(
        self, act: Callable[[int, float], Awaitable[ReplicaOutcome]], index: int, timeout_s: float
    ) -> ReplicaOutcome:
        if not self.endpoint.alive:
            await self._world.loop.create_future()  # its process is gone: nothing goes on there
        return await act(index, timeout_s / 2)

    # --- one engine ---------------------------------------------------------------------------

    async def _wake(self, index: int, limit_s: float) -> ReplicaOutcome:
        engine = self._living(index)
        engine.take_memory()
        try:
            await engine.step(self._chance.work(), limit_s, "wake")
        except EngineError as error:
            return _outcome(engine, ReplicaState.FAILED, str(error))
        if engine.loses_weights:
            return _outcome(engine, ReplicaState.FAILED, "it lost its weights")
        engine.awake = True
        return _outcome(engine, ReplicaState.READY)

    async def _sleep(self, index: int, limit_s: float) -> ReplicaOutcome:
        # A copy of the command that comes later finds others on the devices, and starts nothing there.
        engine = self._living(index) if self._has_devices else self._engines[index]
        if not engine.holds and not engine.failed:
            return _outcome(engine, ReplicaState.SLEEPING)
        engine.awake = False
        try:
            await engine.step(self._chance.work(), limit_s, "sleep")
        except EngineError as error:
            return _outcome(engine, ReplicaState.FAILED, str(error))
        engine.free_memory()
        if engine.holds:
            return _outcome(engine, ReplicaState.FAILED, "it keeps its memory")
        return _outcome(engine, ReplicaState.SLEEPING)

    async def _tell(self, index: int, limit_s: float) -> ReplicaOutcome:
        del limit_s
        engine = self._engines[index]
        if engine.failed or not engine.alive or engine.hangs or engine.holds != engine.awake:
            return _outcome(engine, ReplicaState.FAILED, "it does not answer as it should")
        return _outcome(engine, ReplicaState.READY if engine.awake else ReplicaState.SLEEPING)

    async def _vacate(self, index: int, limit_s: float) -> ReplicaOutcome:
        engine = self._engines[index]
        if engine.alive and not engine.failed:
            slept = await self._sleep(index, limit_s)
            if slept.confirmed:
                return slept
        if engine.stubborn:
            return _outcome(engine, ReplicaState.FAILED, "it outlived SIGKILL")
        engine.kill()
        return ReplicaOutcome(
            engine=engine.slot.engine, state=ReplicaState.FAILED, confirmed=True, detail="its process is gone"
        )

    def _living(self, index: int, *, broken: bool = False) -> EngineProcess:
        """The replica's engine; a new one in the place of one that is gone or broken."""
        engine = self._engines[index]
        if not engine.alive or ((engine.failed or broken) and not engine.stubborn):
            engine.kill()
            engine = self._engines[index] = self._launch(index, engine.incarnation + 1)
        return engine

    def _launch(self, index: int, incarnation: int) -> EngineProcess:
        slot = slot_of(self.shape, index)
        engine = EngineProcess(self._world, self.shape.name, slot, incarnation, 100 + len(self.processes))
        self.processes.append(engine)
        engine.take_memory()
        return engine

    def _result(self, outcomes: list[ReplicaOutcome]) -> LifecycleResult:
        return LifecycleResult(role=self.shape.name, outcomes=tuple(outcomes))


def _outcome(engine: EngineProcess, state: ReplicaState, problem: str = "") -> ReplicaOutcome:
    engine.failed = engine.failed or bool(problem)
    return ReplicaOutcome(engine=engine.slot.engine, state=state, confirmed=not problem, detail=problem)
