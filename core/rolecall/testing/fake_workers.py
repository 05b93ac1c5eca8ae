"""Workers without Ray: real engine hosts over fake engines, with faults between them and the manager.

:class:`FakeWorkers` is a :class:`~rolecall.engines.worker_handle.WorkerFactory`. The hosts are the
ones that real workers run, so a test of the manager also tests what happens on the node; only
the connection and the engine are scripted.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from rolecall.engines.deadline import Deadline, LoopClock
from rolecall.engines.engine_host import EngineHost
from rolecall.engines.fencing import Stamp
from rolecall.engines.handover import HandoverLimits, SleepProof
from rolecall.engines.launching import HostSetup, Prepared
from rolecall.engines.read_ahead import ReadAhead
from rolecall.engines.reaping import NodeGoneError, ReapReport
from rolecall.engines.worker_handle import (
    ANSWER_MARGIN_S,
    Started,
    WorkerDescription,
    WorkerDiedError,
    WorkerHealth,
    WorkerSlot,
    WorkerUnavailableError,
)
from rolecall.ids import EngineId, ModelId, RoleName
from rolecall.interfaces.engine_backend import Disaggregation, MemoryReport, WeightsGroup, WeightUpdate
from rolecall.interfaces.role import WeightSource
from rolecall.testing.fake_door import FakeDoor
from rolecall.testing.fake_engine import FakeBackend, FakeEngine, FakeOptions, Script

T = TypeVar("T")


class FakeWorker:
    """One worker. ``dead`` and ``silent`` may be switched while calls are in flight.

    dead: calls raise ``WorkerDiedError``; its engine runs on, as an orphan would.
    silent: calls are carried out, but their answers are lost.
    """

    def __init__(self, host: EngineHost, backend: FakeBackend, doors: list[FakeDoor]) -> None:
        self.host = host
        self.backend = backend
        self.doors = doors
        self.dead = asyncio.Event()
        self.silent = False
        self.disposed = False
        self.calls: list[str] = []

    @property
    def engine(self) -> FakeEngine:
        """The newest engine."""
        return self.backend.engine

    @property
    def door(self) -> FakeDoor:
        """The newest door."""
        return self.doors[-1]

    @property
    def script(self) -> Script:
        return self.backend.script

    async def prepare(self, deadline: Deadline) -> None:
        await self._call("prepare", self.host.prepare(_inner(deadline)), deadline)

    async def prepare_next(self, update: Path | None, deadline: Deadline) -> ReadAhead:
        return await self._call("prepare_next", self.host.prepare_next(update, _inner(deadline)), deadline)

    async def meet(self, stamp: Stamp, deadline: Deadline) -> str:
        return await self._call("meet", self.host.meet(stamp, _inner(deadline)), deadline)

    async def start(
        self, stamp: Stamp, weight_version: str | None, deadline: Deadline, *, rendezvous: str | None = None
    ) -> Started:
        start = self.host.start(stamp, weight_version, _inner(deadline), rendezvous=rendezvous)
        return await self._call("start", start, deadline)

    async def sleep(self, stamp: Stamp, grace_s: float, deadline: Deadline) -> SleepProof:
        return await self._call("sleep", self.host.sleep(stamp, grace_s, _inner(deadline)), deadline)

    async def wake(self, stamp: Stamp, weight_version: str | None, deadline: Deadline) -> MemoryReport:
        return await self._call("wake", self.host.wake(stamp, weight_version, _inner(deadline)), deadline)

    async def measure(self, stamp: Stamp, deadline: Deadline) -> MemoryReport:
        return await self._call("measure", self.host.measure(stamp, _inner(deadline)), deadline)

    async def prove_released(self, stamp: Stamp, awake: MemoryReport, deadline: Deadline) -> MemoryReport:
        proof = self.host.prove_released(stamp, awake, _inner(deadline))
        return await self._call("prove_released", proof, deadline)

    async def update_weights(
        self, stamp: Stamp, update: WeightUpdate, version: str, grace_s: float, deadline: Deadline
    ) -> MemoryReport:
        change = self.host.update_weights(stamp, update, version, grace_s, _inner(deadline))
        return await self._call("update_weights", change, deadline)

    async def join_weights_group(self, stamp: Stamp, group: WeightsGroup, deadline: Deadline) -> None:
        join = self.host.join_weights_group(stamp, group, _inner(deadline))
        await self._call("join_weights_group", join, deadline)

    async def leave_weights_group(self, stamp: Stamp, name: str, deadline: Deadline) -> None:
        leave = self.host.leave_weights_group(stamp, name, _inner(deadline))
        await self._call("leave_weights_group", leave, deadline)

    async def health(self, *, generate: bool, deadline: Deadline) -> WorkerHealth:
        return await self._call(
            "health", self.host.health(generate=generate, deadline=_inner(deadline)), deadline
        )

    async def stop(self, stamp: Stamp, deadline: Deadline) -> str:
        return await self._call("stop", self.host.stop(stamp, _inner(deadline)), deadline)

    async def describe(self, deadline: Deadline) -> WorkerDescription:
        return await self._call("describe", self.host.describe(_inner(deadline)), deadline)

    async def dispose(self) -> None:
        self.disposed = True

    async def _call(self, name: str, work: Coroutine[Any, Any, T], deadline: Deadline) -> T:
        self.calls.append(name)
        if self.dead.is_set():
            work.close()
            raise WorkerDiedError("the worker is dead")
        answer = asyncio.ensure_future(work)
        # It may be given up: then nobody else reads its error.
        answer.add_done_callback(lambda task: task.cancelled() or task.exception())
        death = asyncio.ensure_future(self.dead.wait())
        timer = asyncio.ensure_future(deadline.clock.sleep(deadline.remaining_s()))
        try:
            waited: set[asyncio.Future[Any]] = {death, timer}
            if not self.silent:
                waited.add(answer)
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                raise WorkerDiedError("the worker died")
            if self.silent or not answer.done():
                raise WorkerUnavailableError(f"no answer to {name} within {deadline.total_s:g} s")
            return answer.result()
        finally:
            death.cancel()
            timer.cancel()


def _inner(deadline: Deadline) -> Deadline:
    return deadline.leaving(ANSWER_MARGIN_S)


class FakeWorkers:
    """Makes a :class:`FakeWorker` for each slot; ``of`` finds it again.

    A call that the manager gave up is not cancelled, as a call to another process is not. ``scripts`` are for
    engines of workers that are still to be made.
    """

    def __init__(self, log_dir: Path, *, weight_source: WeightSource = WeightSource.STATIC) -> None:
        self._log_dir = log_dir
        self._weight_source = weight_source
        self.scripts: dict[str, Script] = {}
        self._workers: dict[tuple[EngineId, int], FakeWorker] = {}

    def of(self, engine: str, node_rank: int = 0) -> FakeWorker:
        """The newest worker of a replica on one of its nodes."""
        return self._workers[EngineId(engine), node_rank]

    def __call__(self, slot: WorkerSlot) -> FakeWorker:
        backend = FakeBackend(self.scripts.get(slot.engine))
        options = FakeOptions()
        static = self._weight_source is WeightSource.STATIC
        prepared = Prepared(
            backend=backend,
            options=options,
            features=backend.features(options, static=static),
            model_path=Path("/model"),
        )

        async def prepare() -> Prepared:
            return prepared

        setup = HostSetup(
            namespace="rolecall-test",
            slot=slot,
            role=RoleName("judge"),
            model=ModelId(slot.engine.split("/")[0]),
            served_model_name="served",
            weight_source=self._weight_source,
            listen_host="127.0.0.1",
            log_dir=self._log_dir,
            limits=HandoverLimits(),
        )
        doors: list[FakeDoor] = []

        def make_door(bound: socket.socket) -> FakeDoor:
            doors.append(FakeDoor(bound))
            return doors[-1]

        worker = FakeWorker(EngineHost(setup, prepare, LoopClock(), make_door), backend, doors)
        self._workers[slot.engine, slot.node_rank] = worker
        return worker


class FakeReaper:
    """Looks at the engines of :class:`FakeWorkers`, as the real one looks at processes.

    left: pids that outlive it; nothing is evidence while there are any.
    node_gone: the slot's node has left the cluster.
    looks: engine, node rank and incarnation of every look.
    """

    def __init__(self, workers: FakeWorkers) -> None:
        self._workers = workers
        self.left: tuple[int, ...] = ()
        self.node_gone = False
        self.looks: list[tuple[str, int, int]] = []

    async def __call__(self, slot: WorkerSlot, incarnation: int, deadline: Deadline) -> ReapReport:
        del deadline  # it answers at once
        self.looks.append((slot.engine, slot.node_rank, incarnation))
        if self.node_gone:
            raise NodeGoneError(f"node {slot.node_ip} has left the cluster")
        killed: list[int] = []
        for engine in self._workers.of(slot.engine, slot.node_rank).backend.engines:
            if engine.pid is not None and engine.exit_code() is None:
                if not self.left:
                    engine.kill()
                killed.append(engine.pid)
        return ReapReport(killed=tuple(killed), left=self.left, left_bytes=0, devices_seen=False)


def fake_slot(
    engine: str, *, node_rank: int = 0, nodes: int = 1, half: Disaggregation | None = None
) -> WorkerSlot:
    """A slot on this machine with one device, of a replica on so many nodes."""
    return WorkerSlot(
        engine=EngineId(engine),
        node_rank=node_rank,
        node_id="node",
        node_ip="127.0.0.1",
        pool_id="shared",
        bundles=(node_rank,),
        device_ids=(str(node_rank),),
        nodes=nodes,
        half=half,
    )
