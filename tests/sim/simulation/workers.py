"""What a manager holds of a worker: its calls, through the network."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from rolecall.engines.deadline import Deadline
from rolecall.engines.fencing import Stamp
from rolecall.engines.handover import SleepProof
from rolecall.engines.read_ahead import ReadAhead
from rolecall.engines.worker_handle import (
    ANSWER_MARGIN_S,
    Started,
    WorkerDiedError,
    WorkerHealth,
    WorkerUnavailableError,
)
from rolecall.errors import EngineError
from rolecall.interfaces.engine_backend import MemoryReport, WeightUpdate
from simulation.network import Endpoint, Network
from simulation.processes import SimWorker

T = TypeVar("T")


class Worker:
    """Implements :class:`WorkerHandle` over the network, as a Ray actor's client does."""

    def __init__(self, network: Network, manager: Endpoint, node: SimWorker, endpoint: Endpoint) -> None:
        self._network = network
        self._manager = manager
        self.node = node
        self.endpoint = endpoint

    async def prepare(self, deadline: Deadline) -> None:
        del deadline

    async def prepare_next(self, update: Path | None, deadline: Deadline) -> ReadAhead:
        """There are no files; but the call may fail like any other, and that has to be without effect."""
        return await self._call("prepare_next", deadline, lambda inner: _nothing_to_read(), brief=True)

    async def meet(self, stamp: Stamp, deadline: Deadline) -> str:
        del stamp, deadline
        return "rendezvous"

    async def start(
        self, stamp: Stamp, weight_version: str | None, deadline: Deadline, *, rendezvous: str | None = None
    ) -> Started:
        del rendezvous
        return await self._call(
            "start", deadline, lambda inner: self.node.start(stamp, weight_version, inner)
        )

    async def sleep(self, stamp: Stamp, grace_s: float, deadline: Deadline) -> SleepProof:
        del grace_s
        return await self._call("sleep", deadline, lambda inner: self.node.sleep(stamp, inner))

    async def wake(self, stamp: Stamp, weight_version: str | None, deadline: Deadline) -> MemoryReport:
        return await self._call("wake", deadline, lambda inner: self.node.wake(stamp, weight_version, inner))

    async def measure(self, stamp: Stamp, deadline: Deadline) -> MemoryReport:
        return await self._call("measure", deadline, lambda inner: self.node.measure(stamp), brief=True)

    async def prove_released(self, stamp: Stamp, awake: MemoryReport, deadline: Deadline) -> MemoryReport:
        del awake
        return await self._call("prove", deadline, lambda inner: self.node.prove_released(stamp), brief=True)

    async def update_weights(
        self, stamp: Stamp, update: WeightUpdate, version: str, grace_s: float, deadline: Deadline
    ) -> MemoryReport:
        del grace_s
        return await self._call(
            "update", deadline, lambda inner: self.node.update_weights(stamp, update, version, inner)
        )

    async def health(self, *, generate: bool, deadline: Deadline) -> WorkerHealth:
        return await self._call(
            "health", deadline, lambda inner: self.node.health(generate=generate), brief=True
        )

    async def stop(self, stamp: Stamp, deadline: Deadline) -> str:
        return await self._call("stop", deadline, lambda inner: self.node.stop(stamp, inner))

    async def dispose(self) -> None:
        """The worker's process ends with its engine gone."""

    async def _call(
        self,
        what: str,
        deadline: Deadline,
        send: Callable[[Deadline], Coroutine[Any, Any, T]],
        *,
        brief: bool = False,
    ) -> T:
        inner = deadline.leaving(ANSWER_MARGIN_S)
        return await self._network.call(
            self._manager,
            self.endpoint,
            what,
            lambda: send(inner),
            silence=lambda: WorkerUnavailableError(f"no answer to {what} within {deadline.total_s:g} s"),
            death=lambda: WorkerDiedError("the worker died"),
            limit_s=deadline.remaining_s(),
            forge=garbled,
            brief=brief,
        )


def garbled(answer: object) -> object:
    return EngineError(f"the answer is garbled: {answer!s:.40}")


async def _nothing_to_read() -> ReadAhead:
    return ReadAhead()
