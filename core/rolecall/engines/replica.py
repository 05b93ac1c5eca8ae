"""One logical replica: its state, its incarnation, its workers, and the one door between states.

Owned by the model's manager; nobody else changes it. :meth:`Replica.enter_state` is the only way
to another state: it asks the transition table, logs, and emits ``replica.state``.

A :class:`Ticket` names a moment in a replica's life. Whoever awaits something for a replica takes
one before and checks it after: when the state or the incarnation has changed meanwhile, the
result belongs to the past and is dropped.
"""

from __future__ import annotations

import logging
from typing import Any

from attrs import define, frozen

from rolecall.discovery.topology import EngineView
from rolecall.engines.fencing import Stamp, TokenGate
from rolecall.engines.replica_state import ReplicaState, next_state
from rolecall.engines.results import ReplicaOutcome
from rolecall.engines.worker_handle import Started, WorkerHandle, WorkerSlot
from rolecall.events.event import Emit
from rolecall.ids import EngineId, FencingToken, RoleName
from rolecall.interfaces.engine_backend import Disaggregation
from rolecall.interfaces.router import RouterWorker

logger = logging.getLogger(__name__)


@frozen(kw_only=True)
class Ticket:
    """A replica as it was: valid until it enters another state or incarnation."""

    incarnation: int
    changes: int


@define(kw_only=True)
class WorkerRecord:
    """One worker of a replica.

    evidence: why no engine process of it can be left; None while there is, or may be, one.
    died: what said that the worker is dead; it is never called again, and replaced before the next
        start.
    fence: of a dead worker without evidence: what is left of its engine, as far as anyone knows.
    unended: of a living worker without evidence: why it could not end its engine when it was last asked.
    """

    slot: WorkerSlot
    handle: WorkerHandle
    evidence: str | None = None
    died: str | None = None
    fence: str | None = None
    unended: str | None = None

    @property
    def missing(self) -> str | None:
        """Why there is no evidence; None if there is."""
        if self.evidence is not None:
            return None
        return self.fence or self.unended or f"nobody has ended its engine on node {self.slot.node_ip}"


