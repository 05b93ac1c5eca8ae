"""The coordinator's decisions: leases, batches and operations as one pure, synchronous object.

The ledger does no I/O and never waits. Whoever drives it (the coordinator, a simulation) sends
the commands it decides on and reports the answers:

    operation = ledger.open(id, command)     # new, or the one that has this id
    while before := ledger.start(operation): # returns the operation to wait for, if any
        ...                                  # wait until it has ended
    if operation.state is CALLING:           # send the command under operation.token
        ledger.confirm(operation)            # or ledger.block(operation, why)
    operation.result()

Invariants:
    * Of two conflicting roles at most one is not SLEEPING, except for BLOCKED ones; while one is
      BLOCKED the other is not granted.
    * Tokens grow strictly, one a command, over all roles.
    * A batch is committed only when acknowledged and while every shared role is SLEEPING.
    * Roles that conflict with nobody are *resident*: never commanded, awake from the start.
    * A training role is granted for a batch that has not begun or is committed, all others for a pending one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from rolecall.errors import (
    LeaseBlockedError,
    LeaseError,
    RolecallError,
    SinkError,
    TransitionError,
)
from rolecall.events.event import Emit, discard
from rolecall.ids import BatchId, FencingToken, OperationId, RoleName, partition_name
from rolecall.leases.batch_book import COMMITTED_BATCHES, BatchBook
from rolecall.leases.lease_state import (
    RESIDENT_STARTS,
    SHARED_STARTS,
    Lease,
    LeaseState,
    OpeningLease,
)
from rolecall.leases.operation import (
    RETIRED_OPERATIONS,
    Command,
    Method,
    Operation,
    OperationLog,
    OperationState,
)

_IN_TRANSIT = frozenset({LeaseState.ONLOADING, LeaseState.DRAINING})


class Ledger:
    """Owns every lease, batch and operation of a job; used from one thread or event loop.

    Args:
        conflicts: role → roles that share a bundle with it; symmetric, all roles as keys.
        opening: role → the state its lease starts in.
        training: those of the roles that are the trainer's.
        clock: seconds, monotonic; only for telling ages.
        emit: takes ``lease.state`` and ``batch.state``.
        retired_limit, committed_limit: how much history is kept.
    """

    def __init__(
        self,
        *,
        conflicts: Mapping[RoleName, Set[RoleName]],
        opening: Mapping[RoleName, OpeningLease],
        training: Set[RoleName] = frozenset(),
        clock: Callable[[], float],
        emit: Emit = discard,
        retired_limit: int = RETIRED_OPERATIONS,
        committed_limit: int = COMMITTED_BATCHES,
    ) -> None:
        _check_setup(conflicts, opening)
        self._conflicts = {role: frozenset(others) for role, others in conflicts.items()}
        self._training = training
        self._clock = clock
        self._last_token = 0
        self._operations = OperationLog(retired_limit)
        self._book = BatchBook(emit=emit, clock=clock, committed_limit=committed_limit)
        self._in_transit: dict[RoleName, Operation] = {}
        self._leases: dict[RoleName, Lease] = {}
        for role, first in opening.items():
            token = self._next_token() if first.state is LeaseState.ACTIVE else None
            self._leases[role] = Lease(role, first, token=token, emit=emit, clock=clock)

    # --- batches ------------------------------------------------------------------------

    def begin_batch(self, batch: BatchId) -> None:
        """Open a batch. Repeats do nothing; an ended batch or a failed run raises."""
        self._book.begin(batch)

    def commit_batch(self, batch: BatchId, *, acknowledged: bool) -> None:
        """Commit a pending batch; repeats of a successful commit do nothing.

        A refusal leaves the batch PENDING.

        Raises:
            BatchFailedError: it, or the run, has failed.
            TransitionError: it has not begun, or is too old to tell.
            SinkError: the sink has not acknowledged it.
            LeaseError: shared roles are not asleep; names them. ``LeaseBlockedError`` if one
                of them is fenced.
        """
        if self._book.knows_committed(batch):
            return
        self._book.require_pending(batch)
        if not acknowledged:
            raise SinkError(
                f"batch {batch} is not committed: the sink has not acknowledged {partition_name(batch)!r}. "
                "Commit after put() has returned, or fail the batch"
            )
        awake = [
            lease
            for lease in self._leases.values()
            if not self.is_resident(lease.role) and lease.state is not LeaseState.SLEEPING
        ]
        if awake:
            raise _lease_error(
                awake,
                f"batch {batch} is not committed: {_join(awake)}; every role that shares devices "
                "must be SLEEPING. Deactivate them first, or fail the batch",
            )
        self._book.commit(batch, reason=f"{partition_name(batch)} acknowledged, every shared role SLEEPING")

    def fail_batch(self, batch: BatchId, reason: str) -> None:
        """Fail the batch and the run; only the first reason counts, repeats do nothing.

        Raises:
            TransitionError: the batch was committed, or is too old to tell.
        """
        self._book.fail(batch, reason=reason)

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
        leases = f"; {_join(busy)}" if busy else ""
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
        """
        if operation.state is not OperationState.WAITING:
            return None
        try:
            if operation.command.method is Method.ACTIVATE:
                self._grant(operation)
                return None
            return self._recall(operation)
        except RolecallError as refusal:  # the refusal is the operation's fate; result() raises it
            self._operations.fail(operation, refusal)
            return None

    def confirm(self, operation: Operation) -> None:
        """The role proved that the command was carried out."""
        self._require_calling(operation)
        command = operation.command
        if command.method is Method.ACTIVATE:
            self._move(operation, LeaseState.ACTIVE, "every replica is READY", holder=command.batch)
        else:
            self._move(operation, LeaseState.SLEEPING, "every replica is SLEEPING", holder=None)
        self._operations.finish(operation, operation.token)

    def block(self, operation: Operation, why: str, cause: BaseException | None = None) -> None:
        """The command was sent and its result is unknown or bad: fence the lease for good."""
        self._require_calling(operation)
        self._move(operation, LeaseState.BLOCKED, why, holder=operation.command.batch)
        lease = self._leases[operation.command.role]
        error = _blocked_error(lease, f"{operation.command} is not confirmed")
        error.__cause__ = cause
        self._operations.fail(operation, error)

    def is_resident(self, role: RoleName) -> bool:
        return not self._conflicts[role]

    # --- reading ------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return everything that is known as JSON values; times are ages in seconds."""
        now = self._clock()
        failure = self._book.failure
        return {
            "failure": failure and {"batch": failure.batch, "reason": failure.reason},
            "leases": {
                role: {
                    "state": lease.state.value,
                    "reason": lease.reason,
                    "token": lease.token,
                    "batch": lease.batch,
                    "age_s": now - lease.entered_s,
                    "resident": self.is_resident(role),
                    "conflicts": sorted(self._conflicts[role]),
                }
                for role, lease in self._leases.items()
            },
            "batches": [
                {
                    "batch": batch.number,
                    "state": batch.state.value,
                    "reason": batch.reason,
                    "age_s": now - batch.entered_s,
                }
                for batch in self._book
            ],
            "running": [
                {
                    "operation": operation.id,
                    "method": operation.command.method.value,
                    "role": operation.command.role,
                    "batch": operation.command.batch,
                    "state": operation.state.value,
                }
                for operation in self._operations.running()
            ],
        }

    # --- the guards ---------------------------------------------------------------------

    def _grant(self, operation: Operation) -> None:
        """Move an activate on: granted, or already held, or a refusal raised."""
        command = operation.command
        lease = self._lease(command.role)
        self._require_open(command)
        if lease.state is LeaseState.BLOCKED:
            raise _blocked_error(lease, f"can't {command}")
        if lease.state is LeaseState.ACTIVE and (
            self.is_resident(command.role) or lease.batch == command.batch
        ):
            self._operations.finish(operation, lease.token)
            return
        if lease.state is not LeaseState.SLEEPING:
            raise LeaseError(f"can't {command}: {lease}; it must be SLEEPING. {self._in_flight(lease)}")
        rivals = [
            rival
            for role in sorted(self._conflicts[command.role])
            if (rival := self._leases[role]).state is not LeaseState.SLEEPING
        ]
        if rivals:
            raise _lease_error(
                rivals,
                f"can't {command}, which shares devices with others: {_join(rivals)}; they must be SLEEPING",
            )
        self._send(operation, LeaseState.ONLOADING, f"granted by operation {operation.id!r}")

    def _recall(self, operation: Operation) -> Operation | None:
        """Move a deactivate on, or return the operation that it must wait for."""
        command = operation.command
        lease = self._lease(command.role)
        if self.is_resident(command.role) or lease.state is LeaseState.SLEEPING:
            self._operations.finish(operation, lease.token)
            return None
        if lease.state is LeaseState.BLOCKED:
            raise _blocked_error(lease, f"can't {command}")
        if lease.batch != command.batch:
            # A late command of an earlier batch must not pull the devices from under this one.
            raise LeaseError(f"can't {command}: {lease}; only the batch that holds a lease gives it back")
        if lease.state in _IN_TRANSIT:
            return self._in_transit[command.role]
        self._send(operation, LeaseState.DRAINING, f"given back by operation {operation.id!r}")
        return None

    def _require_open(self, command: Command) -> None:
        if command.role in self._training:
            self._book.require_healthy(command.batch)
            if self._book.is_pending(command.batch):
                raise LeaseError(
                    f"can't {command}: {self._book.describe(command.batch)}; the trainer's turn is before its"
                    " batch begins, or after its commit"
                )
            return
        try:
            self._book.require_pending(command.batch)
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
        command = operation.command
        token = self._next_token()
        self._leases[command.role].enter_state(state, reason=reason, token=token, batch=command.batch)
        self._operations.call(operation, token)
        self._in_transit[command.role] = operation

    def _move(self, operation: Operation, state: LeaseState, reason: str, *, holder: BatchId | None) -> None:
        role = operation.command.role
        self._leases[role].enter_state(state, reason=reason, token=operation.token, batch=holder)
        del self._in_transit[role]

    def _next_token(self) -> FencingToken:
        self._last_token += 1
        return FencingToken(self._last_token)

    def _in_flight(self, lease: Lease) -> str:
        operation = self._in_transit.get(lease.role)
        if operation is None:
            return f"Batch {lease.batch} has to deactivate it"
        return f"Operation {operation.id!r} is under way; repeat that id to join it"


