"""Operation ids: a command that arrives twice has one fate.

An *operation* is one activate or deactivate under a caller-chosen id. A repeat of the id joins
the operation, whether it runs, has finished or has failed; the id can't be used for anything
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

from attrs import frozen

from rolecall.errors import OperationReuseError, RolecallError
from rolecall.ids import BatchId, FencingToken, OperationId, RoleName
from rolecall.leases.transitions import require_transition

RETIRED_OPERATIONS = 8_192
"""Ended operations that are remembered."""


class Method(StrEnum):
    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"


class OperationState(StrEnum):
    """WAITING has sent nothing to the role yet; CALLING waits for the role's answer."""

    WAITING = "WAITING"
    CALLING = "CALLING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"


TRANSITIONS: Mapping[OperationState, Mapping[OperationState, str]] = {
    OperationState.WAITING: {
        OperationState.CALLING: "the lease moved and the role gets its command",
        OperationState.FINISHED: "nothing to do, the role is in the wanted state",
        OperationState.FAILED: "refused",
    },
    OperationState.CALLING: {
        OperationState.FINISHED: "confirmed",
        OperationState.FAILED: "not confirmed, the lease is BLOCKED",
    },
    OperationState.FINISHED: {},
    OperationState.FAILED: {},
}

STARTS: Mapping[OperationState, str] = {OperationState.WAITING: "asked for"}

_ENDED = frozenset({OperationState.FINISHED, OperationState.FAILED})


@frozen(kw_only=True)
class Command:
    """What an operation id stands for."""

    batch: BatchId
    method: Method
    role: RoleName

    def __str__(self) -> str:
        return f"{self.method} {self.role} for batch {self.batch}"


class Operation:
    """One command and its fate. Changed only by its :class:`OperationLog`."""

    def __init__(self, operation_id: OperationId, command: Command) -> None:
        self.id = operation_id
        self.command = command
        self.state = OperationState.WAITING
        self.token: FencingToken | None = None
        self.error: RolecallError | None = None

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
        token: FencingToken | None = None,
        error: RolecallError | None = None,
    ) -> None:
        require_transition(f"operation {self.id!r} ({self.command})", TRANSITIONS, self.state, wanted)
        self.state = wanted
        self.token = token
        self.error = error


class OperationLog:
    """All running operations and the most recent ended ones, by id."""

    def __init__(self, retired_limit: int = RETIRED_OPERATIONS) -> None:
        self._limit = retired_limit
        self._operations: dict[OperationId, Operation] = {}
        self._retired: deque[OperationId] = deque()

    def open(self, operation_id: OperationId, command: Command) -> Operation:
        """Return the operation of this id, making it if the id is new.

        Raises:
            OperationReuseError: the id stands for another command.
        """
        operation = self._operations.get(operation_id)
        if operation is None:
            operation = self._operations[operation_id] = Operation(operation_id, command)
        elif operation.command != command:
            raise OperationReuseError(
                f"operation id {operation_id!r} was asked for: {command}; "
                f"it already stands for: {operation.command} ({operation.state}). "
                "Choose a fresh id for every operation; repeat an id only to repeat its call"
            )
        return operation

    def call(self, operation: Operation, token: FencingToken) -> None:
        """The role is about to be commanded under ``token``."""
        operation.enter_state(OperationState.CALLING, token=token)

    def finish(self, operation: Operation, token: FencingToken | None) -> None:
        operation.enter_state(OperationState.FINISHED, token=token)
        self._retire(operation)

    def fail(self, operation: Operation, error: RolecallError) -> None:
        operation.enter_state(OperationState.FAILED, token=operation.token, error=error)
        self._retire(operation)

    def running(self) -> Iterator[Operation]:
        return (operation for operation in self._operations.values() if not operation.ended)

    def _retire(self, operation: Operation) -> None:
        self._retired.append(operation.id)
        if len(self._retired) > self._limit:
            del self._operations[self._retired.popleft()]
