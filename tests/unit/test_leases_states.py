"""The lease, batch and operation tables: closed, and the only way to change a state."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest

from rolecall.errors import TransitionError
from rolecall.events.event import discard
from rolecall.ids import BatchId, FencingToken, OperationId, RoleName
from rolecall.leases import batch_state, lease_state, operation
from rolecall.transitions import require_transition

TABLES: dict[str, Any] = {
    "lease": lease_state.TRANSITIONS,
    "batch": batch_state.TRANSITIONS,
    "operation": operation.TRANSITIONS,
}


class Coin(StrEnum):
    HEADS = "HEADS"
    TAILS = "TAILS"


COIN = {Coin.HEADS: {Coin.TAILS: "flipped"}, Coin.TAILS: {}}


def lease(state: lease_state.LeaseState) -> lease_state.Lease:
    opening = lease_state.OpeningLease(state=state, reason="given")
    return lease_state.Lease(RoleName("judge"), opening, token=None, emit=discard, clock=lambda: 0.0)


@pytest.mark.parametrize("name", TABLES)
def test_every_state_has_a_row_and_every_target_is_a_state(name: str) -> None:
    table = TABLES[name]
    states = set(type(next(iter(table))))
    assert set(table) == states
    assert {target for targets in table.values() for target in targets} <= states
    assert all(when for targets in table.values() for when in targets.values())


def test_only_proofs_lead_out_of_a_fence_and_to_where_they_prove() -> None:
    ways = lease_state.TRANSITIONS[lease_state.LeaseState.BLOCKED]
    proved = {lease_state.LeaseState.SLEEPING, lease_state.LeaseState.ACTIVE}
    assert set(ways) - {lease_state.LeaseState.BLOCKED} == proved
    assert all("proved" in words for words in ways.values())


def test_a_role_that_shares_devices_never_starts_awake() -> None:
    assert set(lease_state.SHARED_STARTS) == {lease_state.LeaseState.SLEEPING, lease_state.LeaseState.BLOCKED}


def test_a_change_outside_the_table_names_what_is_allowed() -> None:
    require_transition("the coin", COIN, Coin.HEADS, Coin.TAILS)
    with pytest.raises(TransitionError, match="the coin: HEADS → HEADS is not allowed; from HEADS: TAILS"):
        require_transition("the coin", COIN, Coin.HEADS, Coin.HEADS)
    with pytest.raises(TransitionError, match="from TAILS: nothing, it is final"):
        require_transition("the coin", COIN, Coin.TAILS, Coin.HEADS)


@pytest.mark.parametrize("before", list(lease_state.LeaseState))
@pytest.mark.parametrize("after", list(lease_state.LeaseState))
def test_the_lease_door_opens_for_the_table_and_for_nothing_else(
    before: lease_state.LeaseState, after: lease_state.LeaseState
) -> None:
    subject = lease(before)
    token, batch = FencingToken(9), BatchId(4)
    if after in lease_state.TRANSITIONS[before]:
        subject.enter_state(after, reason="asked", token=token, batch=batch)
        assert (subject.state, subject.reason, subject.token, subject.batch) == (after, "asked", token, batch)
        return
    with pytest.raises(TransitionError, match="lease of judge"):
        subject.enter_state(after, reason="asked", token=token, batch=batch)
    assert (subject.state, subject.reason, subject.token, subject.batch) == (before, "given", None, None)


@pytest.mark.parametrize("before", list(batch_state.BatchState))
@pytest.mark.parametrize("after", list(batch_state.BatchState))
def test_the_batch_door_opens_for_the_table_and_for_nothing_else(
    before: batch_state.BatchState, after: batch_state.BatchState
) -> None:
    subject = batch_state.Batch(BatchId(4), emit=discard, clock=lambda: 0.0)
    if before is not batch_state.BatchState.PENDING:
        subject.enter_state(before, reason="given")
    if after in batch_state.TRANSITIONS[before]:
        subject.enter_state(after, reason="asked")
        assert (subject.state, subject.reason) == (after, "asked")
        return
    with pytest.raises(TransitionError, match="batch 4"):
        subject.enter_state(after, reason="asked")
    assert subject.state is before


def test_the_operation_door_refuses_what_the_table_does_not_have() -> None:
    command = operation.Command(batch=BatchId(0), method=operation.Method.ACTIVATE, role=RoleName("judge"))
    subject = operation.Operation(OperationId("a"), command)
    subject.enter_state(operation.OperationState.FINISHED, reason="asked")
    with pytest.raises(TransitionError, match=r"operation 'a' \(activate judge for batch 0\)"):
        subject.enter_state(operation.OperationState.CALLING, reason="asked")
