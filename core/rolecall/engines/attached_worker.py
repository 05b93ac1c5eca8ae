"""The worker of a replica whose engine somebody else runs: it is asked, and never started or ended.

Implements :class:`~rolecall.engines.worker_handle.WorkerHandle` in the process of the model's manager; there
is no node to go to. The engine has no door and no memory of the job's, so it is drained by its own word,
sleeps by being asked no more, and is judged by its answers alone. Before it is taken it has to show that it
serves the model that was meant; which weights it has is then its own word, and held against the model's
version as for any other replica.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from rolecall.engines.deadline import Clock, Deadline
from rolecall.engines.engine_look import look_at
from rolecall.engines.fencing import Stamp, TokenGate
from rolecall.engines.handover import (
    HandoverLimits,
    Identity,
    SleepProof,
    check_not_uniform,
    close_and_wait,
)
from rolecall.engines.read_ahead import ReadAhead
from rolecall.engines.weight_change import change_weights
from rolecall.engines.worker_handle import (
    Started,
    UpdateRefusedError,
    WorkerDescription,
    WorkerHealth,
    WorkerSlot,
)
from rolecall.errors import CanaryMismatchError, EngineError, EngineStartError, StaleTokenError
from rolecall.interfaces.engine_backend import (
    AttachedEngine,
    Capability,
    FromDisk,
    MemoryReport,
    WeightsGroup,
    WeightUpdate,
)

CONNECT_S = 60.0
"""How long an engine may take to answer that is said to run already."""

_NOTHING_HELD = MemoryReport(resident_tags=frozenset(), resident_bytes=0)


class AttachedWorker:
    """See the module's contract.

    Args:
        attach: makes the engine object anew for each start.
        other_model: why the engine that names these paths is not one of this model; None if it is.
        static: its weights never change.
    """

    def __init__(
        self,
        slot: WorkerSlot,
        attach: Callable[[], AttachedEngine],
        *,
        other_model: Callable[[frozenset[str]], Coroutine[Any, Any, str | None]],
        static: bool,
        capabilities: frozenset[Capability],
        clock: Clock,
    ) -> None:
        assert slot.url is not None
        self._url = slot.url
        self._name = f"{slot.engine} at {slot.url}"
        self._attach = attach
        self._other_model = other_model
        self._static = static
        self._capabilities = capabilities
        self._clock = clock
        self._limits = HandoverLimits()
        self._gate = TokenGate()
        self._incarnation = 0
        self._engine: AttachedEngine | None = None

    async def prepare(self, deadline: Deadline) -> None:
        """Nothing to prepare: its files are somebody else's."""
        del deadline

    async def prepare_next(self, update: Path | None, deadline: Deadline) -> ReadAhead:
        del update, deadline
        return ReadAhead()

    async def meet(self, stamp: Stamp, deadline: Deadline) -> str:
        del stamp, deadline
        raise EngineError(f"{self._name} is one engine to the job, on however many nodes it runs")

    async def start(
        self, stamp: Stamp, weight_version: str | None, deadline: Deadline, *, rendezvous: str | None = None
    ) -> Started:
        """Connect, and see whether it is what it should be."""
        del weight_version, rendezvous
        self._admit(stamp, "connecting")
        engine, deadline = self._attach(), deadline.at_most(CONNECT_S)
        try:
            await deadline.bound(engine.start(deadline.remaining_s()), f"connecting to {self._name}")
            paths = await deadline.bound(engine.model_paths(), "the model's paths")
            if (problem := await deadline.bound(self._other_model(paths), "comparing the model")) is not None:
                raise EngineError(problem)
            version = None if self._static else await deadline.bound(engine.weight_version(), "its version")
            if self._static:
                canary = await deadline.bound(engine.canary(), "canary")
                check_not_uniform(canary, self._limits, "on connecting")
        except EngineError as error:
            await engine.stop(0.0)
            raise EngineStartError(f"{self._name} was not taken: {error}") from error
        self._engine, self._incarnation = engine, stamp.incarnation
        return Started(
            base_url=self._url, pid=None, memory=_NOTHING_HELD, log_path=None, weight_version=version
        )

    async def sleep(self, stamp: Stamp, grace_s: float, deadline: Deadline) -> SleepProof:
        """Wait for its requests. It holds nothing of the job's, so nothing is released."""
        engine = self._awake(stamp, "sleep")
        quiet = await close_and_wait(engine, None, deadline, grace_s=grace_s, limits=self._limits)
        version = None if self._static else await deadline.bound(engine.weight_version(), "its version")
        identity = Identity(canary=None, weight_version=version)
        return SleepProof(awake_bytes=0, asleep_bytes=0, aborted=not quiet, identity=identity)

    async def wake(self, stamp: Stamp, weight_version: str | None, deadline: Deadline) -> MemoryReport:
        """See that nobody gave it other weights meanwhile."""
        engine = self._awake(stamp, "wake")
        found = None if self._static else await deadline.bound(engine.weight_version(), "its version")
        if found != weight_version:
            raise CanaryMismatchError(f"{self._name} reports version {found!r}, expected {weight_version!r}")
        return _NOTHING_HELD

    async def measure(self, stamp: Stamp, deadline: Deadline) -> MemoryReport:
        del stamp, deadline
        return _NOTHING_HELD

    async def prove_released(self, stamp: Stamp, awake: MemoryReport, deadline: Deadline) -> MemoryReport:
        del stamp, awake, deadline
        return _NOTHING_HELD

    async def update_weights(
        self, stamp: Stamp, update: WeightUpdate, version: str, grace_s: float, deadline: Deadline
    ) -> MemoryReport:
        """Have it load a file or folder, which its own machine has to see at the same path."""
        engine = self._awake(stamp, "update of the weights")
        if not isinstance(update, FromDisk) or Capability.UPDATE_FROM_DISK not in self._capabilities:
            raise UpdateRefusedError(f"{self._name}: an engine that somebody else runs loads from disk only")
        return await change_weights(
            engine, update, version, deadline, grace_s=grace_s, limits=self._limits, door=None
        )

    async def join_weights_group(self, stamp: Stamp, group: WeightsGroup, deadline: Deadline) -> None:
        self._awake(stamp, "joining a weight group")
        del deadline
        raise EngineError(
            f"{self._name}: an engine that somebody else runs joins no weight group {group.name!r}"
        )

    async def leave_weights_group(self, stamp: Stamp, name: str, deadline: Deadline) -> None:
        """It never joined one."""
        del stamp, name, deadline

    async def health(self, *, generate: bool, deadline: Deadline) -> WorkerHealth:
        if self._engine is None:
            detail, alive, running = "not connected", False, None
        else:
            look = await look_at(
                self._engine, deadline, counts=True, generate=generate, should_be_away=frozenset()
            )
            detail, alive, running = look.detail, look.alive, look.running
        return WorkerHealth(
            incarnation=self._incarnation,
            has_engine=self._engine is not None,
            exit_code=None,
            alive=alive,
            running=running,
            detail=detail,
        )

    async def stop(self, stamp: Stamp, deadline: Deadline) -> str:
        """Let go of it. It runs on."""
        self._admit(stamp, "letting go")
        self._incarnation = max(self._incarnation, stamp.incarnation)
        if self._engine is not None:
            await self._engine.stop(deadline.remaining_s())
            self._engine = None
        return f"{self._name} was let go of; nothing of the job runs there"

    async def describe(self, deadline: Deadline) -> WorkerDescription:
        del deadline
        return WorkerDescription(
            node_ip="",
            worker_pid=os.getpid(),
            incarnation=self._incarnation,
            condition="attached" if self._engine is not None else "empty",
            engine_pid=None,
            base_url=self._url,
            log_path=None,
        )

    async def dispose(self) -> None:
        """Nothing to do: there is no process."""

    def _awake(self, stamp: Stamp, doing: str) -> AttachedEngine:
        self._admit(stamp, doing)
        if self._engine is None:
            raise EngineError(f"{self._name}: {doing} refused, it is not connected")
        return self._engine

    def _admit(self, stamp: Stamp, doing: str) -> None:
        if stamp.incarnation < self._incarnation:
            raise StaleTokenError(
                f"{doing} of {self._name} is meant for incarnation {stamp.incarnation}; it is now "
                f"{self._incarnation}"
            )
        self._gate.admit(stamp.token, f"{doing} of {self._name}")
