"""The words in which the ledger refuses: who stands in the way, and what lifts a fence."""

from __future__ import annotations

from collections.abc import Sequence

from rolecall.errors import LeaseBlockedError, LeaseError, RolecallError
from rolecall.ids import RoleName
from rolecall.leases.lease_state import Lease, LeaseState
from rolecall.leases.operation import Method, Operation


def join(leases: Sequence[Lease]) -> str:
    """Return the leases as one clause of a message."""
    return ", ".join(str(lease) for lease in leases)


def lease_error(leases: Sequence[Lease], message: str) -> LeaseError:
    """Return the error for leases that stand in the way; one that is fenced makes it a fence's."""
    fenced = any(lease.state is LeaseState.BLOCKED for lease in leases)
    return (LeaseBlockedError if fenced else LeaseError)(message)


def fence_error(role: RoleName, problem: str) -> LeaseBlockedError:
    """Return the error for a role that is, or is about to be, fenced."""
    return LeaseBlockedError(
        f"{problem}. The engines of {role} may still hold their devices, so neither it nor a role that "
        f"shares devices with it is granted. To free them: rolecall reconcile {role}, or end the job"
    )


def interrupted(operation: Operation, state: LeaseState, reason: str) -> RolecallError | None:
    """Return what became of an operation in which the coordinator was restarted; None: it was carried out."""
    command = operation.command
    reached = LeaseState.ACTIVE if command.method is Method.ACTIVATE else LeaseState.SLEEPING
    if state is reached:
        return None
    if state is LeaseState.BLOCKED:
        return fence_error(command.role, f"{command} is not confirmed; {reason}")
    return LeaseError(f"{command} was not carried out; {reason}")
