"""The replica driver: carries out on one replica what its manager decided, and judges the answers.

Pure asyncio over :class:`~rolecall.engines.worker_handle.WorkerHandle`; one per manager. It knows
one replica at a time and nothing of leases, of the role's other replicas, or of discovery. An
answer that is not a success always ends in FAILED, and the driver alone decides what is known
about the engine then: proved gone, unconfirmed, or fenced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from attrs import field, frozen

from rolecall.engines.deadline import Clock, Deadline, DeadlineExceededError
from rolecall.engines.fencing import TokenGate
from rolecall.engines.handover import SleepProof
from rolecall.engines.health_policy import HealthPolicy, Verdict, judge, judge_silence
from rolecall.engines.replica import Replica, Ticket
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.worker_handle import (
    EngineExitedError,
    Started,
    WorkerDiedError,
    WorkerUnavailableError,
)
from rolecall.errors import InferenceRecoveryRequired, RolecallError
from rolecall.events.event import Emit
from rolecall.ids import ModelId, RoleName
from rolecall.interfaces.engine_backend import MemoryReport
from rolecall.interfaces.role import WeightSource

T = TypeVar("T")

logger = logging.getLogger(__name__)

_CONFIRM_S = 10.0
"""Kept back from a sleep's deadline for confirming the end of an engine that died in it."""


@frozen(kw_only=True)
class ModelSpec:
    """What distinguishes one model's engines from another's.

    weight_version: version that versioned engines start with; None for static ones.
    can_sleep: the backend can release and resume memory.
    shared: the role shares devices with another role.
    """

    role: RoleName
    model: ModelId
    served_model_name: str
    weight_source: WeightSource
    weight_version: str | None
    can_sleep: bool
    shared: bool


@frozen(kw_only=True)
class LifecycleTimes:
    """Durations, seconds.

    start_s: one engine from process start to ready.
    prepare_s: getting the model's files onto a node before the first start.
    drain_grace_s: how long running requests may finish before they are aborted.
    probe_s: how long one look at an engine may take.
    stop_s: ending an engine, or putting a rebuilt one to sleep, outside a command.
    backoff_s, longest_backoff_s: pause before a rebuild that follows a failed start; it doubles.
    """

    start_s: float = 300.0
    prepare_s: float = 3600.0
    drain_grace_s: float = 5.0
    probe_s: float = 10.0
    stop_s: float = 60.0
    backoff_s: float = 2.0
    longest_backoff_s: float = 60.0
    health: HealthPolicy = field(factory=HealthPolicy)


@frozen(kw_only=True)
class Attempt:
    """What came of one operation on one replica.

    ticket: the replica at the moment of the result.
    problem: None for a success.
    proved_gone: the engine ended by itself, and nothing of it is left.
    """

    replica: Replica
    ticket: Ticket
    problem: str | None = None
    proved_gone: bool = False

    @property
    def succeeded(self) -> bool:
        return self.problem is None

    @property
    def stands(self) -> bool:
        """It succeeded, and the replica has not changed since."""
        return self.problem is None and self.replica.is_current(self.ticket)


