"""The port between a model's manager and one worker.

A *worker* sits beside the devices of one node of a replica and owns at most one engine process.
The manager commands it through :class:`WorkerHandle`: a Ray actor's client in a job, the engine
host itself in tests. Values are picklable.

What an error means is decided here, once:

* :class:`WorkerDiedError`: the worker is gone for certain. What its engine did is not known.
* :class:`WorkerUnavailableError`, :class:`~rolecall.engines.deadline.DeadlineExceededError`: no
  answer. Nothing is known; the call may have been executed, may still be, and may never be.
* any other :class:`~rolecall.errors.RolecallError`: the worker answered, and this is its answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from attrs import frozen

from rolecall.engines.deadline import Deadline
from rolecall.engines.fencing import Stamp
from rolecall.engines.handover import SleepProof
from rolecall.engines.read_ahead import ReadAhead
from rolecall.errors import EngineError
from rolecall.ids import EngineId
from rolecall.interfaces.engine_backend import Disaggregation, MemoryReport, WeightsGroup, WeightUpdate

ANSWER_MARGIN_S = 1.0
"""A handle gives its worker this much less than its own deadline, so that the worker's answer,
also "it took too long", is there before the call is given up."""


class WorkerDiedError(EngineError):
    """The worker's process is confirmed dead. Its engine may have survived it."""


class WorkerUnavailableError(EngineError):
    """The worker did not answer. It is not known to be dead."""


class EngineExitedError(EngineError):
    """The engine's process ended while a command ran on it."""


class UpdateRefusedError(EngineError):
    """The worker refused new weights before it touched the engine, which serves its old ones."""


@frozen(kw_only=True)
class WorkerSlot:
    """Where one worker of a replica belongs: the node and devices of its bundles, as bound.

    node_rank, nodes: which of the replica's nodes this is; rank 0 is the head's.
    bundles: bundle indices in the placement group of ``pool_id``; the worker runs in the first.
    reservation: share of that bundle's device which the worker reserves.
    half: what the replica does of a request, in a prefill/decode pair; None: all of it.
    url: where an engine answers that somebody else runs; it has no bundle and no device of the job's.
    """

    engine: EngineId
    node_rank: int
    node_id: str
    node_ip: str
    pool_id: str
    bundles: tuple[int, ...]
    device_ids: tuple[str, ...]
    reservation: float = 1.0
    nodes: int = 1
    half: Disaggregation | None = None
    url: str | None = None

    @property
    def is_head(self) -> bool:
        return self.node_rank == 0


@frozen(kw_only=True)
class Started:
    """A started engine: where it answers and what it holds.

    pid, log_path: None for an engine that somebody else runs.
    bootstrap_port: where a prefill engine hands its cache over; None for any other.
    weight_version: what an engine that somebody else runs says of its weights; None for any other, which has
        the version that it was started with.
    """

    base_url: str
    pid: int | None
    memory: MemoryReport
    log_path: Path | None
    bootstrap_port: int | None = None
    weight_version: str | None = None


@frozen(kw_only=True)
class WorkerHealth:
    """What a worker sees of its engine; looking changes nothing.

    exit_code: of a process that has ended (negative: signal); None while it runs, or if there is
        none.
    alive: the engine answered as it should.
    running: requests it works on; None if it could not say.
    permits: requests that its door let through and whose end is not confirmed; None without a door.
    """

    incarnation: int
    has_engine: bool
    exit_code: int | None
    alive: bool
    running: int | None
    detail: str
    permits: int | None = None


@frozen(kw_only=True)
class WorkerDescription:
    """A worker as its own word, for people and for recovery."""

    node_ip: str
    worker_pid: int
    incarnation: int
    condition: str
    engine_pid: int | None
    base_url: str | None
    log_path: str | None


