"""What counts as proof, and the state a lease starts in."""

from __future__ import annotations

import pytest

from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult, ReplicaOutcome
from rolecall.ids import EngineId, RoleName
from rolecall.leases.confirmation import doubt, opening_lease
from rolecall.leases.lease_state import LeaseState

JUDGE = RoleName("judge")
READY, SLEEPING, FAILED = ReplicaState.READY, ReplicaState.SLEEPING, ReplicaState.FAILED


def answer(*states: ReplicaState, unconfirmed: int = -1) -> LifecycleResult:
    """One replica a state; ``unconfirmed`` is the index of the one that is not."""
    return LifecycleResult(
        role=JUDGE,
        outcomes=tuple(
            ReplicaOutcome(
                engine=EngineId(f"m/replica-{index}"),
                state=state,
                confirmed=index != unconfirmed,
                detail="memory is still held" if index == unconfirmed else "",
            )
            for index, state in enumerate(states)
        ),
    )


def test_every_replica_confirmed_in_the_expected_state_is_proof() -> None:
    assert doubt(answer(SLEEPING, SLEEPING), role=JUDGE, expected=SLEEPING) == ""


def test_a_replica_that_is_awake_and_waits_for_weights_is_no_reason_to_block() -> None:
    waiting = answer(READY, ReplicaState.ONLOADING)
    assert doubt(waiting, role=JUDGE, expected=READY) == ""
    assert "ONLOADING instead of SLEEPING" in doubt(waiting, role=JUDGE, expected=SLEEPING)
    assert doubt(answer(READY, ReplicaState.ONLOADING, unconfirmed=1), role=JUDGE, expected=READY)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "answered None, which is no lifecycle result"),
        (True, "answered True, which is no lifecycle result"),
        (answer(), "the answer names no replica"),
        (answer(SLEEPING, READY), "m/replica-1 is READY instead of SLEEPING"),
        (answer(SLEEPING, SLEEPING, unconfirmed=1), "m/replica-1 is SLEEPING: memory is still held"),
        (LifecycleResult(role=RoleName("z"), outcomes=answer(SLEEPING).outcomes), "the answer is about 'z'"),
    ],
)
def test_anything_else_is_no_proof(given: object, why: str) -> None:
    assert why in doubt(given, role=JUDGE, expected=SLEEPING)


@pytest.mark.parametrize(
    ("given", "shared", "state"),
    [
        (answer(SLEEPING), True, LeaseState.SLEEPING),
        (answer(READY), True, LeaseState.BLOCKED),
        (answer(SLEEPING, unconfirmed=0), True, LeaseState.BLOCKED),
        (answer(READY), False, LeaseState.ACTIVE),
        (answer(SLEEPING), False, LeaseState.BLOCKED),
        (answer(READY, FAILED, unconfirmed=1), False, LeaseState.BLOCKED),
    ],
)
def test_a_lease_starts_as_the_last_answer_proves(
    given: LifecycleResult, shared: bool, state: LeaseState
) -> None:
    opening = opening_lease(JUDGE, given, shared=shared, replicas=2)
    assert opening.state is state
    assert opening.reason.startswith("start: ")


def test_a_role_without_engines_is_there_from_the_start_and_only_that() -> None:
    assert opening_lease(JUDGE, answer(), shared=False, replicas=0).state is LeaseState.ACTIVE
    assert opening_lease(JUDGE, answer(), shared=False, replicas=1).state is LeaseState.BLOCKED
