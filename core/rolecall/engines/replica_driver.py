"""The replica driver: carries out on one replica what its manager decided, and judges the answers.

Pure asyncio over the replica's workers (:mod:`rolecall.engines.replica_workers`); one per manager. It
knows one replica at a time and nothing of leases, of the role's other replicas, or of discovery. An
answer that is not a success ends in FAILED (except a refusal that touched nothing), and the driver
alone decides what is known about the engine then: proved gone, unconfirmed, or fenced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from attrs import field, frozen

from rolecall.engines.deadline import Clock, Deadline, DeadlineExceededError
from rolecall.engines.fencing import TokenGate
from rolecall.engines.handover import SleepProof
from rolecall.engines.health_policy import HealthPolicy, Verdict, judge, judge_silence
from rolecall.engines.proof import Proof
from rolecall.engines.read_ahead import ReadAhead
from rolecall.engines.reaping import Reaper
from rolecall.engines.replica import Replica, Ticket
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.replica_workers import ReplicaWorkers
from rolecall.engines.weight_operations import WeightRights
from rolecall.engines.worker_handle import (
    EngineExitedError,
    Started,
    UpdateRefusedError,
    WorkerDiedError,
    WorkerFactory,
    WorkerSlot,
    WorkerUnavailableError,
)
from rolecall.errors import CapabilityError, InferenceRecoveryRequired, RolecallError
from rolecall.events.event import Emit
from rolecall.ids import EngineId, ModelId, RoleName
from rolecall.interfaces.engine_backend import Capability, MemoryReport, WeightsGroup, WeightUpdate
from rolecall.interfaces.role import WeightSource

T = TypeVar("T")

logger = logging.getLogger(__name__)

_CONFIRM_S = 10.0
"""Kept back from a sleep's deadline for confirming the end of an engine that died in it."""


@frozen(kw_only=True)
class ModelSpec:
    """What distinguishes one model's engines from another's.

    weight_version: version of the source's weights, which engines start with; None for static ones.
    capabilities: what the backend's engines can do.
    shared: the role shares devices with another role.
    """

    role: RoleName
    model: ModelId
    served_model_name: str
    weight_source: WeightSource
    weight_version: str | None
    capabilities: frozenset[Capability]
    shared: bool

    @property
    def name(self) -> str:
        """The model as messages call it."""
        return f"{self.role} {self.model}"

    @property
    def can_sleep(self) -> bool:
        return Capability.SLEEP in self.capabilities

    @property
    def rights(self) -> WeightRights:
        """What may be done to its weights."""
        return WeightRights(name=self.name, weight_source=self.weight_source, capabilities=self.capabilities)


def check_nodes(spec: ModelSpec, engine: EngineId, slots: Sequence[WorkerSlot]) -> None:
    """Return if a replica may have these slots.

    Raises:
        CapabilityError: it spans nodes, and the backend's engines don't.
    """
    if len(slots) > 1 and Capability.SEVERAL_NODES not in spec.capabilities:
        raise CapabilityError(
            f"{spec.role} {engine} spans {len(slots)} nodes; its engine backend starts engines on "
            "one node only. Lower devices_per_engine to what one node has"
        )