def _join(leases: list[Lease]) -> str:
    return ", ".join(str(lease) for lease in leases)


def _lease_error(leases: list[Lease], message: str) -> LeaseError:
    fenced = any(lease.state is LeaseState.BLOCKED for lease in leases)
    return (LeaseBlockedError if fenced else LeaseError)(message)


def _blocked_error(lease: Lease, asked: str) -> LeaseBlockedError:
    return LeaseBlockedError(
        f"{asked}: {lease}. Its engines may still hold their devices, so neither it nor a role that "
        "shares devices with it is granted. End the job to free them"
    )


def _check_setup(
    conflicts: Mapping[RoleName, Set[RoleName]], opening: Mapping[RoleName, OpeningLease]
) -> None:
    if conflicts.keys() != opening.keys():
        raise LeaseError(
            f"conflicts name {sorted(conflicts)}, opening leases {sorted(opening)}; "
            "they must name the same roles"
        )
    for role, others in conflicts.items():
        for other in others:
            if other == role or role not in conflicts.get(other, ()):
                raise LeaseError(
                    f"{role!r} conflicts with {other!r} but not the other way round; "
                    "a conflict joins two different roles"
                )
        starts = SHARED_STARTS if others else RESIDENT_STARTS
        if opening[role].state not in starts:
            kind = "shares devices" if others else "shares no device"
            raise LeaseError(
                f"{role!r} {kind} and can't start {opening[role].state}; allowed: {', '.join(starts)}"
            )
