"""Engine processes and the workers that own them: what a node does, without a node.

A worker judges stamps and runs one command at a time, as :class:`~rolecall.engines.engine_host.EngineHost`
does; its engine takes memory, gives it back, hangs, dies, keeps what it should release, loses its weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from rolecall.engines.deadline import Deadline, DeadlineExceededError
from rolecall.engines.fencing import Stamp, TokenGate
from rolecall.engines.handover import Identity, SleepProof
from rolecall.engines.worker_handle import (
    EngineExitedError,
    Started,
    WorkerHealth,
    WorkerSlot,
)
from rolecall.errors import (
    CanaryMismatchError,
    EngineError,
    EngineStartError,
    ReleaseNotProvedError,
    StaleTokenError,
)
from rolecall.ids import RoleName
from rolecall.interfaces.engine_backend import MemoryReport, MemoryTag, WeightUpdate
from simulation.chance import Chance
from simulation.world import Holder, World

T = TypeVar("T")

_AWAKE = MemoryReport(resident_tags=frozenset(MemoryTag), resident_bytes=1000)
_ASLEEP = MemoryReport(resident_tags=frozenset(), resident_bytes=10)
_IDENTITY = Identity(canary=None, weight_version=None)
_PROOF = SleepProof(awake_bytes=1000, asleep_bytes=10, aborted=False, identity=_IDENTITY)
_LOG = Path("/simulated.log")


class EngineProcess(Holder):
    """One engine process on one node. Ends by a stop, by SIGKILL, or with its worker."""

    def __init__(self, world: World, role: RoleName, slot: WorkerSlot, incarnation: int, pid: int) -> None:
        self.role = role
        self.slot = slot
        self.incarnation = incarnation
        self.pid = pid
        self.alive = True
        self.awake = False
        self.holds = False
        self.hangs = False
        self.keeps_memory = False
        self.loses_weights = False
        self.stubborn = False
        self.failed = False
        self.version: str | None = None
        self._world = world
        self._step: asyncio.Future[None] | None = None

    def __str__(self) -> str:
        return f"{self.slot.engine}#{self.incarnation} (pid {self.pid}, node {self.slot.node_id})"

    def take_memory(self) -> None:
        if self.alive:
            self.holds = True
            self._world.takes(self, self.slot.device_ids)

    def free_memory(self) -> None:
        self.awake = False
        if not self.keeps_memory:
            self.holds = False
            self._world.frees(self)

    def kill(self) -> None:
        """It ends now; whoever waits for a step of it learns that."""
        if not self.alive:
            return
        self.alive = self.awake = self.holds = False
        self._world.frees(self)
        if self._step is not None and not self._step.done():
            self._step.set_exception(EngineExitedError(f"{self} ended with exit code -9"))

    async def step(self, seconds: float, limit_s: float, doing: str) -> None:
        """Work for a while; a hanging process never comes back, a dead one raises.

        Raises:
            DeadlineExceededError: not done within ``limit_s``.
            EngineExitedError: it is dead, or died meanwhile.
        """
        if not self.alive:
            raise EngineExitedError(f"{self} ended with exit code -9")
        if not seconds and not self.hangs:
            return
        loop = self._world.loop
        self._step = step = loop.create_future()
        self._stepping(step, seconds, limit_s, doing)
        await step

    def _stepping(self, step: asyncio.Future[None], seconds: float, limit_s: float, doing: str) -> None:
        """Have the step end when its time has come: done, or given up at its limit."""
        call_later = self._world.loop.call_later

        def done() -> None:
            if step.done():
                return
            if self.hangs:
                call_later(limit_s - seconds, give_up)
            else:
                step.set_result(None)

        def give_up() -> None:
            if not step.done():
                step.set_exception(
                    DeadlineExceededError(f"{doing} did not end in time; what it achieved is unknown")
                )

        if seconds > limit_s or self.hangs:
            call_later(limit_s, give_up)
        else:
            call_later(seconds, done)


class SimWorker:
    """The part of a worker that lives on the node. Implements what :class:`WorkerHandle` promises there."""

    def __init__(
        self,
        world: World,
        chance: Chance,
        role: RoleName,
        slot: WorkerSlot,
        pids: list[int],
        processes: list[EngineProcess],
    ) -> None:
        self._world = world
        self._chance = chance
        self._role = role
        self.slot = slot
        self._pids = pids
        self._processes = processes
        self.peers: list[SimWorker] = [self]
        self.engine: EngineProcess | None = None
        self._gate = TokenGate()
        self._incarnation = 0
        self._known = False
        self._command: asyncio.Task[Any] | None = None
        self._ending = False

    async def start(self, stamp: Stamp, version: str | None, deadline: Deadline) -> Started:
        if stamp.incarnation == self._incarnation and self.engine is not None and self._known:
            self._gate.admit(stamp.token, f"start of {self.slot.engine}")
            return self._started(self.engine)
        self._admit(stamp, "start", new=True)
        if self.engine is not None:
            raise EngineError(f"{self.slot.engine}: incarnation {self._incarnation} was not stopped")
        return await self._run("start", self._start(stamp, version, deadline))

    async def _start(self, stamp: Stamp, version: str | None, deadline: Deadline) -> Started:
        self._incarnation, self._known = stamp.incarnation, False
        self._pids[0] += 1
        engine = EngineProcess(self._world, self._role, self.slot, stamp.incarnation, self._pids[0])
        self.engine = engine
        self._processes.append(engine)
        engine.take_memory()
        try:
            await self._bounded(engine, deadline.leaving(5.0), "start")
        except EngineError as error:
            self._end_now()
            raise EngineStartError(f"{self.slot.engine} did not start: {error}") from error
        engine.awake, engine.version, self._known = True, version, True
        return self._started(engine)

    async def sleep(self, stamp: Stamp, deadline: Deadline) -> SleepProof:
        self._admit(stamp, "sleep")
        return await self._run("sleep", self._sleep(deadline))

    async def _sleep(self, deadline: Deadline) -> SleepProof:
        engine = self._require("sleep")
        if not engine.awake:
            return _PROOF
        self._known = False
        await self._bounded(engine, deadline, "sleep")
        for peer in self.peers:
            if peer.engine is not None and peer.engine.alive:
                peer.engine.free_memory()
        await self._bounded(engine, deadline, "the proof of the release")
        if engine.holds:
            raise ReleaseNotProvedError(f"{self.slot.engine} holds 1000 of 1000 bytes")
        self._known = True
        return _PROOF

    async def wake(self, stamp: Stamp, version: str | None, deadline: Deadline) -> MemoryReport:
        self._admit(stamp, "wake")
        return await self._run("wake", self._wake(version, deadline))

    async def _wake(self, version: str | None, deadline: Deadline) -> MemoryReport:
        engine = self._require("wake")
        if engine.awake:
            return _AWAKE
        self._known = False
        for peer in self.peers:
            if peer.engine is not None:
                peer.engine.take_memory()
        await self._bounded(engine, deadline, "wake")
        if engine.loses_weights or engine.version != version:
            raise CanaryMismatchError(f"{self.slot.engine}: lost its weights")
        for peer in self.peers:
            if peer.engine is not None and peer.engine.alive:
                peer.engine.awake = True
        self._known = True
        return _AWAKE

    async def update_weights(
        self, stamp: Stamp, update: WeightUpdate, version: str, deadline: Deadline
    ) -> MemoryReport:
        self._admit(stamp, "update of the weights")
        return await self._run("update of the weights", self._update(version, deadline))

    async def _update(self, version: str, deadline: Deadline) -> MemoryReport:
        engine = self._require("update")
        if not engine.awake:
            raise EngineError(f"{self.slot.engine}: update refused, it sleeps")
        self._known = False
        await self._bounded(engine, deadline, "update of the weights")
        engine.loses_weights, self._known = False, True
        for peer in self.peers:
            if peer.engine is not None:
                peer.engine.version = version
        return _AWAKE

    async def measure(self, stamp: Stamp) -> MemoryReport:
        self._admit(stamp, "measuring")
        engine = self._require("measuring")
        return _AWAKE if engine.awake else _ASLEEP

    async def prove_released(self, stamp: Stamp) -> MemoryReport:
        self._admit(stamp, "proof of a release")
        engine = self._require("proof of a release")
        if engine.holds:
            raise ReleaseNotProvedError(f"{self.slot.engine} on node {self.slot.node_id} holds its memory")
        return _ASLEEP

    async def health(self, *, generate: bool) -> WorkerHealth:
        engine = self.engine
        exit_code = None if engine is None or engine.alive else -9
        answers = engine is not None and engine.alive and not engine.hangs
        return WorkerHealth(
            incarnation=self._incarnation,
            has_engine=engine is not None,
            exit_code=exit_code,
            alive=answers,
            running=0 if answers else None,
            detail="" if answers else "it does not answer",
        )

    async def stop(self, stamp: Stamp, deadline: Deadline) -> str:
        self._admit(stamp, "stop")
        self._incarnation = stamp.incarnation
        if self._command is not None and not self._command.done():
            self._command.cancel()
        self._ending = True
        try:
            if seconds := self._chance.work():
                await asyncio.sleep(min(seconds, deadline.remaining_s()))
        finally:
            self._ending = False
        return self._end_now()

    def die(self, *, with_engine: bool) -> None:
        """The worker's process ends; its engine dies with it, or outlives it."""
        if self._command is not None:
            self._command.cancel()
        if with_engine and self.engine is not None:
            self.engine.kill()

    def _end_now(self) -> str:
        engine, self.engine, self._known = self.engine, None, False
        if engine is None:
            return f"{self.slot.engine}: no engine process was running"
        if engine.stubborn:
            self.engine = engine
            raise EngineError(f"{self.slot.engine}: engine process {engine.pid} outlived SIGKILL")
        engine.kill()
        return f"{self.slot.engine}: engine process {engine.pid} ended; no process of its group is left"

    async def _bounded(self, engine: EngineProcess, deadline: Deadline, doing: str) -> None:
        await engine.step(self._chance.work(), deadline.remaining_s(), doing)

    def _started(self, engine: EngineProcess) -> Started:
        # As a port comes back into use: a later start may get an earlier one's.
        url = f"http://{self.slot.node_ip}:{20000 + engine.pid % 7}"
        return Started(base_url=url, pid=engine.pid, memory=_AWAKE, log_path=_LOG)

    def _require(self, doing: str) -> EngineProcess:
        if self.engine is None:
            raise EngineError(f"{self.slot.engine}: {doing} refused, there is no engine")
        if not self.engine.alive:
            raise EngineExitedError(f"{self.engine} ended with exit code -9")
        if not self._known:
            raise EngineError(f"{self.slot.engine}: {doing} refused, the engine's condition is unknown")
        return self.engine

    def _admit(self, stamp: Stamp, doing: str, *, new: bool = False) -> None:
        if stamp.incarnation < self._incarnation or (new and stamp.incarnation == self._incarnation):
            raise StaleTokenError(f"{doing} is meant for incarnation {stamp.incarnation}")
        if not new and stamp.incarnation > self._incarnation and self.engine is not None:
            raise StaleTokenError(f"{doing} is meant for incarnation {stamp.incarnation}")
        self._gate.admit(stamp.token, doing)

    async def _run(self, doing: str, work: Coroutine[Any, Any, T]) -> T:
        if self._chance.idle:
            return await work  # nothing waits, so nothing can come between
        if self._ending or (self._command is not None and not self._command.done()):
            work.close()
            raise EngineError(f"{self.slot.engine}: {doing} refused, another command is still running")
        self._command = task = asyncio.ensure_future(work)
        try:
            return await task
        except asyncio.CancelledError:
            raise EngineError(f"{self.slot.engine}: {doing} was interrupted") from None
        finally:
            if self._command is task:
                self._command = None