@frozen(kw_only=True)
class LifecycleTimes:
    """Durations, seconds.

    start_s: one engine from process start to ready.
    prepare_s: getting the model's files onto a node before the first start.
    drain_grace_s: how long running requests may finish before they are aborted.
    probe_s: how long one look at an engine may take.
    stop_s: ending an engine, or putting a rebuilt one to sleep, outside a command.
    backoff_s, longest_backoff_s: pause before trying again what has failed, a start or a look for
        survivors; it doubles.
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
    proved_gone: the engine or its worker ended by itself, and nothing of it is left.
    refused: nothing was touched, and the replica is as it was.
    """

    replica: Replica
    ticket: Ticket
    problem: str | None = None
    proved_gone: bool = False
    refused: bool = False

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
        self,
        spec: ModelSpec,
        *,
        factory: WorkerFactory,
        reaper: Reaper,
        times: LifecycleTimes,
        clock: Clock,
        gate: TokenGate,
        emit: Emit,
    ) -> None:
        self._spec = spec
        self._workers = ReplicaWorkers(spec.role, factory=factory, reaper=reaper, emit=emit)
        self._times = times
        self._clock = clock
        self._gate = gate
        self._emit = emit

    async def prepare(self, replica: Replica, deadline: Deadline) -> None:
        """Get the model's files; a failure shows again, with its place, in the start that follows."""
        try:
            await self._workers.prepare(replica, deadline)
        except RolecallError as error:
            logger.warning("%s: %s", replica.engine, error)

    async def prepare_next(self, replica: Replica, update: Path | None, deadline: Deadline) -> None:
        """Have a replica's workers do ahead what its next start or wake needs no device for.

        Changes nothing of the replica, whatever is met: the start or wake does it all itself.
        """
        reads = await asyncio.gather(
            *(
                worker.handle.prepare_next(update, deadline)
                for worker in replica.workers
                if worker.died is None
            ),
            return_exceptions=True,
        )
        problems = [str(read) for read in reads if isinstance(read, Exception)]
        done = [read for read in reads if isinstance(read, ReadAhead)]
        problems += [read.skipped for read in done if read.skipped]
        if problems:
            logger.info("%s was not prepared: %s", replica.engine, "; ".join(problems))
        self._emit(
            "replica.prepared",
            role=self._spec.role,
            engine=replica.engine,
            bytes=sum(read.bytes for read in done),
            read_bytes=sum(read.read_bytes for read in done),
            seconds=max((read.seconds for read in done), default=0.0),
            problem="; ".join(problems) or None,
        )

    def replace_dead(self, replica: Replica) -> None:
        """Make new workers for a replica of whose dead ones nothing is left."""
        self._workers.replace_dead(replica)

    async def start(self, replica: Replica, deadline: Deadline) -> Attempt:
        """Start an engine for a STARTING or FAILED replica; STARTING when it has succeeded.

        A failed replica's old engine is ended first, with evidence, and a new incarnation begins. It
        has the weights of the model's source.
        """
        if (refused := await self._make_way(replica, deadline)) is not None:
            return refused
        version = self._spec.weight_version

        def record(started: Started) -> None:
            replica.record_start(started, version if replica.url is None else started.weight_version)
            self._note_memory(replica, started.memory.resident_bytes, awake=True)

        work = deadline.leaving(_CONFIRM_S) if len(replica.workers) > 1 else deadline
        start = self._workers.start(replica, replica.stamp(self._gate.highest), version, work)
        attempt = await self._attempt(replica, "start", start, record, deadline)
        self._back_off(attempt)
        return attempt

    async def wake(self, replica: Replica, deadline: Deadline) -> Attempt:
        """Wake a SLEEPING replica; ONLOADING when it has succeeded, for the manager to open."""
        replica.enter_state(ReplicaState.ONLOADING, "onload")

        def record(memory: MemoryReport) -> None:
            self._note_memory(replica, memory.resident_bytes, awake=True)

        stamp = replica.stamp(self._gate.highest)
        work = self._workers.wake(replica, stamp, replica.weight_version, deadline.leaving(_CONFIRM_S))
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

        stamp = replica.stamp(self._gate.highest)
        work = self._workers.sleep(replica, stamp, self._times.drain_grace_s, deadline.leaving(_CONFIRM_S))
        return await self._attempt(replica, "sleep", work, record, deadline)

    async def prove_asleep(self, replica: Replica, deadline: Deadline) -> Attempt:
        """Have a SLEEPING replica's memory measured again; FAILED if it holds any, or nobody can say."""

        def record(held: int) -> None:
            self._note_memory(replica, held, awake=False)

        stamp = replica.stamp(self._gate.highest)
        work = self._workers.prove_asleep(replica, stamp, deadline.leaving(_CONFIRM_S))
        return await self._attempt(replica, "proof of its sleep", work, record, deadline)

    async def update(
        self, replica: Replica, update: WeightUpdate, version: str, deadline: Deadline
    ) -> Attempt:
        """Give an ONLOADING replica other weights; ONLOADING with them when it has succeeded."""

        def record(memory: MemoryReport) -> None:
            replica.weight_version = version
            self._note_memory(replica, memory.resident_bytes, awake=True)

        replica.waits = False
        stamp = replica.stamp(self._gate.highest)
        work = self._workers.update_weights(
            replica, stamp, update, version, grace_s=self._times.drain_grace_s, deadline=deadline
        )
        attempt = await self._attempt(
            replica, f"update of the weights to {version!r}", work, record, deadline
        )
        self._back_off(attempt)
        return attempt

    async def join_weights_group(self, replica: Replica, group: WeightsGroup, deadline: Deadline) -> Attempt:
        """Have an ONLOADING replica join a group; FAILED if it did not: its scheduler may wait for ever."""
        work = self._workers.join_weights_group(replica, replica.stamp(self._gate.highest), group, deadline)
        return await self._attempt(
            replica, f"joining group {group.name!r}", work, lambda _: replica.groups.add(group.name), deadline
        )

    async def leave_weights_group(self, replica: Replica, name: str, deadline: Deadline) -> Attempt:
        """Have an ONLOADING replica leave a group."""
        work = self._workers.leave_weights_group(replica, replica.stamp(self._gate.highest), name, deadline)
        return await self._attempt(
            replica, f"leaving group {name!r}", work, lambda _: replica.groups.discard(name), deadline
        )

    async def end(self, replica: Replica, deadline: Deadline, *, proof: Proof | None = None) -> bool:
        """Have each worker end its engine, unless there is evidence of its end; True when all have.

        For a worker that is dead the reaper looks, and ends what is left; ``proof`` is what an operator
        says of it.
        """
        ticket = replica.ticket()
        await self._workers.end(replica, replica.stamp(self._gate.highest), deadline, proof=proof)
        if replica.ticket().incarnation != ticket.incarnation:
            return False
        if replica.vacant:
            replica.resident_bytes = 0
            replica.failed_reaps = 0
        elif replica.fence is not None:
            replica.reap_not_before_s = self._clock.now_s() + self._pause(replica.failed_reaps)
            replica.failed_reaps += 1
        return replica.vacant

    async def requests(self, replica: Replica, deadline: Deadline) -> int | None:
        """How many requests an awake replica works on; None if nobody can say. Changes nothing.

        Of a replica whose worker has died there is nothing to wait for: 0.
        """
        limit = deadline.at_most(self._times.probe_s)
        try:
            head, *_ = await self._workers.look(replica, generate=False, deadline=limit)
        except WorkerDiedError:
            return 0
        except RolecallError as error:
            logger.warning("%s does not say how many requests it works on: %s", replica.engine, error)
            return None
        if head.exit_code is not None:
            return 0
        counts = [count for count in (head.permits, head.running) if count is not None]
        return max(counts, default=None)

    async def probe(self, replica: Replica) -> None:
        """Look at a READY, SLEEPING or waiting replica; FAILED if it is broken."""
        ticket = replica.ticket()
        verdict, detail = await self._look(replica, Deadline.after(self._clock, self._times.probe_s))
        if not replica.is_current(ticket):
            return
        match verdict:
            case Verdict.WELL:
                replica.failed_probes = 0
            case Verdict.DOUBTFUL:
                replica.failed_probes += 1
                logger.warning("%s: %s, look %d in a row", replica.engine, detail, replica.failed_probes)
            case Verdict.BROKEN:
                replica.enter_state(ReplicaState.FAILED, detail)

    async def doubt(self, replica: Replica, deadline: Deadline) -> str | None:
        """Look at a READY, SLEEPING or waiting replica; return why it may not be so, None if it is."""
        ticket = replica.ticket()
        limit = deadline.at_most(self._times.probe_s)
        verdict, detail = await self._look(replica, limit)
        if not replica.is_current(ticket):
            return f"it changed while it was looked at: {replica.account}"
        return None if verdict is Verdict.WELL else detail

    async def _look(self, replica: Replica, deadline: Deadline) -> tuple[Verdict, str]:
        """Have its workers look, and judge what they say; changes no state."""
        ticket = replica.ticket()
        policy = self._times.health
        generate = replica.state is not ReplicaState.SLEEPING
        try:
            looks = await self._workers.look(replica, generate=generate, deadline=deadline)
        except WorkerDiedError:
            return Verdict.BROKEN, _deaths(replica)
        except (WorkerUnavailableError, DeadlineExceededError) as error:
            verdict = judge_silence(failed_before=replica.failed_probes, policy=policy)
            return verdict, f"its worker gives no answer, which does not mean dead: {error}"
        if replica.is_current(ticket):
            replica.permits = looks[0].permits
        verdicts = [
            judge(look, incarnation=ticket.incarnation, failed_before=replica.failed_probes, policy=policy)
            for look in looks
        ]
        worst = max(verdicts, key=list(Verdict).index)
        return worst, looks[verdicts.index(worst)].detail

    async def _make_way(self, replica: Replica, deadline: Deadline) -> Attempt | None:
        """Ready a FAILED replica for a new incarnation; the refusal if that can't be."""
        if replica.state is not ReplicaState.FAILED:
            return None
        ticket, why = replica.ticket(), replica.reason
        ended = await self.end(replica, deadline.share(0.5))
        if replica.fence is not None:
            return _refusal(replica, str(InferenceRecoveryRequired(replica.fence)))
        if not ended or not replica.is_current(ticket):
            return _refusal(replica, f"its old engine is not confirmed gone: {replica.account}")
        self._workers.replace_dead(replica)
        replica.begin_incarnation(f"rebuild, since {why}")
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
        if isinstance(error, UpdateRefusedError):
            return Attempt(replica=replica, ticket=ticket, problem=problem, refused=True)
        died = isinstance(error, WorkerDiedError)
        replica.enter_state(ReplicaState.FAILED, _deaths(replica) if died else problem)
        # An end that came by itself can be proved at once, and a part of a replica must not live on.
        proved = died or isinstance(error, EngineExitedError)
        if (proved or len(replica.workers) > 1) and await self.end(replica, deadline):
            return Attempt(
                replica=replica,
                ticket=replica.ticket(),
                problem=f"{problem}; {replica.evidence}",
                proved_gone=proved,
            )
        return _refusal(replica, replica.account if died else problem)

    def _back_off(self, attempt: Attempt) -> None:
        """After a failure, keep the replica from being tried again at once."""
        replica = attempt.replica
        if attempt.succeeded or not (attempt.refused or replica.state is ReplicaState.FAILED):
            return
        replica.rebuild_not_before_s = self._clock.now_s() + self._pause(replica.failed_starts)
        replica.failed_starts += 1

    def _pause(self, failures: int) -> float:
        return min(self._times.backoff_s * 2**failures, self._times.longest_backoff_s)

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


def _deaths(replica: Replica) -> str:
    return "; ".join(
        f"the worker on node {worker.slot.node_ip} died: {worker.died}"
        for worker in replica.workers
        if worker.died is not None
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
