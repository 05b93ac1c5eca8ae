"""How the rest of the system talks to the lifecycle coordinator.

Implemented by the in-process coordinator (tests, simulation) and by the Ray actor's client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rolecall.engines.results import LifecycleResult
from rolecall.ids import BatchId, FencingToken, OperationId, RoleName


class RoleLifecycle(Protocol):
    """One role's engines, as the coordinator commands them.

    Both calls raise :class:`~rolecall.errors.StaleTokenError` for a token lower than one seen.
    """

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult: ...

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult: ...


class CoordinatorPort(Protocol):
    """The lifecycle coordinator. Every call may be repeated; ids decide what a repeat means."""

    async def begin_batch(self, batch: BatchId) -> None:
        """Open a batch. Repeats do nothing; an ended batch or a failed run raises."""
        ...

    async def activate(self, batch: BatchId, role: RoleName, operation: OperationId) -> FencingToken:
        """Lease the role's devices and wake it; returns when it is ACTIVE.

        Waits for no one: a conflicting role that is not SLEEPING raises ``LeaseError``.
        A repeat with the same operation id joins the first call.
        """
        ...

    async def deactivate(self, batch: BatchId, role: RoleName, operation: OperationId) -> None:
        """Put the role to sleep; returns when that is confirmed. Allowed after a failure.

        Raises:
            LeaseBlockedError: the release was not confirmed; the devices are fenced.
        """
        ...

    async def commit_batch(self, batch: BatchId, *, acknowledged: bool) -> None:
        """Commit: needs the sink's acknowledgement and every conflicting role asleep."""
        ...

    async def fail_batch(self, batch: BatchId, reason: str) -> None:
        """Fail the batch and the run; the first reason wins and wakes all waiters."""
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
