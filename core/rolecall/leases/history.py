"""What a journal tells: the ledger's state as plain values, folded from its records.

Pure. The ledger starts from a history and can tell its own at any time; at every moment its own equals
the one that its journal tells, and a test holds the two together. So a new kind of record needs a place
in :meth:`History.take` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import cattrs
from attrs import asdict, define, field

from rolecall.leases.batch_state import BatchState, PastBatch
from rolecall.leases.journal import Record
from rolecall.leases.lease_state import LeaseState, PastLease
from rolecall.leases.operation import Method, OperationState, PastOperation

JOB_ENDED = "the job's process ended before the commit"


class Kind(StrEnum):
    """What a record tells.

    STARTED: run, leases (role → state, reason, token); a job begins, or is resumed by a new process.
    BEGUN: batch, attempt.
    COMMITTED: batch, reason.
    FAILED: batch, reason; the first failure of the run.
    SENT: operation, method, batch, attempt, role, token; and of the lease: state, reason. The command
        leaves next.
    ENDED: operation, method, batch, attempt, role, token, error; it was never sent.
    ANSWERED: operation, error; and of the lease: state, reason, holder (a batch or null).
    ASKED: role, token; it is asked where it stands, or to vacate its devices.
    SETTLED: role; where it stands after a restart: state, reason, token, holder; and the fate of what it was
        doing, if anything: operation, error.
    RECONCILED: operation, method, batch, attempt, role, token, reason, record, error; and state, null if the
        lease was not BLOCKED.
    RESUMED: operation, batch.
    SNAPSHOT: a whole history, in the place of all records before.

    An ``error`` is kind and message, or null.
    """

    STARTED = "started"
    BEGUN = "begun"
    COMMITTED = "committed"
    FAILED = "failed"
    SENT = "sent"
    ENDED = "ended"
    ANSWERED = "answered"
    ASKED = "asked"
    SETTLED = "settled"
    RECONCILED = "reconciled"
    RESUMED = "resumed"
    SNAPSHOT = "snapshot"


@define(kw_only=True)
class PastFailure:
    """The first failure of the run."""

    batch: int
    reason: str


@define(kw_only=True)
class History:
    """Everything that a ledger has to know.

    run: the job process that wrote last; None if nothing was written.
    batches: the committed ones in the order of their commits.
    operations: the ended ones in the order of their ends.
    highest_forgotten: of the committed batches that are no longer remembered; -1: none.
    """

    run: str | None = None
    last_token: int = 0
    failure: PastFailure | None = None
    highest_forgotten: int = -1
    batches: dict[int, PastBatch] = field(factory=dict)
    leases: dict[str, PastLease] = field(factory=dict)
    operations: dict[str, PastOperation] = field(factory=dict)

    @property
    def next_batch(self) -> int:
        """The lowest batch that is not committed."""
        number = self.highest_forgotten + 1
        while (batch := self.batches.get(number)) is not None and batch.state is BatchState.COMMITTED:
            number += 1
        return number

    @property
    def unfinished(self) -> bool:
        """Whether a batch has begun that is not committed."""
        return any(batch.state is not BatchState.COMMITTED for batch in self.batches.values())

    def snapshot(self) -> Record:
        """Return the record that tells all of this."""
        return {"kind": Kind.SNAPSHOT.value, **asdict(self)}

    def take(self, record: Record) -> None:
        """Take over what a record tells."""
        match Kind(record["kind"]):
            case Kind.SNAPSHOT:
                self._replace(cattrs.structure(record, History))
            case Kind.STARTED:
                self.end_run()
                self.run = record["run"]
                self.leases = cattrs.structure(record["leases"], dict[str, PastLease])
                for lease in self.leases.values():
                    self._count(lease.token)
            case Kind.BEGUN:
                again = f"begun again, attempt {record['attempt']}"
                self.batches[record["batch"]] = PastBatch(
                    state=BatchState.PENDING,
                    reason="begun" if record["attempt"] == 1 else again,
                    attempt=record["attempt"],
                )
            case Kind.COMMITTED:
                batch = self.batches.pop(record["batch"])
                batch.state, batch.reason = BatchState.COMMITTED, record["reason"]
                self.batches[record["batch"]] = batch
            case Kind.FAILED:
                self._fail(record["batch"], record["reason"])
            case Kind.SENT:
                self._count(record["token"])
                self._note_operation(record, OperationState.CALLING)
                self._note_lease(record, token=record["token"], holder=record["batch"])
            case Kind.ENDED:
                self._note_operation(record, OperationState.FINISHED)
                self._end(record)
            case Kind.ANSWERED:
                operation = self.operations[record["operation"]]
                self._note_lease(
                    {**record, "role": operation.role}, token=operation.token, holder=record["holder"]
                )
                self._end(record)
            case Kind.ASKED:
                self._count(record["token"])
            case Kind.SETTLED:
                self._note_lease(record, token=record["token"], holder=record["holder"])
                if record["operation"] is not None:
                    self.operations[record["operation"]].token = record["token"]
                    self._end(record)
            case Kind.RECONCILED:
                self._note_operation(record, OperationState.FINISHED)
                self.operations[record["operation"]].record = record["record"]
                self._end(record)
                if record["state"] is not None:
                    holder = self.leases[record["role"]].batch if record["error"] is not None else None
                    self._note_lease(record, token=record["token"], holder=holder)
            case Kind.RESUMED:
                self.failure = None
                fields = {"method": Method.RESUME, "batch": None, "attempt": None, "role": "", "token": None}
                self._note_operation({**record, **fields}, OperationState.FINISHED)
                self.operations[record["operation"]].resumed_at = record["batch"]

    def end_run(self) -> None:
        """Have nothing of the former process of the job go on: a new one begins."""
        for batch in self.batches.values():
            if batch.state is BatchState.PENDING:
                batch.state, batch.reason = BatchState.FAILED, JOB_ENDED
        self.end_calls()

    def end_calls(self) -> None:
        """Fail the operations whose role's answer is outstanding."""
        for name, operation in list(self.operations.items()):
            if operation.state is OperationState.CALLING:
                message = f"{operation.method} {operation.role} (operation {name!r}): the job's process ended"
                self._end({"operation": name, "error": ("LeaseError", message)})

    def _replace(self, other: History) -> None:
        for name in ("run", "last_token", "failure", "highest_forgotten", "batches", "leases", "operations"):
            setattr(self, name, getattr(other, name))

    def _fail(self, number: int, reason: str) -> None:
        self.failure = PastFailure(batch=number, reason=reason)
        failed = self.batches.setdefault(number, PastBatch(state=BatchState.PENDING, reason="", attempt=1))
        for batch in self.batches.values():
            if batch.state is BatchState.PENDING:
                own = batch is failed
                batch.state = BatchState.FAILED
                batch.reason = reason if own else f"batch {number} failed: {reason}"

    def _note_lease(self, record: Record, *, token: int | None, holder: int | None) -> None:
        self.leases[record["role"]] = PastLease(
            state=LeaseState(record["state"]), reason=record["reason"], token=token, batch=holder
        )

    def _note_operation(self, record: Record, state: OperationState) -> None:
        self.operations[record["operation"]] = PastOperation(
            method=Method(record["method"]),
            batch=record["batch"],
            attempt=record["attempt"],
            role=record["role"],
            state=state,
            token=record["token"],
        )

    def _end(self, record: Record) -> None:
        operation = self.operations.pop(record["operation"])
        error = record["error"]
        operation.state = OperationState.FINISHED if error is None else OperationState.FAILED
        operation.error = None if error is None else (error[0], error[1])
        self.operations[record["operation"]] = operation

    def _count(self, token: int | None) -> None:
        self.last_token = max(self.last_token, token or 0)


def replay(records: Iterable[Record]) -> History:
    """Return what the records of a journal tell."""
    history = History()
    for record in records:
        history.take(record)
    return history
