"""The ledger's present state as JSON values, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from rolecall.ids import RoleName
from rolecall.leases.batch_book import BatchBook
from rolecall.leases.lease_state import Lease
from rolecall.leases.operation import OperationLog


def status(
    leases: Mapping[RoleName, Lease],
    conflicts: Mapping[RoleName, Set[RoleName]],
    book: BatchBook,
    operations: OperationLog,
    now_s: float,
) -> dict[str, Any]:
    """Return leases, batches, the running operations and the run's failure; times are ages in seconds."""
    failure = book.failure
    return {
        "failure": failure and {"batch": failure.batch, "reason": failure.reason},
        "leases": {
            role: {
                "state": lease.state.value,
                "reason": lease.reason,
                "token": lease.token,
                "batch": lease.batch,
                "age_s": now_s - lease.entered_s,
                "resident": not conflicts[role],
                "conflicts": sorted(conflicts[role]),
            }
            for role, lease in leases.items()
        },
        "batches": [
            {
                "batch": batch.number,
                "state": batch.state.value,
                "attempt": batch.attempt,
                "reason": batch.reason,
                "age_s": now_s - batch.entered_s,
            }
            for batch in book
        ],
        "running": [
            {
                "operation": operation.id,
                "method": operation.command.method.value,
                "role": operation.command.role,
                "batch": operation.command.batch,
                "state": operation.state.value,
            }
            for operation in operations.running()
        ],
    }
