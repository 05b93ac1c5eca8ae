"""Operation ids: a command that arrives twice has one fate.

An *operation* is one activate, deactivate, reconcile or resume under a caller-chosen id. A repeat of the
id joins the operation, whether it runs, has finished or has failed; the id can't be used for anything
else, in this batch or another. A refused operation counts as failed: a delayed copy of it must
not be carried out later, when nobody waits for it any more.

Ended operations are remembered up to a bound, oldest forgotten first. A copy that arrives even
later is a new operation, and is stopped by the ledger's guards: its batch has ended or does not
hold the lease.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from attrs import define, field, frozen

from rolecall.errors import (
    BatchFailedError,
    LeaseBlockedError,
    LeaseError,
    OperationReuseError,
    RolecallError,
    TransitionError,
)
from rolecall.events.event import Emit, discard
from rolecall.ids import BatchId, FencingToken, OperationId, RoleName
from rolecall.leases.reconciliation import Claim, Reconciliation
from rolecall.transitions import require_transition

RETIRED_OPERATIONS = 8_192
"""Ended operations that are remembered."""


class Method(StrEnum):
    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"
    RECONCILE = "reconcile"
    RESUME = "resume"


class OperationState(StrEnum):
    """WAITING has sent nothing to the role yet; CALLING waits for the role's answer."""

    WAITING = "WAITING"
    CALLING = "CALLING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"


TRANSITIONS: Mapping[OperationState, Mapping[OperationState, str]] = {
    OperationState.WAITING: {
        OperationState.CALLING: "the role gets its command; a lease that is granted or given back has moved",
        OperationState.FINISHED: "nothing to send: the role is in the wanted state, or the run may go on",
        OperationState.FAILED: "refused",
    },
    OperationState.CALLING: {
        OperationState.FINISHED: "confirmed",
        OperationState.FAILED: "not confirmed; the lease is BLOCKED, or stays what it was before a reconcile",
    },
    OperationState.FINISHED: {},
    OperationState.FAILED: {},
}

STARTS: Mapping[OperationState, str] = {OperationState.WAITING: "asked for"}

_ENDED = frozenset({OperationState.FINISHED, OperationState.FAILED})


@frozen(kw_only=True)
class Command:
    """What an operation id stands for.

    batch: None for a reconcile, which is nobody's in particular, and for a resume.
    role: empty for a resume, which is the whole run's.
    attempt: which attempt of the batch asks; None: whichever is the latest.
    claim: of a reconcile; it does not distinguish commands, as what counts is what is found.
    """

    batch: BatchId | None
    method: Method
    role: RoleName
    attempt: int | None = None
    claim: Claim | None = field(default=None, eq=False)

    @property
    def holder(self) -> BatchId:
        """The batch that the command is for; not asked of a reconcile."""
        assert self.batch is not None, f"{self} is for no batch"
        return self.batch

    def __str__(self) -> str:
        what = f"{self.method} {self.role}".rstrip()
        return what if self.batch is None else f"{what} for batch {self.batch}"


@define(kw_only=True)
class PastOperation:
    """An operation that was sent, or that has ended, by the journal. For its fields see :class:`Operation`.

    error: kind and message.
    """

    method: Method
    batch: int | None
    attempt: int | None
    role: str
    state: OperationState
    token: int | None = None
    error: tuple[str, str] | None = None
    record: dict[str, Any] | None = None
    resumed_at: int | None = None


class Operation:
    """One command and its fate. Changed only by its :class:`OperationLog`.

    Attributes:
        token: of the command to the role; of the lease, if it got none.
        record: what a finished reconcile found.
        resumed_at: the batch with which a finished resume has the run go on.
    """

    def __init__(
        self,
        operation_id: OperationId,
        command: Command,
        *,
        emit: Emit = discard,
        past: PastOperation | None = None,
    ) -> None:
        self.id = operation_id
        self.command = command
        self._emit = emit
        self.record: Reconciliation | None = None
        self.resumed_at: BatchId | None = None
        if past is None:
            self._become(None, OperationState.WAITING, "asked for", None, None)
            return
        self.state = past.state
        self.token = None if past.token is None else FencingToken(past.token)
        self.error = None if past.error is None else _restored(*past.error)
        self.record = None if past.record is None else Reconciliation.from_json(past.record)
        self.resumed_at = None if past.resumed_at is None else BatchId(past.resumed_at)

    def __str__(self) -> str:
        return f"operation {self.id!r} ({self.command}, token {self.token})"

    @property
    def ended(self) -> bool:
        return self.state in _ENDED

    def result(self) -> FencingToken | None:
        """Return the token of a finished operation, or raise the error of a failed one."""
        if self.error is not None:
            # One error object serves every caller: without this each raise would lengthen it.
            raise self.error.with_traceback(None)
        return self.token

    def enter_state(
        self,
        wanted: OperationState,
        *,
        reason: str,
        token: FencingToken | None = None,
        error: RolecallError | None = None,
    ) -> None:
        """Change the state and emit ``operation.state``.

        Raises:
            TransitionError: the table does not allow the change; nothing has changed.
        """
        require_transition(f"operation {self.id!r} ({self.command})", TRANSITIONS, self.state, wanted)
        self._become(self.state, wanted, reason, token, error)

    def _become(
        self,
        before: OperationState | None,
        after: OperationState,
        reason: str,
        token: FencingToken | None,
        error: RolecallError | None,
    ) -> None:
        self.state = after
        self.token = token
        self.error = error
        # "from" is a keyword, so the fields are given as a mapping; plain text, as they become JSON.
        change = {"from": before and before.value, "to": after.value}
        self._emit(
            "operation.state",
            operation=self.id,
            method=self.command.method.value,
            role=self.command.role,
            batch=self.command.batch,
            **change,
            reason=reason,
            token=token,
        )


