"""The coordinator's decisions: leases, batches and operations as one pure, synchronous object.

The ledger never waits, and its only I/O is its journal: whatever it decides is written down before it is
so, and what can't be written is not decided. Whoever drives it (the coordinator, a simulation) sends
the commands it decides on and reports the answers:

    operation = ledger.open(id, command)     # new, or the one that has this id
    while before := ledger.start(operation): # returns the operation to wait for, if any
        ...                                  # wait until it has ended
    if operation.state is CALLING:           # send the command under operation.token
        ledger.confirm(operation)            # or ledger.block(operation, why)
    operation.result()

A ledger whose journal was written by the same run takes over: batches, tokens and the fates of operations are
as they were, and every shared role is BLOCKED until it has proved where it stands:

    for role in ledger.unaccounted:
        token = ledger.ask(role)             # have the role account for itself under this token
        ledger.settle(role, token, ...)      # what its answer proved

Invariants:
    * Of two conflicting roles at most one is not SLEEPING, except for BLOCKED ones; while one is
      BLOCKED the other is not granted.
    * Tokens grow strictly, one a command, over all roles.
    * A batch is committed only when acknowledged and while every shared role is SLEEPING.
    * Roles that conflict with nobody are *resident*: never woken or put to sleep, awake from the start.
    * A lease leaves BLOCKED only by proof that was asked for: in a reconciliation, or after a restart.
    * A training role is granted for a batch that has not begun or is committed, all others for a pending one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from typing import Any

from attrs import asdict, evolve

from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import (
    JournalError,
    LeaseBlockedError,
    LeaseError,
    RolecallError,
    SinkError,
    TransitionError,
)
from rolecall.events.event import Emit, discard
from rolecall.ids import BatchId, EngineId, FencingToken, OperationId, RoleName, partition_name
from rolecall.leases.batch_book import COMMITTED_BATCHES, BatchBook
from rolecall.leases.history import JOB_ENDED, History, Kind, replay
from rolecall.leases.journal import Journal
from rolecall.leases.lease_state import Lease, LeaseState, OpeningLease, PastLease, check_setup
from rolecall.leases.operation import (
    RETIRED_OPERATIONS,
    Command,
    Method,
    Operation,
    OperationLog,
    OperationState,
    identity,
    told,
)
from rolecall.leases.reconciliation import Reconciliation
from rolecall.leases.recording import Recorder
from rolecall.leases.refusals import fence_error, interrupted, join, lease_error
from rolecall.leases.status import status

_IN_TRANSIT = frozenset({LeaseState.ONLOADING, LeaseState.DRAINING})


class Ledger:
    """Owns every lease, batch and operation of a job; used from one thread or event loop.

    Args:
        conflicts: role → roles that share a bundle with it; symmetric, all roles as keys.
        opening: role → the state its lease starts in.
        training: those of the roles that are the trainer's.
        clock: seconds, monotonic; only for telling ages.
        wall_clock: Unix time, for audit records.
        emit: takes ``lease.state``, ``lease.reconciled``, ``batch.state`` and ``operation.state``.
        journal: what is known survives this object in it; None: nothing does.
        run: names the job's process. In the journal of this very run ``opening`` is what its first ledger
            began with, and the leases are taken over from the journal. Of a former run they begin anew, what
            was open is failed, and everything else is taken over.
        retired_limit, committed_limit: how much history is kept.

    Raises:
        JournalError: the journal can't be read or written, or is of a job with other roles.
    """

    def __init__(
        self,
        *,
        conflicts: Mapping[RoleName, Set[RoleName]],
        opening: Mapping[RoleName, OpeningLease],
        training: Set[RoleName] = frozenset(),
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
        emit: Emit = discard,
        journal: Journal | None = None,
        run: str = "",
        retired_limit: int = RETIRED_OPERATIONS,
        committed_limit: int = COMMITTED_BATCHES,
    ) -> None:
        check_setup(conflicts, opening)
        self._conflicts = {role: frozenset(others) for role, others in conflicts.items()}
        self._training = training
        self._clock = clock
        self._wall_clock = wall_clock
        self._emit = emit
        self._run = run
        past = replay(() if journal is None else journal.records())
        restarted = past.run == run
        if not restarted:
            past.end_calls()
        self._last_token = past.last_token
        self._recorder = Recorder(journal, self.history)
        self._operations = OperationLog(retired_limit, emit=emit, past=past.operations)
        self._book = BatchBook(
            history=past, recorder=self._recorder, emit=emit, clock=clock, committed_limit=committed_limit
        )
        self._in_transit: dict[RoleName, Operation] = {}
        self._reconciling: dict[RoleName, Operation] = {}
        self._unaccounted: dict[RoleName, PastLease] = {}
        self._leases: dict[RoleName, Lease] = {}
        if restarted:
            self._take_over(past)
        else:
            self._begin_run(opening)

    def _begin_run(self, opening: Mapping[RoleName, OpeningLease]) -> None:
        last_token = self._last_token
        first: dict[RoleName, PastLease] = {}
        for role, lease in opening.items():
            token = None
            if lease.state is LeaseState.ACTIVE:
                token = last_token = last_token + 1
            first[role] = PastLease(state=lease.state, reason=lease.reason, token=token)
        leases = {role: asdict(lease) for role, lease in first.items()}
        self._recorder.decide(Kind.STARTED, durable=True, run=self._run, leases=leases)
        self._book.abandon(JOB_ENDED)
        for role, lease in first.items():
            self._open_lease(role, lease)

    def _take_over(self, past: History) -> None:
        if past.leases.keys() != self._conflicts.keys():
            raise JournalError(
                f"the journal is of a job with roles {sorted(past.leases)}, not {sorted(self._conflicts)}"
            )
        for operation in self._operations.running():
            self._in_transit[operation.command.role] = operation
        for role in self._conflicts:
            was = past.leases[role]
            if self.is_resident(role) or was.state is LeaseState.BLOCKED:
                self._open_lease(role, was)
                continue
            self._unaccounted[role] = was
            reason = f"the coordinator was restarted; the role was {was.state} and has not answered yet"
            self._open_lease(role, evolve(was, state=LeaseState.BLOCKED, reason=reason))
        for role in sorted(self._training & self._unaccounted.keys()):
            # Nobody can look into the trainer, but it was told of its turn, and its word stands.
            holds = self._unaccounted[role].state in {LeaseState.ONLOADING, LeaseState.ACTIVE}
            stands = ReplicaState.READY if holds else ReplicaState.SLEEPING
            self.settle(role, self._leases[role].token, stands, "")

    def _open_lease(self, role: RoleName, first: PastLease) -> None:
        self._leases[role] = Lease(
            role,
            OpeningLease(state=first.state, reason=first.reason),
            token=None if first.token is None else FencingToken(first.token),
            batch=None if first.batch is None else BatchId(first.batch),
            emit=self._emit,
            clock=self._clock,
        )
        self._last_token = max(self._last_token, first.token or 0)

    # --- batches ------------------------------------------------------------------------

    def begin_batch(self, batch: BatchId) -> int:
        """Open a batch and return which attempt it is; see :meth:`BatchBook.begin`."""
        return self._book.begin(batch)

    def commit_batch(self, batch: BatchId, *, acknowledged: bool, attempt: int | None = None) -> None:
        """Commit a pending batch; repeats of a successful commit do nothing.

        A refusal leaves the batch PENDING.

        Raises:
            BatchFailedError: it, or the run, has failed.
            TransitionError: it has not begun, is too old to tell, or is in another attempt.
            SinkError: the sink has not acknowledged it.
            LeaseError: shared roles are not asleep; names them. ``LeaseBlockedError`` if one
                of them is fenced.
        """
        if self._book.knows_committed(batch):
            self._book.require_attempt(batch, attempt)
            return
        self._book.require_pending(batch, attempt)
        if not acknowledged:
            raise SinkError(
                f"batch {batch} is not committed: the sink has not acknowledged {partition_name(batch)!r}. "
                "Commit after put() has returned, or fail the batch"
            )
        if awake := self._not_asleep():
            raise lease_error(
                awake,
                f"batch {batch} is not committed: {join(awake)}; every role that shares devices "
                "must be SLEEPING. Deactivate them first, or fail the batch",
            )
        self._book.commit(batch, reason=f"{partition_name(batch)} acknowledged, every shared role SLEEPING")

    def fail_batch(self, batch: BatchId, reason: str, attempt: int | None = None) -> None:
        """Fail the batch and the run; only the first reason counts, repeats do nothing.

        Raises:
            TransitionError: the batch was committed, is too old to tell, or is in another attempt.
        """
        self._book.fail(batch, reason=reason, attempt=attempt)

    def is_committed(self, batch: BatchId) -> bool:
        """Return whether consumers may read the batch; False while it still may be committed.

        Raises:
            BatchFailedError: it never will be; the message is the first failure.
            CommitTimeoutError: it is older than what is remembered.
        """
        return self._book.is_committed(batch)

    def describe_batch(self, batch: BatchId) -> str:
        """Return the batch's state and who is awake, for a message."""
        busy = [lease for lease in self._leases.values() if lease.batch is not None]
        leases = f"; {join(busy)}" if busy else ""
        return f"{self._book.describe(batch)}{leases}"

    # --- operations ---------------------------------------------------------------------

    def open(self, operation_id: OperationId, command: Command) -> Operation:
        """Return the operation of this id, new or known. See :class:`OperationLog`."""
        return self._operations.open(operation_id, command)

    def start(self, operation: Operation) -> Operation | None:
        """Decide on a WAITING operation; one in another state is left alone.

        Afterwards it has ended (nothing to do, or refused: ``result()`` raises), or it is
        CALLING and its command must be sent, or it is still WAITING for the returned operation
        and has to be started again when that one has ended. Only a deactivate ever waits.

        Raises:
            JournalError: the decision can't be written down; the operation is still WAITING.
        """
        if operation.state is not OperationState.WAITING:
            return None
        try:
            match operation.command.method:
                case Method.ACTIVATE:
                    self._grant(operation)
                case Method.DEACTIVATE:
                    return self._recall(operation)
                case Method.RECONCILE:
                    self._reconcile(operation)
                case Method.RESUME:
                    self._resume(operation)
            return None
        except JournalError:
            raise
        except RolecallError as refusal:  # the refusal is the operation's fate; result() raises it
            self._recorder.learn(Kind.ENDED, **identity(operation), token=None, error=told(refusal))
            self._operations.fail(operation, refusal)
            return None

    def confirm(self, operation: Operation) -> None:
        """The role proved that the command was carried out."""
        self._require_calling(operation)
        command = operation.command
        if command.method is Method.ACTIVATE:
            state, reason, holder = LeaseState.ACTIVE, "every replica is READY", command.batch
        else:
            state, reason, holder = LeaseState.SLEEPING, "every replica is SLEEPING", None
        self._move(operation, state, reason, holder=holder, error=None)
        self._operations.finish(operation, operation.token, reason=reason)

    def block(self, operation: Operation, why: str, cause: BaseException | None = None) -> None:
        """The command was sent and its result is unknown or bad: fence the lease for good."""
        self._require_calling(operation)
        command = operation.command
        error = fence_error(command.role, f"{command} is not confirmed, token {operation.token}: {why}")
        error.__cause__ = cause
        self._move(operation, LeaseState.BLOCKED, why, holder=command.batch, error=error)
        self._operations.fail(operation, error)

    def may_lift(self, operation: Operation) -> bool:
        """Whether a CALLING reconcile is about a BLOCKED lease, and not only about single replicas."""
        return operation.command.role in self._reconciling and operation.token is not None

    def lift(self, operation: Operation, evidence: Mapping[EngineId, str]) -> None:
        """The claim of a reconcile was found true; a BLOCKED lease is open again."""
        self._require_calling(operation)
        role, claim = operation.command.role, operation.command.claim
        assert claim is not None, f"{operation.command} has no claim"
        record = Reconciliation(role=role, claim=claim, decided_s=self._wall_clock(), evidence=evidence)
        reason = f"reconciled by {claim.by}: {claim.proof}"
        state = None
        if self.may_lift(operation):
            state = LeaseState.ACTIVE if self.is_resident(role) else LeaseState.SLEEPING
        try:
            self._recorder.decide(
                Kind.RECONCILED,
                durable=True,
                **identity(operation),
                token=operation.token,
                state=state,
                reason=reason,
                record=record.to_json(),
                error=None,
            )
        except JournalError as error:
            # Without its audit record no fence is lifted.
            self.keep_fence(operation, str(error), error)
            return
        if state is not None:
            self._leases[role].enter_state(state, reason=reason, token=operation.token, batch=None)
        del self._reconciling[role]
        operation.record = record
        self._operations.finish(operation, operation.token, reason=reason)
        self._emit("lease.reconciled", operation=operation.id, **record.to_json())

    def keep_fence(self, operation: Operation, why: str, cause: BaseException | None = None) -> None:
        """The claim of a reconcile was not found true; ``why`` says what is missing."""
        self._require_calling(operation)
        role = operation.command.role
        lease = self._leases[role]
        error = LeaseBlockedError(
            f"{operation.command}: the fence stays, since it is not proved that nothing is left: {why}. "
            "Mend that and repeat the command"
        )
        reason = f"not reconciled: {why}"
        state = LeaseState.BLOCKED if self.may_lift(operation) else None
        self._recorder.learn(
            Kind.RECONCILED,
            **identity(operation),
            token=operation.token,
            state=state,
            reason=reason,
            record=None,
            error=told(error),
        )
        if state is not None:
            lease.enter_state(state, reason=reason, token=operation.token, batch=lease.batch)
        del self._reconciling[role]
        error.__cause__ = cause
        self._operations.fail(operation, error)

    # --- after a restart ----------------------------------------------------------------

    @property
    def unaccounted(self) -> tuple[RoleName, ...]:
        """The roles that have to prove where they stand."""
        return tuple(self._unaccounted)

    def ask(self, role: RoleName) -> FencingToken:
        """Return the token under which a role is asked where it stands.

        Raises:
            JournalError: it can't be written down, and the role must not be asked.
        """
        token = FencingToken(self._last_token + 1)
        self._recorder.decide(Kind.ASKED, durable=True, role=role, token=token)
        self._last_token = token
        return token

    def settle(
        self, role: RoleName, token: FencingToken | None, stands: ReplicaState | None, why: str
    ) -> None:
        """Open the lease of a role that has proved where it stands; else it stays fenced.

        Args:
            stands: every replica is proved SLEEPING, or READY; None: neither, and ``why`` says more.

        Raises:
            TransitionError: the role has nothing to account for.
        """
        if role not in self._unaccounted:
            raise TransitionError(f"{role} was not asked where it stands; its answer changes nothing")
        was = self._unaccounted[role]
        state, reason = self._standing(role, was, stands, why)
        holder = None if state is LeaseState.SLEEPING or was.batch is None else BatchId(was.batch)
        operation = self._in_transit.get(role)
        error = None if operation is None else interrupted(operation, state, reason)
        self._recorder.learn(
            Kind.SETTLED,
            role=role,
            state=state,
            reason=reason,
            token=token,
            holder=holder,
            operation=None if operation is None else operation.id,
            error=told(error),
        )
        del self._unaccounted[role]
        self._leases[role].enter_state(state, reason=reason, token=token, batch=holder)
        if operation is not None:
            del self._in_transit[role]
            operation.token = token
            if error is None:
                self._operations.finish(operation, token, reason=reason)
            else:
                self._operations.fail(operation, error)

    def _standing(
        self, role: RoleName, was: PastLease, stands: ReplicaState | None, why: str
    ) -> tuple[LeaseState, str]:
        """Judge what a role's proof means for its lease; returns the state and the reason."""
        after = "after the coordinator's restart"
        if stands is ReplicaState.SLEEPING:
            return LeaseState.SLEEPING, f"{after}: every replica is SLEEPING"
        if stands is not ReplicaState.READY:
            return LeaseState.BLOCKED, f"{after}: {why}"
        if was.state not in {LeaseState.ONLOADING, LeaseState.ACTIVE} or was.batch is None:
            return LeaseState.BLOCKED, f"{after}: it is awake, though nobody holds it (it was {was.state})"
        if role not in self._training and not self._book.is_pending(BatchId(was.batch)):
            book = self._book.describe(BatchId(was.batch))
            return LeaseState.BLOCKED, f"{after}: it is awake for batch {was.batch}, of which {book}"
        rivals = [self._leases[rival] for rival in sorted(self._conflicts[role])]
        awake = [lease for lease in rivals if lease.state not in {LeaseState.SLEEPING, LeaseState.BLOCKED}]
        if awake:
            return LeaseState.BLOCKED, f"{after}: it is awake, but so is who shares devices: {join(awake)}"
        return LeaseState.ACTIVE, f"{after}: every replica is READY"

    # --- reading ------------------------------------------------------------------------

    def is_resident(self, role: RoleName) -> bool:
        return not self._conflicts[role]

    def history(self) -> History:
        """Return what the journal tells, or would tell."""
        history = History(run=self._run, last_token=self._last_token, operations=self._operations.past())
        self._book.tell(history)
        history.leases = {
            role: self._unaccounted.get(role)
            or PastLease(state=lease.state, reason=lease.reason, token=lease.token, batch=lease.batch)
            for role, lease in self._leases.items()
        }
        return history

    def status(self) -> dict[str, Any]:
        """Return everything that is known as JSON values; times are ages in seconds."""
        return status(self._leases, self._conflicts, self._book, self._operations, self._clock())

    # --- the guards ---------------------------------------------------------------------

    def _grant(self, operation: Operation) -> None:
        """Move an activate on: granted, or already held, or a refusal raised."""
        command = operation.command
        lease = self._lease(command.role)
        self._require_open(command)
        if lease.state is LeaseState.BLOCKED:
            raise fence_error(lease.role, f"can't {command}: {lease}")
        if lease.state is LeaseState.ACTIVE and (
            self.is_resident(command.role) or lease.batch == command.batch
        ):
            self._finish(operation, lease.token, f"it is {lease.state} already")
            return
        if lease.state is not LeaseState.SLEEPING:
            raise LeaseError(f"can't {command}: {lease}; it must be SLEEPING. {self._in_flight(lease)}")
        rivals = [
            rival
            for role in sorted(self._conflicts[command.role])
            if (rival := self._leases[role]).state is not LeaseState.SLEEPING
        ]
        if rivals:
            raise lease_error(
                rivals,
                f"can't {command}, which shares devices with others: {join(rivals)}; they must be SLEEPING",
            )
        self._send(operation, LeaseState.ONLOADING, f"granted by operation {operation.id!r}")

    def _recall(self, operation: Operation) -> Operation | None:
        """Move a deactivate on, or return the operation that it must wait for."""
        command = operation.command
        lease = self._lease(command.role)
        if self.is_resident(command.role) or lease.state is LeaseState.SLEEPING:
            reason = "a resident role stays awake" if self.is_resident(command.role) else "it sleeps already"
            self._finish(operation, lease.token, reason)
            return None
        if lease.state is LeaseState.BLOCKED:
            raise fence_error(lease.role, f"can't {command}: {lease}")
        if lease.batch != command.batch:
            # A late command of an earlier batch must not pull the devices from under this one.
            raise LeaseError(f"can't {command}: {lease}; only the batch that holds a lease gives it back")
        try:
            self._book.require_attempt(command.holder, command.attempt)
        except TransitionError as error:
            raise LeaseError(f"can't {command}: {error}") from error
        if lease.state in _IN_TRANSIT:
            return self._in_transit[command.role]
        self._send(operation, LeaseState.DRAINING, f"given back by operation {operation.id!r}")
        return None

    def _reconcile(self, operation: Operation) -> None:
        """Move a reconcile on: with a token for a BLOCKED lease, else without."""
        role = operation.command.role
        lease = self._lease(role)
        if (other := self._reconciling.get(role)) is not None:
            raise LeaseError(
                f"can't {operation.command}: operation {other.id!r} is about that just now; "
                "repeat that id to join it"
            )
        if role in self._unaccounted:
            raise LeaseError(f"can't {operation.command}: {lease}")
        token = self.ask(role) if lease.state is LeaseState.BLOCKED else None
        self._operations.call(operation, token)
        self._reconciling[role] = operation

    def _resume(self, operation: Operation) -> None:
        """Let the run go on, or say which roles stand in the way."""
        if awake := self._not_asleep():
            raise lease_error(
                awake,
                f"the run can't go on: {join(awake)}; every role that shares devices must be SLEEPING. "
                "Deactivate an ACTIVE one, reconcile a BLOCKED one: rolecall reconcile ROLE",
            )
        number = BatchId(self.history().next_batch)
        self._recorder.decide(Kind.RESUMED, durable=True, operation=operation.id, batch=number)
        self._book.resume()
        operation.resumed_at = number
        self._operations.finish(operation, None, reason=f"the run goes on with batch {number}")

    def _not_asleep(self) -> list[Lease]:
        """The leases of shared roles that are not SLEEPING."""
        return [
            lease
            for lease in self._leases.values()
            if not self.is_resident(lease.role) and lease.state is not LeaseState.SLEEPING
        ]

    def _require_open(self, command: Command) -> None:
        if command.role in self._training:
            self._book.require_healthy(command.holder)
            if self._book.is_pending(command.holder):
                raise LeaseError(
                    f"can't {command}: {self._book.describe(command.holder)}; the trainer's turn is before "
                    "its batch begins, or after its commit"
                )
            return
        try:
            self._book.require_pending(command.holder, command.attempt)
        except TransitionError as error:
            raise LeaseError(f"can't {command}: {error}") from error

    def _require_calling(self, operation: Operation) -> None:
        if operation.state is not OperationState.CALLING:
            raise TransitionError(
                f"an answer for operation {operation.id!r} ({operation.command}) came when it was "
                f"{operation.state}; it changes nothing"
            )

    def _lease(self, role: RoleName) -> Lease:
        if role not in self._leases:
            raise LeaseError(
                f"there is no role {role!r}; roles of this job: {', '.join(sorted(self._leases))}"
            )
        return self._leases[role]

    # --- the moves ----------------------------------------------------------------------

    def _send(self, operation: Operation, state: LeaseState, reason: str) -> None:
        command, token = operation.command, FencingToken(self._last_token + 1)
        self._recorder.decide(
            Kind.SENT, durable=True, **identity(operation), token=token, state=state, reason=reason
        )
        self._last_token = token
        self._leases[command.role].enter_state(state, reason=reason, token=token, batch=command.batch)
        self._operations.call(operation, token)
        self._in_transit[command.role] = operation

    def _move(
        self,
        operation: Operation,
        state: LeaseState,
        reason: str,
        *,
        holder: BatchId | None,
        error: RolecallError | None,
    ) -> None:
        role, fields = operation.command.role, {"state": state, "reason": reason, "holder": holder}
        self._recorder.learn(Kind.ANSWERED, operation=operation.id, error=told(error), **fields)
        self._leases[role].enter_state(state, reason=reason, token=operation.token, batch=holder)
        del self._in_transit[role]

    def _finish(self, operation: Operation, token: FencingToken | None, reason: str) -> None:
        """End an operation for which there is nothing to send."""
        self._recorder.learn(Kind.ENDED, **identity(operation), token=token, error=None)
        self._operations.finish(operation, token, reason=reason)

    def _in_flight(self, lease: Lease) -> str:
        operation = self._in_transit.get(lease.role)
        if operation is None:
            return f"Batch {lease.batch} has to deactivate it"
        return f"Operation {operation.id!r} is under way; repeat that id to join it"