class WorkerHandle(Protocol):
    """One worker. Every call ends by its deadline; commands carry a :class:`Stamp`.

    The head of a replica on several nodes gets every command; the others, its *followers*, only
    ``prepare``, ``prepare_next``, ``start``, ``health``, ``stop``, and the two that measure: what the
    head's engine does, theirs do with it.
    """

    async def prepare(self, deadline: Deadline) -> None:
        """Load the backend and get the model's files; may download. Repeats are cheap."""
        ...

    async def prepare_next(self, update: Path | None, deadline: Deadline) -> ReadAhead:
        """Do ahead what the next start or wake needs no device for, beside whatever else goes on.

        As ``prepare``; then files are read ahead: the model's if there is no engine, of one that sleeps
        those that its resume will read, and in both cases those of an ``update`` that follows. Nothing is
        read for an engine that is awake. Carries no stamp: it changes nothing, and a stop ends it.
        """
        ...

    async def meet(self, stamp: Stamp, deadline: Deadline) -> str:
        """Reserve where the processes of all nodes will meet for this start, and return it.

        Asked of the head, whose node it is on, before any worker starts. Held until its engine
        binds it; a stop, or the next ``meet``, gives it back.
        """
        ...

    async def start(
        self, stamp: Stamp, weight_version: str | None, deadline: Deadline, *, rendezvous: str | None = None
    ) -> Started:
        """Start an engine as ``stamp.incarnation``; it can generate when this returns.

        rendezvous: answer of the head's ``meet``, for a replica on several nodes; its workers start
            at the same time, since none of them gets ready alone.

        Raises:
            EngineStartError: it did not become ready; no process of it is left.
        """
        ...

    async def sleep(self, stamp: Stamp, grace_s: float, deadline: Deadline) -> SleepProof:
        """Drain, release, prove. Asleep already: measures again and returns the proof."""
        ...

    async def wake(self, stamp: Stamp, weight_version: str | None, deadline: Deadline) -> MemoryReport:
        """Resume and verify. Awake already: measures again."""
        ...

    async def measure(self, stamp: Stamp, deadline: Deadline) -> MemoryReport:
        """What the engine's processes on this node hold now."""
        ...

    async def prove_released(self, stamp: Stamp, awake: MemoryReport, deadline: Deadline) -> MemoryReport:
        """Prove that memory has left a follower's node, against ``awake``, measured before.

        Raises:
            ReleaseNotProvedError: the head has released, but this node still holds its memory.
        """
        ...

    async def update_weights(
        self, stamp: Stamp, update: WeightUpdate, version: str, grace_s: float, deadline: Deadline
    ) -> MemoryReport:
        """Drain, load other weights, and verify that the engine reports ``version``.

        Raises:
            UpdateRefusedError: it can't be done here, and nothing was touched.
        """
        ...

    async def join_weights_group(self, stamp: Stamp, group: WeightsGroup, deadline: Deadline) -> None:
        """Join a group for updates by broadcast; returns when all of its ranks have joined."""
        ...

    async def leave_weights_group(self, stamp: Stamp, name: str, deadline: Deadline) -> None:
        """Leave the group. Repeats do nothing."""
        ...

    async def health(self, *, generate: bool, deadline: Deadline) -> WorkerHealth:
        """Look at the engine's process and ask it; ``generate`` also runs one token."""
        ...

    async def stop(self, stamp: Stamp, deadline: Deadline) -> str:
        """End the engine and return the evidence that no process of it is left.

        Interrupts a running command. No engine: the evidence says so. Repeats are safe.

        Raises:
            EngineError: a process is left.
        """
        ...

    async def describe(self, deadline: Deadline) -> WorkerDescription:
        """What the worker knows of itself."""
        ...

    async def dispose(self) -> None:
        """Let go of the worker itself, after its engine was confirmed gone."""
        ...


class WorkerFactory(Protocol):
    """Makes the worker of a slot; returns at once, the worker may still be coming up."""

    def __call__(self, slot: WorkerSlot) -> WorkerHandle: ...