class OperationLog:
    """All running operations and the most recent ended ones, by id.

    ``past`` are those of a former coordinator, the ended ones in the order of their ends; there are no
    events of them.
    """

    def __init__(
        self,
        retired_limit: int = RETIRED_OPERATIONS,
        *,
        emit: Emit = discard,
        past: Mapping[str, PastOperation] | None = None,
    ) -> None:
        self._limit = retired_limit
        self._emit = emit
        self._operations: dict[OperationId, Operation] = {}
        self._retired: deque[OperationId] = deque()
        for name, was in (past or {}).items():
            operation = Operation(OperationId(name), _command(was), emit=emit, past=was)
            self._operations[operation.id] = operation
            if operation.ended:
                self._retire(operation)

    def open(self, operation_id: OperationId, command: Command) -> Operation:
        """Return the operation of this id, making it if the id is new.

        Raises:
            OperationReuseError: the id stands for another command.
        """
        operation = self._operations.get(operation_id)
        if operation is None:
            operation = Operation(operation_id, command, emit=self._emit)
            self._operations[operation_id] = operation
        elif operation.command != command:
            raise OperationReuseError(
                f"operation id {operation_id!r} was asked for: {command}; "
                f"it already stands for: {operation.command} ({operation.state}). "
                "Choose a fresh id for every operation; repeat an id only to repeat its call"
            )
        return operation

    def call(self, operation: Operation, token: FencingToken | None) -> None:
        """The role is about to be commanded under ``token``."""
        operation.enter_state(OperationState.CALLING, reason="the role gets its command", token=token)

    def finish(self, operation: Operation, token: FencingToken | None, *, reason: str) -> None:
        operation.enter_state(OperationState.FINISHED, reason=reason, token=token)
        self._retire(operation)

    def fail(self, operation: Operation, error: RolecallError) -> None:
        operation.enter_state(OperationState.FAILED, reason=str(error), token=operation.token, error=error)
        self._retire(operation)

    def running(self) -> Iterator[Operation]:
        return (operation for operation in self._operations.values() if not operation.ended)

    def past(self) -> dict[str, PastOperation]:
        """Return what a journal tells of them: all but those that a repeat may begin anew."""
        sent = [o for o in self.running() if o.state is OperationState.CALLING]
        ended = [self._operations[name] for name in self._retired]
        return {o.id: _past(o) for o in (*sent, *ended) if o.ended or o.command.batch is not None}

    def _retire(self, operation: Operation) -> None:
        self._retired.append(operation.id)
        if len(self._retired) > self._limit:
            del self._operations[self._retired.popleft()]


_ENDING_ERRORS: Mapping[str, type[RolecallError]] = {
    error.__name__: error for error in (BatchFailedError, LeaseBlockedError, LeaseError, TransitionError)
}
"""What an operation ends with. Another kind comes back from the journal as a ``LeaseError``."""


def identity(operation: Operation) -> dict[str, Any]:
    """Return the fields of a record that say which operation it is about."""
    command = operation.command
    return {
        "operation": operation.id,
        "method": command.method,
        "batch": command.batch,
        "attempt": command.attempt,
        "role": command.role,
    }


def told(error: RolecallError | None) -> tuple[str, str] | None:
    """Return an operation's error as the journal has it: kind and message."""
    return None if error is None else (type(error).__name__, str(error))


def _restored(kind: str, message: str) -> RolecallError:
    return _ENDING_ERRORS.get(kind, LeaseError)(message)


def _command(past: PastOperation) -> Command:
    batch = None if past.batch is None else BatchId(past.batch)
    return Command(batch=batch, attempt=past.attempt, method=past.method, role=RoleName(past.role))


def _past(operation: Operation) -> PastOperation:
    command = operation.command
    return PastOperation(
        method=command.method,
        batch=command.batch,
        attempt=command.attempt,
        role=command.role,
        state=operation.state,
        token=operation.token,
        error=told(operation.error),
        record=None if operation.record is None else operation.record.to_json(),
        resumed_at=operation.resumed_at,
    )
