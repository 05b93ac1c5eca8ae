"""The lifecycle coordinator: drives the ledger, talks to the roles, lets callers wait.

All decisions are the ledger's; this module adds time. It sends each command once, under one
deadline, and reports to the ledger what came back. An answer that comes after the deadline is
logged and changes nothing. Every operation is a task of its own, so a caller that gives up does
not end it, and any number of callers can join it. Waiters end by commit, by the run's failure or
by their own timeout.

Used from one event loop: in a Ray actor (``coordinator_actor``), in tests and in simulations. It
holds no samples, rewards or partitions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any

from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult
from rolecall.errors import CommitTimeoutError, LeaseError
from rolecall.events.event import Emit, discard
from rolecall.ids import BatchId, FencingToken, OperationId, RoleName
from rolecall.leases.confirmation import doubt
from rolecall.leases.lease_state import OpeningLease
from rolecall.leases.ledger import Ledger
from rolecall.leases.operation import Command, Method, Operation, OperationState
from rolecall.leases.port import RoleLifecycle
from rolecall.leases.trainer import TrainersWord

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 180.0

_INNER_SHARE = 0.95
"""Share of the deadline that the role gets: its own account of a failure must arrive in time."""

_EXPECTED = {Method.ACTIVATE: ReplicaState.READY, Method.DEACTIVATE: ReplicaState.SLEEPING}


class LeaseCoordinator:
    """Implements :class:`~rolecall.leases.port.CoordinatorPort` in this process.

    Args:
        roles: the inference roles that share devices; resident ones are never commanded and may be absent.
        conflicts: role → roles that share a bundle with it; all roles of the job as keys.
        opening: role → the state its lease starts in, see ``confirmation.opening_lease``.
        training: those of the keys that are the trainer's; their own word counts, see ``trainer``.
        timeout_s: deadline of one command to a role, answer included.
        emit: takes ``lease.state`` and ``batch.state``.
        clock: seconds, monotonic; deadlines go by the event loop's own clock.
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
    ) -> None:
        self._ledger = Ledger(conflicts=conflicts, opening=opening, training=training, clock=clock, emit=emit)
        self._roles = {**roles, **{role: TrainersWord(role) for role in training}}
        self._timeout_s = timeout_s
        self._tasks: dict[OperationId, asyncio.Task[None]] = {}
        self._unanswered: set[asyncio.Task[LifecycleResult]] = set()
        self._batch_ended = asyncio.Event()
        uncommanded = {role for role, others in conflicts.items() if others} - self._roles.keys()
        if uncommanded:
            raise LeaseError(f"no lifecycle was given for {sorted(uncommanded)}, which share devices")

    # --- batches ------------------------------------------------------------------------

    async def begin_batch(self, batch: BatchId) -> None:
        """Open a batch. Repeats do nothing; an ended batch or a failed run raises."""
        self._ledger.begin_batch(batch)

    async def commit_batch(self, batch: BatchId, *, acknowledged: bool) -> None:
        """Commit, or say what speaks against it; see :meth:`Ledger.commit_batch`."""
        self._ledger.commit_batch(batch, acknowledged=acknowledged)
        self._wake_waiters()

    async def fail_batch(self, batch: BatchId, reason: str) -> None:
        """Fail the batch and the run; the first reason wins and wakes all waiters."""
        self._ledger.fail_batch(batch, reason)
        self._wake_waiters()

    async def wait_committed(self, batch: BatchId, timeout_s: float) -> None:
        """Return once the batch is committed; it need not have begun yet.

        ``timeout_s`` of 0 or less looks once. Cancelling ends the waiting and nothing else.

        Raises:
            BatchFailedError: it, or the run, failed; the message is the first failure.
            CommitTimeoutError: not committed after ``timeout_s``, or too old to tell.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self._ledger.is_committed(batch):
                    await self._batch_ended.wait()
        except TimeoutError:
            if self._ledger.is_committed(batch):  # committed in the very moment the wait ended
                return
            raise CommitTimeoutError(
                f"batch {batch} was not committed within {timeout_s:g} s: "
                f"{self._ledger.describe_batch(batch)}"
            ) from None

    # --- leases -------------------------------------------------------------------------

    async def activate(self, batch: BatchId, role: RoleName, operation: OperationId) -> FencingToken:
        """Lease the role's devices and wake it; returns when it is ACTIVE.

        A repeat of the operation id joins it. Cancelling the caller does not cancel the
        operation. A resident role, and one that the batch already holds, return at once.

        Raises:
            LeaseError: this role or a conflicting one is not SLEEPING, or the batch is not open.
            LeaseBlockedError: a fence stands in the way, or waking was not confirmed.
            BatchFailedError: the run has failed; only deactivate is allowed.
            OperationReuseError: the id stands for another operation.
        """
        command = Command(batch=batch, method=Method.ACTIVATE, role=role)
        token = await self._fate(operation, command)
        assert token is not None, f"{command} finished without a token"
        return token

    async def deactivate(self, batch: BatchId, role: RoleName, operation: OperationId) -> None:
        """Put the role to sleep; returns when that is confirmed. Allowed after a failure.

        Waits for the role's onload, if one is under way. Sleeping and resident roles return at
        once. Repeats and cancellation as in :meth:`activate`.

        Raises:
            LeaseBlockedError: the role is fenced, or its release was not confirmed.
            LeaseError: another batch holds the lease.
            OperationReuseError: the id stands for another operation.
        """
        await self._fate(operation, Command(batch=batch, method=Method.DEACTIVATE, role=role))

    async def status(self) -> Mapping[str, Any]:
        """Leases, batches, running operations and the run's failure as JSON values."""
        return {**self._ledger.status(), "timeout_s": self._timeout_s}

    # --- operations ---------------------------------------------------------------------

    async def _fate(self, operation_id: OperationId, command: Command) -> FencingToken | None:
        """Start or join the operation, wait for its end and return or raise its result."""
        operation = self._ledger.open(operation_id, command)
        if not operation.ended and operation_id not in self._tasks:
            task = asyncio.create_task(self._carry_out(operation), name=f"{command} ({operation_id})")
            self._tasks[operation_id] = task
            task.add_done_callback(partial(self._forget_task, operation))
        if task := self._tasks.get(operation_id):
            await asyncio.shield(task)
        return operation.result()

    async def _carry_out(self, operation: Operation) -> None:
        while before := self._ledger.start(operation):
            await self._tasks[before.id]
        if operation.state is not OperationState.CALLING:
            return
        why, cause = await self._command(operation)
        if why:
            self._ledger.block(operation, why, cause)
        else:
            self._ledger.confirm(operation)

    async def _command(self, operation: Operation) -> tuple[str, BaseException | None]:
        """Send the command once; return why its success is not proved, empty if it is."""
        command = operation.command
        call = asyncio.create_task(self._send(operation), name=f"call: {command}")
        await asyncio.wait({call}, timeout=self._timeout_s)
        if not call.done():
            # Not cancelled: the role may be half-way, and its late word is worth a log line.
            self._unanswered.add(call)
            call.add_done_callback(partial(self._log_late_answer, operation))
            return f"{command.method} had no answer within {self._timeout_s:g} s", None
        if call.cancelled():
            return f"{command.method} was cancelled on the role's side", None
        if error := call.exception():
            return f"{command.method} raised {type(error).__name__}: {error}", error
        return doubt(call.result(), role=command.role, expected=_EXPECTED[command.method]), None

    async def _send(self, operation: Operation) -> LifecycleResult:
        command, token = operation.command, operation.token
        assert token is not None, f"{command} is sent without a token"
        lifecycle = self._roles[command.role]
        inner_timeout_s = self._timeout_s * _INNER_SHARE
        if command.method is Method.ACTIVATE:
            return await lifecycle.onload(token, inner_timeout_s)
        return await lifecycle.offload(token, inner_timeout_s)

    def _log_late_answer(self, operation: Operation, call: asyncio.Task[LifecycleResult]) -> None:
        self._unanswered.discard(call)
        if call.cancelled():
            return  # the event loop ends
        answer = call.exception() or call.result()
        logger.warning(
            "operation %r (%s, token %s) was answered after its deadline; the lease stays BLOCKED: %r",
            operation.id,
            operation.command,
            operation.token,
            answer,
        )

    def _forget_task(self, operation: Operation, task: asyncio.Task[None]) -> None:
        # A task that broke without ending its operation stays, so that joiners see what broke it.
        del task
        if operation.ended:
            self._tasks.pop(operation.id, None)

    def _wake_waiters(self) -> None:
        self._batch_ended.set()
        self._batch_ended = asyncio.Event()
