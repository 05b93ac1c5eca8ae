"""How the rest of the system talks to the lifecycle coordinator.

Implemented by the in-process coordinator (tests, simulation) and by the Ray actor's client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rolecall.engines.proof import Proof
from rolecall.engines.results import LifecycleResult
from rolecall.ids import BatchId, FencingToken, OperationId, RoleName
from rolecall.leases.reconciliation import Claim, Reconciliation


class RoleLifecycle(Protocol):
    """One role's engines, as the coordinator commands them.

    Every call with a token raises :class:`~rolecall.errors.StaleTokenError` for one lower than one seen.
    """

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult: ...

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult: ...

    async def prepare(self, timeout_s: float) -> None:
        """Do ahead what the next onload needs no device for; see :meth:`InferenceManager.prepare`.

        Carries no token, since it takes nothing and changes no state. What could not be done shows again,
        with its reason, in the onload.
        """
        ...

    async def account(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        """Say where every replica stands; waits for what still runs first, and changes nothing.

        For a coordinator that was restarted: from now on no command of the former one is taken. Confirmed
        is a replica that is READY, SLEEPING or awake and waiting for weights, and that was found so just now.
        """
        ...

    async def vacate(self, token: FencingToken, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        """Free the devices, with proof; starts nothing, and waits for what still runs first.

        Awake replicas are put to sleep, or ended if they can't be; broken ones are ended; what dead
        workers left is looked for where ``proof`` says, and ended. Confirmed is a replica that is SLEEPING
        and has proved its release, or that is FAILED with evidence that nothing of it is left. Repeats
        look again.
        """
        ...

    async def lift_fences(self, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        """Look, where ``proof`` says, for what dead workers left, and end it; touches nothing else.

        Names the replicas that were fenced, confirmed if they are not any more.
        """
        ...


class CoordinatorPort(Protocol):
    """The lifecycle coordinator. Every call may be repeated; ids decide what a repeat means.

    ``attempt`` is what ``begin_batch`` returned: a call that names an earlier one comes too late and is
    refused. None stands for the latest.

    Any call that changes something may raise :class:`~rolecall.errors.JournalError`: it could not be
    written down, and nothing has happened.
    """

    async def begin_batch(self, batch: BatchId) -> int:
        """Open a batch; returns which attempt at it this is, from 1.

        Repeats for an open batch do nothing. A committed batch or a failed run raises; after :meth:`resume`
        a failed batch may begin again, as its next attempt.
        """
        ...

    async def activate(
        self, batch: BatchId, role: RoleName, operation: OperationId, *, attempt: int | None = None
    ) -> FencingToken:
        """Lease the role's devices and wake it; returns when it is ACTIVE.

        Waits for no one: a conflicting role that is not SLEEPING raises ``LeaseError``.
        A repeat with the same operation id joins the first call.
        """
        ...

    async def prepare(self, batch: BatchId, role: RoleName) -> None:
        """Have a role that sleeps do ahead what its next wake for the batch needs no device for.

        A head start while another role has the devices: no lease changes, and no failure of it is one of
        the batch. Returns when it is done, or as far as it got in the time of one command.
        """
        ...

    async def deactivate(
        self, batch: BatchId, role: RoleName, operation: OperationId, *, attempt: int | None = None
    ) -> None:
        """Put the role to sleep; returns when that is confirmed. Allowed after a failure.

        Raises:
            LeaseBlockedError: the release was not confirmed; the devices are fenced.
        """
        ...

    async def commit_batch(self, batch: BatchId, *, acknowledged: bool, attempt: int | None = None) -> None:
        """Commit: needs the sink's acknowledgement and every conflicting role asleep."""
        ...

    async def fail_batch(self, batch: BatchId, reason: str, *, attempt: int | None = None) -> None:
        """Fail the batch and the run; the first reason wins and wakes all waiters."""
        ...

    async def reconcile(self, role: RoleName, operation: OperationId, *, claim: Claim) -> Reconciliation:
        """Lift a role's fence if what the operator claims is found true; returns the audit record.

        A BLOCKED lease becomes SLEEPING when every replica of the role has proved that it holds no device
        memory; a resident role's becomes ACTIVE when every replica is READY. With a lease that is not
        BLOCKED only the fences of single replicas are looked at. Repeats of the id join.

        Raises:
            LeaseBlockedError: it is not proved; says replica by replica what is missing. The fence stays.
            LeaseError: another reconciliation of the role is under way, or there is no such role.
        """
        ...

    async def resume(self, operation: OperationId) -> BatchId:
        """Let a failed run go on; returns the lowest batch that is not committed.

        Does no more than that for a run that has not failed. A repeat of the id returns the same.

        Raises:
            LeaseError: a role that shares devices is not SLEEPING; names each, and what to do.
        """
        ...

    async def wait_committed(self, batch: BatchId, timeout_s: float) -> None:
        """Return once the batch is committed.

        Raises:
            BatchFailedError: it, or the run, failed; the message is the first failure.
            CommitTimeoutError: not committed after ``timeout_s``.
        """
        ...

    async def status(self) -> Mapping[str, Any]:
        """Leases, batches and the run's failure as JSON values."""
        ...