class Replica:
    """Made in STARTING, as incarnation 1 and generation 1. ``gate`` is its manager's.

    workers: the head first, then the followers of a replica that spans nodes.
    generation: rises with every new endpoint; what discovery shows.
    incarnation: number of the engine start; what commands and late answers are judged by.
    urls: every URL the replica has had, the present one last.
    weight_version: version that this incarnation has proved; None for static weights.
    groups: weight groups that this incarnation has joined.
    permits: requests inside its door at the last look; None before that, or without a door.
    waits: it is awake, but lacks the model's current weights, and nobody is giving them to it now.
    """

    def __init__(
        self,
        *,
        role: RoleName,
        engine: EngineId,
        workers: tuple[WorkerRecord, ...],
        gate: TokenGate,
        emit: Emit,
    ) -> None:
        self.engine = engine
        self.workers = workers
        self.generation = 1
        self.incarnation = 1
        self.urls: list[str] = []
        self.started: Started | None = None
        self.weight_version: str | None = None
        self.groups: set[str] = set()
        self.waits = False
        self.resident_bytes: int | None = None
        self.permits: int | None = None
        self.failed_probes = 0
        self.failed_starts = 0
        self.rebuild_not_before_s = 0.0
        self.failed_reaps = 0
        self.reap_not_before_s = 0.0
        self._role = role
        self._gate = gate
        self._emit = emit
        self._changes = 0
        self._state = ReplicaState.STARTING
        self._reason = ""
        self._tell(None, "created")

    @property
    def state(self) -> ReplicaState:
        return self._state

    @property
    def reason(self) -> str:
        """Why the replica is in its state."""
        return self._reason

    @property
    def head(self) -> WorkerHandle:
        return self.workers[0].handle

    @property
    def base_url(self) -> str | None:
        """Where the running incarnation answers; None before it has started."""
        return self.started.base_url if self.started is not None else None

    @property
    def half(self) -> Disaggregation | None:
        """Which half of each request it does, in a prefill/decode pair; None: all of it."""
        return self.workers[0].slot.half

    @property
    def url(self) -> str | None:
        """Where its engine answers, if somebody else runs it."""
        return self.workers[0].slot.url

    @property
    def as_worker(self) -> RouterWorker:
        """The running incarnation's head, as a router is told of it."""
        assert self.started is not None, f"{self.engine} has not started"
        return RouterWorker(
            base_url=self.started.base_url, half=self.half, bootstrap_port=self.started.bootstrap_port
        )

    @property
    def vacant(self) -> bool:
        """True when there is evidence that no engine process of this replica is left."""
        return all(worker.evidence is not None for worker in self.workers)

    @property
    def evidence(self) -> str:
        return "; ".join(worker.evidence for worker in self.workers if worker.evidence is not None)

    @property
    def fence(self) -> str | None:
        """Why nothing may be started here: what dead workers may have left; None: nothing."""
        fences = [worker.fence for worker in self.workers if worker.fence is not None]
        return "; ".join(fences) or None

    @property
    def missing(self) -> str:
        """What speaks against its being vacant, worker by worker; empty if nothing does."""
        return "; ".join(worker.missing for worker in self.workers if worker.missing is not None)

    @property
    def account(self) -> str:
        """Why the replica is as it is: the fence if there is one, else the reason of its state."""
        return self.fence or self._reason

    def enter_state(self, wanted: ReplicaState, reason: str) -> None:
        """Change the state, log it and emit ``replica.state``.

        Raises:
            TransitionError: the change is not in the table.
        """
        before, self._state = self._state, next_state(self.engine, self._state, wanted)
        self._changes += 1
        self.failed_probes = 0
        self.waits = False
        if wanted is ReplicaState.READY:
            self.failed_starts = 0
        self._tell(before, reason)

    def wait(self, reason: str) -> None:
        """Note that an ONLOADING replica is awake and stays unroutable until it gets other weights."""
        self.waits = True
        if reason != self._reason:
            self._reason = reason
            logger.warning("%s %s waits: %s", self._role, self.engine, reason)

    def begin_incarnation(self, reason: str) -> None:
        """Enter STARTING as a new incarnation with a higher generation and no endpoint."""
        next_state(self.engine, self._state, ReplicaState.STARTING)  # refuse before anything has changed
        self.incarnation += 1
        self.generation += 1
        self.started = None
        self.weight_version = None
        self.permits = None
        self.groups.clear()
        self.enter_state(ReplicaState.STARTING, reason)
        for worker in self.workers:
            worker.evidence = worker.unended = None

    def record_start(self, started: Started, weight_version: str | None) -> None:
        """Take over what the started engine, or its head, says of itself."""
        self.started = started
        self.weight_version = weight_version
        self.resident_bytes = started.memory.resident_bytes
        if started.base_url not in self.urls[-1:]:
            self.urls.append(started.base_url)

    def outcome(self, *, confirmed: bool, detail: str | None = None) -> ReplicaOutcome:
        """What a command achieved here, as it is reported."""
        return ReplicaOutcome(
            engine=self.engine, state=self._state, confirmed=confirmed, detail=detail or self.account
        )

    def ticket(self) -> Ticket:
        return Ticket(incarnation=self.incarnation, changes=self._changes)

    def is_current(self, ticket: Ticket) -> bool:
        return ticket == self.ticket()

    def stamp(self, token: FencingToken) -> Stamp:
        return Stamp(incarnation=self.incarnation, token=token)

    def view(self, *, reached: bool) -> EngineView:
        """The replica as discovery shows it; ``reached``: requests are brought to it."""
        return EngineView(
            engine_id=self.engine,
            base_url=self.base_url,
            state=self.state,
            generation=self.generation,
            reached=reached,
            half=self.half,
        )

    def status(self) -> dict[str, Any]:
        """The replica as JSON values, for people. Asks no worker."""
        started = self.started
        return {
            "engine": self.engine,
            "state": self._state.value,
            "reason": self._reason,
            "generation": self.generation,
            "incarnation": self.incarnation,
            "base_url": self.base_url,
            "half": self.half.value if self.half is not None else None,
            "weight_version": self.weight_version,
            "pid": started.pid if started is not None else None,
            "node": self.workers[0].slot.node_ip,
            "devices": list(self.workers[0].slot.device_ids),
            "followers": [
                {"node": worker.slot.node_ip, "devices": list(worker.slot.device_ids)}
                for worker in self.workers[1:]
            ],
            "resident_bytes": self.resident_bytes,
            "permits": self.permits,
            "log": str(started.log_path) if started is not None and started.log_path is not None else None,
            "external": self.url is not None,
            "fence": self.fence,
            "vacant": self.vacant,
        }

    def _tell(self, before: ReplicaState | None, reason: str) -> None:
        self._reason = reason
        logger.info(
            "%s %s: %s → %s (%s), generation %d, incarnation %d",
            self._role,
            self.engine,
            before or "new",
            self._state,
            reason,
            self.generation,
            self.incarnation,
        )
        self._emit(
            "replica.state",
            role=self._role,
            engine=self.engine,
            reason=reason,
            generation=self.generation,
            incarnation=self.incarnation,
            token=self._gate.highest,
            **{"from": before and before.value, "to": self._state.value},
        )
