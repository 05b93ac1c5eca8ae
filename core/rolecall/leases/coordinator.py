"""The lifecycle coordinator: drives the ledger, talks to the roles, lets callers wait.

All decisions are the ledger's; this module adds time. It sends each command once, under one
deadline, and reports to the ledger what came back. An answer that comes after the deadline is
logged and changes nothing. Every operation is a task of its own, so a caller that gives up does
not end it, and any number of callers can join it. Waiters end by commit, by the run's failure or
by their own timeout.

One that finds the journal of its own run takes over from a coordinator that died: it has every role that
shares devices account for itself, and whatever depends on the leases waits for that.

Used from one event loop: in a Ray actor (``coordinator_actor``), in tests and in simulations. It
holds no samples, rewards or partitions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Set
from functools import partial
from typing import Any

from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult
from rolecall.errors import BatchFailedError, CommitTimeoutError, JournalError, LeaseError
from rolecall.events.event import Emit, discard
from rolecall.ids import BatchId, EngineId, FencingToken, OperationId, RoleName
from rolecall.leases.confirmation import doubt, fence_doubt, standing, vacancy_doubt
from rolecall.leases.journal import Journal
from rolecall.leases.lease_state import OpeningLease
from rolecall.leases.ledger import Ledger
from rolecall.leases.operation import Command, Method, Operation, OperationState
from rolecall.leases.port import RoleLifecycle
from rolecall.leases.reconciliation import Claim, Reconciliation
from rolecall.leases.trainer import TrainersWord

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 180.0

_INNER_SHARE = 0.95
"""Share of the deadline that the role gets: its own account of a failure must arrive in time."""

_EXPECTED = {Method.ACTIVATE: ReplicaState.READY, Method.DEACTIVATE: ReplicaState.SLEEPING}


class LeaseCoordinator:
    """Implements :class:`~rolecall.leases.port.CoordinatorPort` in this process.

    Args:
        roles: the inference roles. Resident ones are never put to sleep or woken and may be absent; their
            fences can't be lifted then.
        conflicts: role → roles that share a bundle with it; all roles of the job as keys.
        opening: role → the state its lease starts in, see ``confirmation.opening_lease``.
        training: those of the keys that are the trainer's; their own word counts, see ``trainer``.
        timeout_s: deadline of one command to a role, answer included.
        emit: takes the ledger's events.
        clock: seconds, monotonic; deadlines go by the event loop's own clock.
        journal, run: see :class:`Ledger`.

    Raises:
        JournalError: as the ledger does.
    """

    def __init__(
        self,
        roles: Mapping[RoleName, RoleLifecycle],
        *,
        conflicts: Mapping[RoleName, Set[RoleName]],
        opening: Mapping[RoleName, OpeningLease],
        training: Set[RoleName] = frozenset(),
        timeout_s: float = DEFAULT_TIMEOUT_S,
        emit: Emit = discard,
        clock: Callable[[], float] = time.monotonic,
        journal: Journal | None = None,
        run: str = "",
    ) -> None:
        self._ledger = Ledger(
            conflicts=conflicts,
            opening=opening,
            training=training,
            clock=clock,
            emit=emit,
            journal=journal,
            run=run,
        )
        self._roles = {**roles, **{role: TrainersWord(role) for role in training}}
        self._timeout_s = timeout_s
        self._tasks: dict[OperationId, asyncio.Task[None]] = {}
        self._unanswered: set[asyncio.Task[LifecycleResult]] = set()
        self._waiting: dict[asyncio.Future[None], BatchId] = {}
        self._accounting: asyncio.Task[None] | None = None
        uncommanded = {role for role, others in conflicts.items() if others} - self._roles.keys()
        if uncommanded:
            raise LeaseError(f"no lifecycle was given for {sorted(uncommanded)}, which share devices")

    # --- batches ------------------------------------------------------------------------

    async def begin_batch(self, batch: BatchId) -> int:
        """Open a batch and return which attempt it is; see the port."""
        return self._ledger.begin_batch(batch)

    async def commit_batch(self, batch: BatchId, *, acknowledged: bool, attempt: int | None = None) -> None:
        """Commit, or say what speaks against it; see :meth:`Ledger.commit_batch`."""
        await self._accounted()
        self._ledger.commit_batch(batch, acknowledged=acknowledged, attempt=attempt)
        self._tell_waiters()

    async def fail_batch(self, batch: BatchId, reason: str, *, attempt: int | None = None) -> None:
        """Fail the batch and the run; the first reason wins and wakes all waiters."""
        self._ledger.fail_batch(batch, reason, attempt)
        self._tell_waiters()

    async def resume(self, operation: OperationId) -> BatchId:
        """Let a failed run go on; returns the lowest batch that is not committed. Repeats join.

        Raises:
            LeaseError: a role that shares devices is not SLEEPING; names each, and what to do.
            OperationReuseError: the id stands for another operation.
        """
        command = Command(batch=None, method=Method.RESUME, role=RoleName(""))
        number = (await self._fate(operation, command)).resumed_at
        assert number is not None, f"{command} finished without a batch"
        return number

    async def wait_committed(self, batch: BatchId, timeout_s: float) -> None:
        """Return once the batch is committed; it need not have begun yet.

        ``timeout_s`` of 0 or less looks once. Cancelling ends the waiting and nothing else.

        Raises:
            BatchFailedError: it, or the run, failed; the message is the first failure.
            CommitTimeoutError: not committed after ``timeout_s``, or too old to tell.
        """
        self._begin_accounting()
        if self._ledger.is_committed(batch):
            return
        told = asyncio.get_running_loop().create_future()
        self._waiting[told] = batch
        try:
            async with asyncio.timeout(timeout_s):
                await told
        except TimeoutError:
            if self._ledger.is_committed(batch):  # committed in the very moment the wait ended
                return
            raise CommitTimeoutError(
                f"batch {batch} was not committed within {timeout_s:g} s: "
                f"{self._ledger.describe_batch(batch)}"
            ) from None
        finally:
            del self._waiting[told]

    # --- leases -------------------------------------------------------------------------

    async def activate(
        self, batch: BatchId, role: RoleName, operation: OperationId, *, attempt: int | None = None
    ) -> FencingToken:
        """Lease the role's devices and wake it; returns when it is ACTIVE.

        A repeat of the operation id joins it. Cancelling the caller does not cancel the
        operation. A resident role, and one that the batch already holds, return at once.

        Raises:
            LeaseError: this role or a conflicting one is not SLEEPING, or the batch is not open.
            LeaseBlockedError: a fence stands in the way, or waking was not confirmed.
            BatchFailedError: the run has failed; only deactivate is allowed.
            OperationReuseError: the id stands for another operation.
        """
        command = Command(batch=batch, attempt=attempt, method=Method.ACTIVATE, role=role)
        token = (await self._fate(operation, command)).token
        assert token is not None, f"{command} finished without a token"
        return token

    async def deactivate(
        self, batch: BatchId, role: RoleName, operation: OperationId, *, attempt: int | None = None
    ) -> None:
        """Put the role to sleep; returns when that is confirmed. Allowed after a failure.

        Waits for the role's onload, if one is under way. Sleeping and resident roles return at
        once. Repeats and cancellation as in :meth:`activate`.

        Raises:
            LeaseBlockedError: the role is fenced, or its release was not confirmed.
            LeaseError: another batch holds the lease.
            OperationReuseError: the id stands for another operation.
        """
        command = Command(batch=batch, attempt=attempt, method=Method.DEACTIVATE, role=role)
        await self._fate(operation, command)

    async def prepare(self, batch: BatchId, role: RoleName) -> None:
        """Have a role that sleeps do ahead what its next wake for the batch needs no device for.

        Moves no lease and is no operation: a repeat does again what is cheap to repeat. A resident role has
        nothing to prepare, and one that is awake finds nothing to do.
        """
        logger.debug("%s is prepared for batch %s", role, batch)
        if (lifecycle := self._roles.get(role)) is not None:
            async with asyncio.timeout(self._timeout_s):
                await lifecycle.prepare(self._timeout_s * _INNER_SHARE)

    async def reconcile(self, role: RoleName, operation: OperationId, *, claim: Claim) -> Reconciliation:
        """Lift a role's fence if what the operator claims is found true; returns the audit record.

        Repeats and cancellation as in :meth:`activate`.

        Raises:
            LeaseBlockedError: it is not proved; says replica by replica what is missing. The fence stays.
            LeaseError: another reconciliation of the role is under way, or there is no such role.
            OperationReuseError: the id stands for another operation.
        """
        command = Command(batch=None, method=Method.RECONCILE, role=role, claim=claim)
        record = (await self._fate(operation, command)).record
        assert record is not None, f"{command} finished without a record"
        return record

    async def status(self) -> Mapping[str, Any]:
        """Leases, batches, running operations and the run's failure as JSON values."""
        self._begin_accounting()
        return {**self._ledger.status(), "timeout_s": self._timeout_s}

    # --- after a restart ----------------------------------------------------------------

    def _begin_accounting(self) -> None:
        """Ask every role that has not yet said where it stands, unless that is under way."""
        if self._ledger.unaccounted and (self._accounting is None or self._accounting.done()):
            self._accounting = asyncio.create_task(self._account_all(), name="accounting after a restart")

    async def _accounted(self) -> None:
        """Return when every role has said where it stands, or failed to.

        Raises:
            JournalError: they can't be asked yet.
        """
        self._begin_accounting()
        if self._accounting is not None:
            await asyncio.shield(self._accounting)

    async def _account_all(self) -> None:
        await asyncio.gather(*(self._account(role) for role in self._ledger.unaccounted))

    async def _account(self, role: RoleName) -> None:
        token = self._ledger.ask(role)
        stands, why = None, ""
        try:
            call = self._roles[role].account(token, self._timeout_s * _INNER_SHARE)
            stands, why = standing(await self._answer(f"{role} (token {token})", "account", call), role=role)
        except _UnprovedError as error:
            why = str(error)
        self._ledger.settle(role, token, stands, why)

    # --- operations ---------------------------------------------------------------------

    async def _fate(self, operation_id: OperationId, command: Command) -> Operation:
        """Start or join the operation, wait for its end and return it, or raise its error."""
        operation = self._ledger.open(operation_id, command)
        if not operation.ended and operation_id not in self._tasks:
            task = asyncio.create_task(self._carry_out(operation), name=f"{command} ({operation_id})")
            self._tasks[operation_id] = task
            task.add_done_callback(partial(self._forget_task, operation))
        if task := self._tasks.get(operation_id):
            await asyncio.shield(task)
        operation.result()
        return operation

    async def _carry_out(self, operation: Operation) -> None:
        await self._accounted()
        while before := self._ledger.start(operation):
            await self._tasks[before.id]
        if operation.state is not OperationState.CALLING:
            return
        if operation.command.method is Method.RECONCILE:
            await self._reconcile(operation)
            return
        try:
            await self._command(operation)
        except _UnprovedError as error:
            self._ledger.block(operation, str(error), error.__cause__)
        else:
            self._ledger.confirm(operation)

    async def _command(self, operation: Operation) -> None:
        """Send the command once.

        Raises:
            _UnprovedError: its success is not proved.
        """
        command, token = operation.command, operation.token
        assert token is not None, f"{command} is sent without a token"
        lifecycle, inner_timeout_s = self._roles[command.role], self._timeout_s * _INNER_SHARE
        if command.method is Method.ACTIVATE:
            work = lifecycle.onload(token, inner_timeout_s)
        else:
            work = lifecycle.offload(token, inner_timeout_s)
        answer = await self._answer(operation, command.method.value, work)
        _require(doubt(answer, role=command.role, expected=_EXPECTED[command.method]))

    async def _reconcile(self, operation: Operation) -> None:
        try:
            evidence = await self._look(operation)
        except _UnprovedError as error:
            self._ledger.keep_fence(operation, str(error), error.__cause__)
        else:
            self._ledger.lift(operation, evidence)

    async def _look(self, operation: Operation) -> dict[EngineId, str]:
        """Have the role look for what is claimed; return its evidence, replica by replica.

        Raises:
            _UnprovedError: something is missing.
        """
        role, token, claim = operation.command.role, operation.token, operation.command.claim
        assert claim is not None, f"{operation.command} has no claim"
        lifecycle, inner_timeout_s = self._roles.get(role), self._timeout_s * _INNER_SHARE
        if lifecycle is None:
            raise _UnprovedError("nobody can be asked about its engines")
        if token is not None and not self._ledger.is_resident(role):
            work = lifecycle.vacate(token, inner_timeout_s, proof=claim.proof)
            answer = await self._answer(operation, "vacating", work)
            _require(vacancy_doubt(answer, role=role))
            return _evidence(answer)
        work = lifecycle.lift_fences(inner_timeout_s, proof=claim.proof)
        lifted = await self._answer(operation, "lifting its fences", work)
        _require(fence_doubt(lifted, role=role))
        if token is None:
            return _evidence(lifted)
        answer = await self._answer(operation, "account", lifecycle.account(token, inner_timeout_s))
        _require(doubt(answer, role=role, expected=ReplicaState.READY))
        return {**_evidence(answer), **_evidence(lifted)}

    async def _answer(
        self, what: object, doing: str, work: Coroutine[Any, Any, LifecycleResult]
    ) -> LifecycleResult:
        """Ask the role once and return its answer, which may be any object.

        Raises:
            _UnprovedError: it gave none; its cause is what the role raised.
        """
        call = asyncio.create_task(work, name=f"call: {doing}: {what}")
        await asyncio.wait({call}, timeout=self._timeout_s)
        if not call.done():
            # Not cancelled: the role may be half-way, and its late word is worth a log line.
            self._unanswered.add(call)
            call.add_done_callback(partial(self._log_late_answer, what))
            raise _UnprovedError(f"{doing} had no answer within {self._timeout_s:g} s")
        if call.cancelled():
            raise _UnprovedError(f"{doing} was cancelled on the role's side")
        if error := call.exception():
            raise _UnprovedError(f"{doing} raised {type(error).__name__}: {error}") from error
        return call.result()

    def _log_late_answer(self, what: object, call: asyncio.Task[LifecycleResult]) -> None:
        self._unanswered.discard(call)
        if call.cancelled():
            return  # the event loop ends
        answer = call.exception() or call.result()
        logger.warning("%s was answered after its deadline; the lease stays BLOCKED: %r", what, answer)

    def _forget_task(self, operation: Operation, task: asyncio.Task[None]) -> None:
        # A task that broke over its operation stays, so that joiners see what broke it. If it could only not
        # be written down, a repeat tries again.
        unwritten = not task.cancelled() and isinstance(task.exception(), JournalError)
        if operation.ended or (unwritten and operation.state is OperationState.WAITING):
            self._tasks.pop(operation.id, None)

    def _tell_waiters(self) -> None:
        """Tell all whose batch's fate is known now: a moment later the run may have been resumed."""
        for told, batch in self._waiting.items():
            if told.done():
                continue
            try:
                if self._ledger.is_committed(batch):
                    told.set_result(None)
            except (BatchFailedError, CommitTimeoutError) as error:
                told.set_exception(error)


class _UnprovedError(Exception):
    """What was asked of a role is not proved; the message says why."""


def _require(problem: str) -> None:
    if problem:
        raise _UnprovedError(problem)


def _evidence(answer: LifecycleResult) -> dict[EngineId, str]:
    return {outcome.engine: f"{outcome.state}: {outcome.detail}" for outcome in answer.outcomes}
