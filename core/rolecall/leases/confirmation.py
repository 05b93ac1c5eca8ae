"""When an answer of a role proves what was asked: the only judge of positive proof.

An answer proves nothing if it is for another role, names no replica, has an unconfirmed replica,
or reports a replica in another state than the command leads to. A replica that is confirmed
ONLOADING counts as READY: it is awake on the role's devices, and waits for weights that only the
next update brings. Whatever is not proved leaves
the lease BLOCKED; that includes the state in which a lease starts.
"""

from __future__ import annotations

from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult
from rolecall.ids import RoleName
from rolecall.leases.lease_state import LeaseState, OpeningLease

_COUNTS_AS = {ReplicaState.READY: {ReplicaState.READY, ReplicaState.ONLOADING}}

_VACANT = {ReplicaState.SLEEPING, ReplicaState.FAILED, ReplicaState.STOPPING}
"""States of a confirmed replica that proved its release, or the end of its engine."""


def _unfit(answer: object, *, role: RoleName) -> str:
    """Why an answer proves nothing at all, whatever was asked; empty if it may."""
    if problem := fence_doubt(answer, role=role):
        return problem
    assert isinstance(answer, LifecycleResult)
    return "" if answer.outcomes else "the answer names no replica"


def fence_doubt(answer: object, *, role: RoleName) -> str:
    """Return why ``answer`` does not prove that no replica is fenced any more; empty if it does.

    It names those that were fenced, which may be none.
    """
    if not isinstance(answer, LifecycleResult):
        return f"answered {answer!r}, which is no lifecycle result"
    if answer.role != role:
        return f"the answer is about {answer.role!r}"
    return "" if answer.confirmed else f"not confirmed: {answer.problem}"


def doubt(answer: object, *, role: RoleName, expected: ReplicaState) -> str:
    """Return why ``answer`` does not prove that all replicas are ``expected``; empty if it does.

    Takes any object: the answer comes from another process.
    """
    if problem := _unfit(answer, role=role):
        return problem
    assert isinstance(answer, LifecycleResult)
    reached = _COUNTS_AS.get(expected, {expected})
    astray = [f"{o.engine} is {o.state}" for o in answer.outcomes if o.state not in reached]
    return f"{', '.join(astray)} instead of {expected}" if astray else ""


def vacancy_doubt(answer: object, *, role: RoleName) -> str:
    """Return why ``answer`` does not prove that every replica is off its devices; empty if it does."""
    if problem := _unfit(answer, role=role):
        return problem
    assert isinstance(answer, LifecycleResult)
    holding = [f"{o.engine} is {o.state}" for o in answer.outcomes if o.state not in _VACANT]
    return f"{', '.join(holding)}, which holds its devices" if holding else ""


def standing(answer: object, *, role: RoleName) -> tuple[ReplicaState | None, str]:
    """Return where an account proves all replicas to be, SLEEPING or READY; else None and why not."""
    not_asleep, not_awake = (
        doubt(answer, role=role, expected=state) for state in (ReplicaState.SLEEPING, ReplicaState.READY)
    )
    if not not_asleep:
        return ReplicaState.SLEEPING, ""
    if not not_awake:
        return ReplicaState.READY, ""
    return None, not_asleep if not_asleep == not_awake else f"{not_asleep}, {not_awake}"


def opening_lease(role: RoleName, answer: LifecycleResult, *, shared: bool, replicas: int) -> OpeningLease:
    """Return the lease a role starts with, judged by the last thing it did before.

    Args:
        answer: of a shared role, the answer to its first offload; of a resident one, to its start.
        shared: the role conflicts with another.
        replicas: how many the role has by the plan; without any there is nothing to prove.
    """
    if not replicas:
        return OpeningLease(state=LeaseState.ACTIVE, reason="start: the role has no engines")
    expected = ReplicaState.SLEEPING if shared else ReplicaState.READY
    if problem := doubt(answer, role=role, expected=expected):
        return OpeningLease(state=LeaseState.BLOCKED, reason=f"start: {problem}")
    return OpeningLease(
        state=LeaseState.SLEEPING if shared else LeaseState.ACTIVE,
        reason=f"start: every replica is {expected}",
    )