class ReplicaDriver:
    """See the module's contract. ``gate`` is the manager's: commands carry its highest token."""

    def __init__(
        self, spec: ModelSpec, *, times: LifecycleTimes, clock: Clock, gate: TokenGate, emit: Emit
    ) -> None:
        self._spec = spec
        self._times = times
        self._clock = clock
        self._gate = gate
        self._emit = emit

    async def prepare(self, replica: Replica, deadline: Deadline) -> None:
        """Get the model's files; a failure shows again, with its place, in the start that follows."""
        try:
            await asyncio.gather(*(worker.handle.prepare(deadline) for worker in replica.workers))
        except RolecallError as error:
            logger.warning("%s: %s", replica.engine, error)

    async def start(self, replica: Replica, deadline: Deadline) -> Attempt:
        """Start an engine for a STARTING or FAILED replica; STARTING when it has succeeded.

        A failed replica's old engine is ended first, with evidence, and a new incarnation begins.
        """
        if (refused := await self._make_way(replica, deadline)) is not None:
            return refused

        def record(started: Started) -> None:
            replica.record_start(started)
            self._note_memory(replica, started.memory.resident_bytes, awake=True)

        work = replica.head.start(replica.stamp(self._gate.highest), self._spec.weight_version, deadline)
        attempt = await self._attempt(replica, "start", work, record, deadline)
        if attempt.problem is not None and replica.state is ReplicaState.FAILED:
            pause = min(self._times.backoff_s * 2**replica.failed_starts, self._times.longest_backoff_s)
            replica.failed_starts += 1
            replica.rebuild_not_before_s = self._clock.now_s() + pause
        return attempt

    async def wake(self, replica: Replica, deadline: Deadline) -> Attempt:
        """Wake a SLEEPING replica; ONLOADING when it has succeeded, for the manager to open."""
        replica.enter_state(ReplicaState.ONLOADING, "onload")

        def record(memory: MemoryReport) -> None:
            self._note_memory(replica, memory.resident_bytes, awake=True)

        work = replica.head.wake(replica.stamp(self._gate.highest), self._spec.weight_version, deadline)
        return await self._attempt(replica, "wake", work, record, deadline)

    async def sleep(self, replica: Replica, deadline: Deadline) -> Attempt:
        """Drain and release a DRAINING replica; SLEEPING when it has succeeded."""

        def record(proof: SleepProof) -> None:
            self._note_memory(replica, proof.asleep_bytes, awake=False)
            aborted = ", requests were aborted" if proof.aborted else ""
            replica.enter_state(
                ReplicaState.SLEEPING,
                f"released: {_mib(proof.awake_bytes)} awake, {_mib(proof.asleep_bytes)} asleep{aborted}",
            )

        work = replica.head.sleep(
            replica.stamp(self._gate.highest), self._times.drain_grace_s, deadline.leaving(_CONFIRM_S)
        )
        return await self._attempt(replica, "sleep", work, record, deadline)

    async def end(self, replica: Replica, deadline: Deadline) -> bool:
        """Have each worker end its engine, unless it gave evidence before; True when all have."""
        if replica.fence is not None:
            return replica.vacant
        incarnation = replica.incarnation
        for worker in replica.workers:
            if worker.evidence is not None:
                continue
            try:
                evidence = await worker.handle.stop(replica.stamp(self._gate.highest), deadline)
            except WorkerDiedError as error:
                if replica.incarnation == incarnation:
                    self._fence(replica, error)
                return False
            except RolecallError as error:
                logger.warning("%s: the end of its engine is not confirmed: %s", replica.engine, error)
                continue
            if replica.incarnation == incarnation:
                worker.evidence = evidence
                replica.resident_bytes = 0
        return replica.vacant

    async def probe(self, replica: Replica) -> None:
        """Look at a READY or SLEEPING replica; FAILED if it is broken."""
        ticket = replica.ticket()
        policy = self._times.health
        generate = replica.state is ReplicaState.READY
        deadline = Deadline.after(self._clock, self._times.probe_s)
        try:
            looks = await asyncio.gather(
                *(
                    worker.handle.health(generate=generate and worker.slot.node_rank == 0, deadline=deadline)
                    for worker in replica.workers
                )
            )
        except WorkerDiedError as error:
            if replica.is_current(ticket):
                self._fence(replica, error)
            return
        except (WorkerUnavailableError, DeadlineExceededError) as error:
            if replica.is_current(ticket):
                verdict = judge_silence(failed_before=replica.failed_probes, policy=policy)
                self._act_on(
                    replica, verdict, f"its worker gives no answer, which does not mean dead: {error}"
                )
            return
        if not replica.is_current(ticket):
            return
        verdicts = [
            judge(look, incarnation=ticket.incarnation, failed_before=replica.failed_probes, policy=policy)
            for look in looks
        ]
        worst = max(verdicts, key=list(Verdict).index)
        self._act_on(replica, worst, looks[verdicts.index(worst)].detail)

    def _act_on(self, replica: Replica, verdict: Verdict, detail: str) -> None:
        match verdict:
            case Verdict.WELL:
                replica.failed_probes = 0
            case Verdict.DOUBTFUL:
                replica.failed_probes += 1
                logger.warning("%s: %s, look %d in a row", replica.engine, detail, replica.failed_probes)
            case Verdict.BROKEN:
                replica.enter_state(ReplicaState.FAILED, detail)

    async def _make_way(self, replica: Replica, deadline: Deadline) -> Attempt | None:
        """Ready a FAILED replica for a new incarnation; the refusal if that can't be."""
        if replica.fence is not None:
            return _refusal(replica, str(InferenceRecoveryRequired(replica.fence)))
        if replica.state is not ReplicaState.FAILED:
            return None
        ticket = replica.ticket()
        if not await self.end(replica, deadline.share(0.5)) or not replica.is_current(ticket):
            return _refusal(replica, f"its old engine is not confirmed gone: {replica.account}")
        replica.begin_incarnation(f"rebuild, since {replica.reason}")
        return None

    async def _attempt(
        self,
        replica: Replica,
        doing: str,
        work: Coroutine[Any, Any, T],
        record: Callable[[T], None],
        deadline: Deadline,
    ) -> Attempt:
        """Await a worker's answer; ``record`` it only if the replica is still the one that asked."""
        ticket = replica.ticket()
        try:
            answer = await work
        except asyncio.CancelledError:
            if replica.is_current(ticket):
                replica.enter_state(ReplicaState.FAILED, f"{doing} was interrupted")
            raise
        except Exception as error:  # the other replicas' results must be reported, whatever this one met
            if not isinstance(error, RolecallError):
                logger.exception("%s: %s met an error that it should not", replica.engine, doing)
            return await self._fail(replica, ticket, doing, error, deadline)
        if not replica.is_current(ticket):
            return _refusal(replica, f"{doing} ended too late to count; meanwhile: {replica.account}")
        record(answer)
        return Attempt(replica=replica, ticket=replica.ticket())

    async def _fail(
        self, replica: Replica, ticket: Ticket, doing: str, error: Exception, deadline: Deadline
    ) -> Attempt:
        problem = f"{doing} failed: {error}"
        if not replica.is_current(ticket):
            return _refusal(replica, f"{problem}; meanwhile: {replica.account}")
        if isinstance(error, WorkerDiedError):
            self._fence(replica, error)
            return _refusal(replica, replica.account)
        replica.enter_state(ReplicaState.FAILED, problem)
        if isinstance(error, EngineExitedError) and await self.end(replica, deadline):
            return Attempt(
                replica=replica,
                ticket=replica.ticket(),
                problem=f"{problem}; {replica.evidence}",
                proved_gone=True,
            )
        return _refusal(replica, problem)

    def _fence(self, replica: Replica, error: WorkerDiedError) -> None:
        """The worker is dead: nobody here can prove that its engine is gone."""
        slot = replica.workers[0].slot
        started = replica.started
        suspect = f"process group {started.pid}" if started is not None else "an engine process"
        devices = ", ".join(slot.device_ids) or "of that node"
        replica.fence = (
            f"the worker of {replica.engine} on node {slot.node_ip} is dead ({error}); {suspect} may have "
            f"survived it and may hold devices {devices}. Nothing is started there until an operator has "
            "made sure that the process is gone and its memory free, and has confirmed that; or end the job"
        )
        if replica.state not in {ReplicaState.FAILED, ReplicaState.STOPPING}:
            replica.enter_state(ReplicaState.FAILED, replica.fence)
        logger.error("fenced: %s", replica.fence)

    def _note_memory(self, replica: Replica, resident_bytes: int, *, awake: bool) -> None:
        replica.resident_bytes = resident_bytes
        self._emit(
            "replica.memory",
            role=self._spec.role,
            engine=replica.engine,
            awake=awake,
            resident_bytes=resident_bytes,
        )


def _refusal(replica: Replica, problem: str) -> Attempt:
    return Attempt(replica=replica, ticket=replica.ticket(), problem=problem)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
