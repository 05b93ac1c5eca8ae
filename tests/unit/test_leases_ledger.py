"""The ledger's rules, one test each: who may be awake, when a batch may be committed."""

from __future__ import annotations

from typing import Any

import pytest

from rolecall.errors import (
    BatchFailedError,
    CommitTimeoutError,
    LeaseBlockedError,
    LeaseError,
    OperationReuseError,
    SinkError,
    TransitionError,
)
from rolecall.ids import BatchId, OperationId, RoleName
from rolecall.leases.lease_state import LeaseState, OpeningLease
from rolecall.leases.ledger import Ledger
from rolecall.leases.operation import Command, Method, Operation, OperationState

# writer and judge share devices, and so do judge and tutor; guest has devices of its own.
WRITER, JUDGE, TUTOR, GUEST = (RoleName(name) for name in ("writer", "judge", "tutor", "guest"))
CONFLICTS = {WRITER: {JUDGE}, JUDGE: {WRITER, TUTOR}, TUTOR: {JUDGE}, GUEST: set[RoleName]()}
ASLEEP = OpeningLease(state=LeaseState.SLEEPING, reason="measured")
OPENING = {
    WRITER: ASLEEP,
    JUDGE: ASLEEP,
    TUTOR: ASLEEP,
    GUEST: OpeningLease(state=LeaseState.ACTIVE, reason="measured"),
}


class Desk:
    """A ledger with short commands; operation ids count up unless given."""

    def __init__(self, *, begun: int = 1, **changes: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.now = 0.0
        arguments: dict[str, Any] = {"conflicts": CONFLICTS, "opening": OPENING, **changes}
        self.ledger = Ledger(clock=lambda: self.now, emit=self._emit, **arguments)
        self._ids = 0
        for batch in range(begun):
            self.ledger.begin_batch(BatchId(batch))

    def _emit(self, kind: str, /, **fields: Any) -> None:
        self.events.append({"kind": kind, **fields})

    def operate(
        self, method: Method, role: RoleName, batch: int = 0, operation_id: str | None = None
    ) -> Operation:
        self._ids += 1
        command = Command(batch=BatchId(batch), method=method, role=role)
        operation = self.ledger.open(OperationId(operation_id or f"op-{self._ids}"), command)
        self.ledger.start(operation)
        return operation

    def activate(self, role: RoleName, batch: int = 0, operation_id: str | None = None) -> Operation:
        return self.operate(Method.ACTIVATE, role, batch, operation_id)

    def deactivate(self, role: RoleName, batch: int = 0, operation_id: str | None = None) -> Operation:
        return self.operate(Method.DEACTIVATE, role, batch, operation_id)

    def wake(self, role: RoleName, batch: int = 0) -> Operation:
        operation = self.activate(role, batch)
        self.ledger.confirm(operation)
        return operation

    def sleep(self, role: RoleName, batch: int = 0) -> Operation:
        operation = self.deactivate(role, batch)
        self.ledger.confirm(operation)
        return operation

    def state(self, role: RoleName) -> str:
        return self.ledger.status()["leases"][role]["state"]

    def batch(self, number: int) -> dict[str, Any]:
        return next(b for b in self.ledger.status()["batches"] if b["batch"] == number)


# --- granting ---------------------------------------------------------------------------


def test_a_lease_goes_once_round() -> None:
    desk = Desk()
    states = [desk.state(JUDGE)]
    waking = desk.activate(JUDGE)
    states.append(desk.state(JUDGE))
    desk.ledger.confirm(waking)
    states.append(desk.state(JUDGE))
    sleeping = desk.deactivate(JUDGE)
    states.append(desk.state(JUDGE))
    desk.ledger.confirm(sleeping)
    states.append(desk.state(JUDGE))
    assert states == ["SLEEPING", "ONLOADING", "ACTIVE", "DRAINING", "SLEEPING"]


@pytest.mark.parametrize("progress", ["onloading", "active", "draining"])
def test_a_lease_is_refused_until_the_conflicting_role_is_confirmed_asleep(progress: str) -> None:
    desk = Desk()
    operation = desk.activate(WRITER)
    if progress != "onloading":
        desk.ledger.confirm(operation)
    if progress == "draining":
        desk.deactivate(WRITER)
    refused = desk.activate(JUDGE)
    with pytest.raises(LeaseError, match=rf"writer is {progress.upper()} \(batch 0") as caught:
        refused.result()
    assert not isinstance(caught.value, LeaseBlockedError)
    assert desk.state(JUDGE) == "SLEEPING"


def test_roles_on_disjoint_devices_do_not_wait_for_one_another() -> None:
    desk = Desk()
    desk.wake(WRITER)
    desk.wake(TUTOR)
    assert (desk.state(WRITER), desk.state(TUTOR)) == ("ACTIVE", "ACTIVE")


def test_a_refusal_names_every_role_in_the_way() -> None:
    desk = Desk()
    desk.wake(WRITER)
    desk.wake(TUTOR)
    with pytest.raises(LeaseError, match=r"tutor is ACTIVE .*, writer is ACTIVE"):
        desk.activate(JUDGE).result()


def test_every_command_carries_a_higher_token_than_all_before_whatever_the_role() -> None:
    desk = Desk()
    operations = [
        desk.wake(WRITER),
        desk.sleep(WRITER),
        desk.wake(JUDGE),
        desk.sleep(JUDGE),
        desk.wake(TUTOR),
    ]
    tokens = [operation.token or 0 for operation in operations]
    assert tokens == sorted(set(tokens))
    assert min(tokens) > 0


def test_a_role_that_the_batch_already_holds_is_not_woken_again() -> None:
    desk = Desk()
    first = desk.wake(JUDGE)
    again = desk.activate(JUDGE)
    assert again.state is OperationState.FINISHED
    assert again.result() == first.result()


def test_a_role_held_by_another_batch_is_refused() -> None:
    desk = Desk(begun=2)
    desk.wake(JUDGE, batch=0)
    with pytest.raises(LeaseError, match=r"judge is ACTIVE \(batch 0, token .*Batch 0 has to deactivate it"):
        desk.activate(JUDGE, batch=1).result()


def test_a_role_that_is_just_waking_is_refused_and_the_message_names_the_operation_to_join() -> None:
    desk = Desk()
    desk.activate(JUDGE, operation_id="first")
    with pytest.raises(LeaseError, match="Operation 'first' is under way; repeat that id to join it"):
        desk.activate(JUDGE).result()


def test_activate_needs_an_open_batch() -> None:
    desk = Desk()
    with pytest.raises(LeaseError, match="batch 7 is not open: it has not begun"):
        desk.activate(JUDGE, batch=7).result()
    desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    with pytest.raises(LeaseError, match="batch 0 is not open: it is COMMITTED"):
        desk.activate(JUDGE).result()


def test_an_unknown_role_is_refused_with_the_roles_there_are() -> None:
    desk = Desk()
    for operation in (desk.activate(RoleName("jugde")), desk.deactivate(RoleName("jugde"))):
        with pytest.raises(
            LeaseError, match="no role 'jugde'; roles of this job: guest, judge, tutor, writer"
        ):
            operation.result()


# --- giving back ------------------------------------------------------------------------


def test_deactivating_a_sleeping_role_sends_nothing() -> None:
    desk = Desk()
    assert desk.deactivate(JUDGE).state is OperationState.FINISHED
    assert desk.state(JUDGE) == "SLEEPING"


def test_only_the_holding_batch_gives_a_lease_back() -> None:
    desk = Desk(begun=2)
    desk.wake(JUDGE, batch=1)
    with pytest.raises(LeaseError, match=r"judge is ACTIVE \(batch 1.*only the batch that holds"):
        desk.deactivate(JUDGE, batch=0).result()
    assert desk.state(JUDGE) == "ACTIVE"


def test_deactivate_waits_for_the_onload_under_way_and_then_drains() -> None:
    desk = Desk()
    waking = desk.activate(JUDGE)
    command = Command(batch=BatchId(0), method=Method.DEACTIVATE, role=JUDGE)
    clean_up = desk.ledger.open(OperationId("clean-up"), command)
    assert desk.ledger.start(clean_up) is waking
    assert desk.ledger.start(clean_up) is waking, "asking again changes nothing"
    desk.ledger.confirm(waking)
    assert desk.ledger.start(clean_up) is None
    assert desk.state(JUDGE) == "DRAINING"


def test_a_second_deactivate_waits_for_the_first_and_sends_nothing() -> None:
    desk = Desk()
    desk.wake(JUDGE)
    first = desk.deactivate(JUDGE)
    second = desk.ledger.open(
        OperationId("second"), Command(batch=BatchId(0), method=Method.DEACTIVATE, role=JUDGE)
    )
    assert desk.ledger.start(second) is first
    desk.ledger.confirm(first)
    assert desk.ledger.start(second) is None
    assert second.state is OperationState.FINISHED


# --- the fence --------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Method.ACTIVATE, Method.DEACTIVATE])
def test_an_unconfirmed_command_leaves_the_lease_blocked_with_its_reason(method: Method) -> None:
    desk = Desk()
    if method is Method.DEACTIVATE:
        desk.wake(JUDGE)
    operation = desk.operate(method, JUDGE)
    cause = ConnectionError("gone")
    desk.ledger.block(operation, "no answer within 180 s", cause)
    with pytest.raises(LeaseBlockedError, match=rf"{method} judge .* no answer within 180 s") as caught:
        operation.result()
    assert caught.value.__cause__ is cause
    assert desk.state(JUDGE) == "BLOCKED"


@pytest.mark.parametrize("answer", ["confirm", "block"])
def test_a_late_answer_never_frees_a_fence(answer: str) -> None:
    desk = Desk()
    operation = desk.activate(JUDGE)
    desk.ledger.block(operation, "no answer within 180 s")
    with pytest.raises(TransitionError, match="came when it was FAILED; it changes nothing"):
        desk.ledger.confirm(operation) if answer == "confirm" else desk.ledger.block(operation, "late")
    assert desk.state(JUDGE) == "BLOCKED"


def test_a_fenced_role_is_neither_woken_nor_put_to_sleep() -> None:
    desk = Desk(begun=2)
    desk.ledger.block(desk.activate(JUDGE), "no answer")
    for operation in (desk.activate(JUDGE), desk.deactivate(JUDGE), desk.deactivate(JUDGE, batch=1)):
        with pytest.raises(LeaseBlockedError, match=r"judge is BLOCKED .*no answer.*may still hold"):
            operation.result()


def test_a_fence_keeps_every_conflicting_role_asleep_and_no_other() -> None:
    desk = Desk()
    desk.ledger.block(desk.activate(WRITER), "no answer")
    with pytest.raises(LeaseBlockedError, match=r"can't activate judge .*: writer is BLOCKED .*no answer"):
        desk.activate(JUDGE).result()
    assert desk.wake(TUTOR).result() is not None


def test_a_deactivate_that_waited_for_a_lost_onload_ends_at_the_fence() -> None:
    desk = Desk()
    waking = desk.activate(JUDGE)
    clean_up = desk.deactivate(JUDGE)
    desk.ledger.block(waking, "no answer")
    assert desk.ledger.start(clean_up) is None
    with pytest.raises(LeaseBlockedError, match="can't deactivate judge"):
        clean_up.result()


def test_a_role_that_was_never_proved_asleep_starts_fenced() -> None:
    unproved = OpeningLease(state=LeaseState.BLOCKED, reason="start: 3 GiB are held")
    desk = Desk(opening={**OPENING, JUDGE: unproved})
    with pytest.raises(LeaseBlockedError, match=r"judge is BLOCKED .*3 GiB are held"):
        desk.activate(JUDGE).result()
    with pytest.raises(LeaseBlockedError, match="3 GiB are held"):
        desk.activate(WRITER).result()


# --- resident roles ---------------------------------------------------------------------


def test_a_resident_role_is_active_from_the_start_and_never_commanded() -> None:
    desk = Desk(begun=2)
    first, second = desk.activate(GUEST, batch=0), desk.activate(GUEST, batch=1)
    put = desk.deactivate(GUEST)
    assert {first.state, second.state, put.state} == {OperationState.FINISHED}
    assert first.result() == second.result() is not None
    assert desk.state(GUEST) == "ACTIVE"


def test_an_awake_resident_does_not_hold_up_the_commit() -> None:
    desk = Desk()
    desk.activate(GUEST)
    desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    assert desk.batch(0)["state"] == "COMMITTED"


def test_a_resident_role_is_refused_when_the_run_failed_or_its_start_was_not_confirmed() -> None:
    desk = Desk(opening={**OPENING, GUEST: OpeningLease(state=LeaseState.BLOCKED, reason="no canary")})
    with pytest.raises(LeaseBlockedError, match="no canary"):
        desk.activate(GUEST).result()
    desk = Desk()
    desk.ledger.fail_batch(BatchId(0), "disk full")
    with pytest.raises(BatchFailedError, match="disk full"):
        desk.activate(GUEST).result()


# --- operations -------------------------------------------------------------------------


def test_a_repeat_joins_a_running_operation_and_a_finished_one() -> None:
    desk = Desk()
    first = desk.activate(JUDGE, operation_id="wake")
    assert desk.activate(JUDGE, operation_id="wake") is first
    desk.ledger.confirm(first)
    assert desk.activate(JUDGE, operation_id="wake") is first
    assert first.result() == first.token


def test_a_repeat_of_a_failed_operation_re_raises_the_same_error() -> None:
    desk = Desk()
    desk.ledger.block(desk.activate(JUDGE, operation_id="wake"), "no answer")
    errors: list[LeaseBlockedError] = []
    for _ in range(2):
        with pytest.raises(LeaseBlockedError) as caught:
            desk.activate(JUDGE, operation_id="wake").result()
        errors.append(caught.value)
    assert errors[0] is errors[1]


def test_a_refused_operation_stays_refused_when_the_way_is_clear() -> None:
    """A delayed copy must not wake a role for which nobody waits any more."""
    desk = Desk()
    desk.wake(WRITER)
    desk.activate(JUDGE, operation_id="wake")
    desk.sleep(WRITER)
    with pytest.raises(LeaseError, match="writer is ACTIVE"):
        desk.activate(JUDGE, operation_id="wake").result()
    assert desk.state(JUDGE) == "SLEEPING"


@pytest.mark.parametrize(
    ("method", "role", "batch"),
    [(Method.ACTIVATE, TUTOR, 0), (Method.DEACTIVATE, JUDGE, 0), (Method.ACTIVATE, JUDGE, 1)],
)
def test_an_operation_id_stands_for_one_batch_method_and_role(
    method: Method, role: RoleName, batch: int
) -> None:
    desk = Desk(begun=2)
    desk.ledger.confirm(desk.activate(JUDGE, operation_id="wake"))
    with pytest.raises(
        OperationReuseError, match=r"'wake' .* already stands for: activate judge for batch 0"
    ):
        desk.operate(method, role, batch, "wake")


def test_an_operation_id_is_refused_for_a_later_batch_even_after_the_commit() -> None:
    desk = Desk()
    desk.wake(JUDGE)
    desk.ledger.confirm(desk.deactivate(JUDGE, operation_id="put"))
    desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    desk.ledger.begin_batch(BatchId(1))
    with pytest.raises(OperationReuseError):
        desk.deactivate(JUDGE, batch=1, operation_id="put")


def test_only_so_many_ended_operations_are_remembered_and_running_ones_never_forgotten() -> None:
    desk = Desk(retired_limit=3)
    running = desk.activate(TUTOR, operation_id="running")
    for number in range(4):
        desk.deactivate(WRITER, operation_id=f"old-{number}")
    assert desk.activate(TUTOR, operation_id="running") is running
    with pytest.raises(OperationReuseError):
        desk.deactivate(TUTOR, operation_id="old-1")
    desk.deactivate(GUEST, operation_id="old-0")  # forgotten: free for another command


def test_a_copy_of_a_forgotten_operation_cannot_wake_a_role() -> None:
    desk = Desk(retired_limit=1)
    desk.ledger.confirm(desk.activate(JUDGE, operation_id="wake"))
    desk.sleep(JUDGE)
    desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    desk.ledger.begin_batch(BatchId(1))
    with pytest.raises(LeaseError, match="batch 0 is not open"):
        desk.activate(JUDGE, batch=0, operation_id="wake").result()


# --- batches ----------------------------------------------------------------------------


def test_begin_commit_and_fail_are_idempotent() -> None:
    desk = Desk(begun=0)
    for _ in range(2):
        desk.ledger.begin_batch(BatchId(0))
    for _ in range(2):
        desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    desk.ledger.begin_batch(BatchId(1))
    for reason in ("first", "second"):
        desk.ledger.fail_batch(BatchId(1), reason)
    changes = [(e["batch"], e["to"], e["reason"]) for e in desk.events if e["kind"] == "batch.state"]
    assert [change[:2] for change in changes] == [
        (0, "PENDING"),
        (0, "COMMITTED"),
        (1, "PENDING"),
        (1, "FAILED"),
    ]
    assert changes[-1][2] == "first"


def test_a_batch_number_is_never_used_again() -> None:
    desk = Desk()
    desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    with pytest.raises(TransitionError, match="batch 0 can't begin: it is COMMITTED"):
        desk.ledger.begin_batch(BatchId(0))


def test_commit_needs_the_sinks_acknowledgement() -> None:
    desk = Desk()
    with pytest.raises(SinkError, match="the sink has not acknowledged 'train_0'"):
        desk.ledger.commit_batch(BatchId(0), acknowledged=False)
    assert desk.batch(0)["state"] == "PENDING"


def test_commit_needs_every_shared_role_asleep_and_names_those_that_are_not() -> None:
    desk = Desk()
    desk.wake(WRITER)
    desk.activate(TUTOR)
    with pytest.raises(LeaseError, match=r"writer is ACTIVE \(batch 0.*tutor is ONLOADING") as caught:
        desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    assert not isinstance(caught.value, LeaseBlockedError)
    assert desk.batch(0)["state"] == "PENDING"


def test_commit_is_refused_while_a_release_is_unconfirmed() -> None:
    desk = Desk()
    desk.wake(JUDGE)
    operation = desk.deactivate(JUDGE)
    with pytest.raises(LeaseError, match="judge is DRAINING"):
        desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    desk.ledger.block(operation, "memory is still held")
    with pytest.raises(LeaseBlockedError, match=r"judge is BLOCKED .*memory is still held"):
        desk.ledger.commit_batch(BatchId(0), acknowledged=True)


def test_a_refused_commit_can_be_repeated_when_the_roles_sleep() -> None:
    desk = Desk()
    desk.wake(JUDGE)
    with pytest.raises(LeaseError):
        desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    desk.sleep(JUDGE)
    desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    assert desk.ledger.is_committed(BatchId(0))


def test_a_batch_that_never_began_is_not_committed() -> None:
    desk = Desk(begun=0)
    with pytest.raises(TransitionError, match="batch 4 is not open: it has not begun"):
        desk.ledger.commit_batch(BatchId(4), acknowledged=True)


def test_a_committed_batch_stays_committed() -> None:
    desk = Desk(begun=2)
    desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    with pytest.raises(TransitionError, match=r"batch 0 can't fail \(changed my mind\): it is COMMITTED"):
        desk.ledger.fail_batch(BatchId(0), "changed my mind")
    desk.ledger.fail_batch(BatchId(1), "disk full")
    assert desk.ledger.is_committed(BatchId(0))
    desk.ledger.commit_batch(BatchId(0), acknowledged=True)


# --- the first failure ------------------------------------------------------------------


def test_the_first_failure_of_a_run_wins_and_is_told_to_every_batch() -> None:
    desk = Desk(begun=3)
    desk.ledger.fail_batch(BatchId(1), "judge answered nonsense")
    desk.ledger.fail_batch(BatchId(2), "something later")
    with pytest.raises(BatchFailedError, match=r"^batch 1 failed: judge answered nonsense$"):
        desk.ledger.is_committed(BatchId(1))
    for other in (0, 2, 9):
        with pytest.raises(
            BatchFailedError, match=rf"batch {other} .*batch 1 failed: judge answered nonsense"
        ):
            desk.ledger.is_committed(BatchId(other))
    assert desk.ledger.status()["failure"] == {"batch": 1, "reason": "judge answered nonsense"}
    assert {b["state"] for b in desk.ledger.status()["batches"]} == {"FAILED"}


def test_after_the_first_failure_only_deactivations_are_allowed() -> None:
    desk = Desk()
    desk.wake(JUDGE)
    desk.ledger.fail_batch(BatchId(0), "disk full")
    with pytest.raises(BatchFailedError, match="disk full"):
        desk.activate(TUTOR).result()
    with pytest.raises(BatchFailedError, match="disk full"):
        desk.ledger.begin_batch(BatchId(1))
    with pytest.raises(BatchFailedError, match="disk full"):
        desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    assert desk.sleep(JUDGE).state is OperationState.FINISHED
    assert desk.state(JUDGE) == "SLEEPING"


def test_a_role_that_was_waking_when_the_run_failed_is_active_and_can_be_given_back() -> None:
    desk = Desk()
    waking = desk.activate(JUDGE)
    desk.ledger.fail_batch(BatchId(0), "disk full")
    desk.ledger.confirm(waking)
    assert waking.result() is not None
    desk.sleep(JUDGE)
    assert desk.state(JUDGE) == "SLEEPING"


def test_failing_a_batch_whose_begin_was_lost_still_fails_the_run() -> None:
    desk = Desk(begun=0)
    desk.ledger.fail_batch(BatchId(5), "producer died")
    with pytest.raises(BatchFailedError, match="batch 5 failed: producer died"):
        desk.ledger.is_committed(BatchId(5))


# --- bounded history --------------------------------------------------------------------


def test_what_is_older_than_the_remembered_batches_is_never_guessed() -> None:
    desk = Desk(begun=5, committed_limit=2)
    for batch in (0, 2, 3, 4):
        desk.ledger.commit_batch(BatchId(batch), acknowledged=True)
    assert desk.ledger.is_committed(BatchId(3))
    assert not desk.ledger.is_committed(BatchId(1)), "an open batch is never forgotten"
    for call in (
        lambda: desk.ledger.begin_batch(BatchId(0)),
        lambda: desk.ledger.fail_batch(BatchId(2), "late"),
        lambda: desk.ledger.commit_batch(BatchId(0), acknowledged=True),
    ):
        with pytest.raises(TransitionError, match="older than the last 2 committed batches"):
            call()
    with pytest.raises(CommitTimeoutError, match=r"batch 0 .*no longer known"):
        desk.ledger.is_committed(BatchId(0))


# --- events, status, setup --------------------------------------------------------------


def test_every_change_is_an_event_with_from_to_reason_token_and_batch() -> None:
    desk = Desk()
    desk.events.clear()
    token = desk.wake(JUDGE).token
    desk.ledger.block(desk.deactivate(JUDGE), "memory is still held")
    leases = [event for event in desk.events if event["kind"] == "lease.state"]
    assert [list(event.values()) for event in leases] == [
        ["lease.state", JUDGE, "SLEEPING", "ONLOADING", "granted by operation 'op-1'", token, 0],
        ["lease.state", JUDGE, "ONLOADING", "ACTIVE", "every replica is READY", token, 0],
        ["lease.state", JUDGE, "ACTIVE", "DRAINING", "given back by operation 'op-2'", token + 1, 0],
        ["lease.state", JUDGE, "DRAINING", "BLOCKED", "memory is still held", token + 1, 0],
    ]
    assert list(leases[0]) == ["kind", "role", "from", "to", "reason", "token", "batch"]
    operations = [event for event in desk.events if event["kind"] == "operation.state"]
    assert [list(event.values())[1:] for event in operations[:3]] == [
        ["op-1", "activate", JUDGE, 0, None, "WAITING", "asked for", None],
        ["op-1", "activate", JUDGE, 0, "WAITING", "CALLING", "the role gets its command", token],
        ["op-1", "activate", JUDGE, 0, "CALLING", "FINISHED", "every replica is READY", token],
    ]
    last = operations[-1]
    assert (last["from"], last["to"], last["token"]) == ("CALLING", "FAILED", token + 1)
    assert "memory is still held" in last["reason"]


def test_first_states_are_events_without_a_from() -> None:
    desk = Desk()
    first = {e["role"]: (e["from"], e["to"]) for e in desk.events if e["kind"] == "lease.state"}
    assert first[JUDGE] == (None, "SLEEPING")
    assert first[GUEST] == (None, "ACTIVE")
    assert desk.events[-1] == {
        "kind": "batch.state",
        "batch": 0,
        "from": None,
        "to": "PENDING",
        "reason": "begun",
    }


def test_status_tells_leases_batches_and_running_operations() -> None:
    desk = Desk()
    waking = desk.activate(JUDGE, operation_id="wake")
    desk.now = 12.0
    status = desk.ledger.status()
    assert status["failure"] is None
    assert status["leases"][JUDGE] == {
        "state": "ONLOADING",
        "reason": "granted by operation 'wake'",
        "token": waking.token,
        "batch": 0,
        "age_s": 12.0,
        "resident": False,
        "conflicts": [TUTOR, WRITER],
    }
    assert status["leases"][GUEST]["resident"] is True
    assert status["batches"] == [
        {"batch": 0, "state": "PENDING", "attempt": 1, "reason": "begun", "age_s": 12.0}
    ]
    assert status["running"] == [
        {"operation": "wake", "method": "activate", "role": JUDGE, "batch": 0, "state": "CALLING"}
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conflicts": {**CONFLICTS, GUEST: {JUDGE}}}, "'guest' conflicts with 'judge' but not"),
        ({"conflicts": {**CONFLICTS, GUEST: {GUEST}}}, "joins two different roles"),
        ({"conflicts": {WRITER: {JUDGE}, JUDGE: {WRITER}}}, "must name the same roles"),
        ({"opening": {**OPENING, JUDGE: OPENING[GUEST]}}, "'judge' shares devices and can't start ACTIVE"),
        ({"opening": {**OPENING, GUEST: ASLEEP}}, "'guest' shares no device and can't start SLEEPING"),
        (
            {"opening": {**OPENING, JUDGE: OpeningLease(state=LeaseState.DRAINING, reason="")}},
            "allowed: SLEEPING, BLOCKED",
        ),
    ],
)
def test_a_setup_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LeaseError, match=message):
        Desk(**changes)


# --- the trainer ------------------------------------------------------------------------

ACTOR, CRITIC = RoleName("actor"), RoleName("critic")
WITH_TRAINER: dict[str, Any] = {
    "conflicts": {**CONFLICTS, WRITER: {JUDGE, ACTOR}, ACTOR: {WRITER}, CRITIC: set[RoleName]()},
    "opening": {**OPENING, ACTOR: ASLEEP, CRITIC: OPENING[GUEST]},
    "training": {ACTOR, CRITIC},
}


def test_the_trainers_turn_keeps_the_roles_on_its_devices_asleep() -> None:
    desk = Desk(begun=2, **WITH_TRAINER)
    desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    desk.wake(ACTOR, batch=0)
    with pytest.raises(LeaseError, match=r"actor is ACTIVE \(batch 0, token \d+\); they must be SLEEPING"):
        desk.activate(WRITER, batch=1).result()
    desk.wake(JUDGE, batch=1)  # on devices that the trainer is not on
    desk.sleep(JUDGE, batch=1)
    desk.sleep(ACTOR, batch=0)
    desk.wake(WRITER, batch=1)


def test_the_trainer_waits_until_the_roles_on_its_devices_are_asleep() -> None:
    desk = Desk(begun=2, **WITH_TRAINER)
    desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    desk.wake(WRITER, batch=1)
    with pytest.raises(LeaseError, match="writer is ACTIVE"):
        desk.activate(ACTOR, batch=0).result()
    desk.ledger.block(desk.deactivate(WRITER, batch=1), "no proof")
    with pytest.raises(LeaseBlockedError, match="writer is BLOCKED"):
        desk.activate(ACTOR, batch=0).result()


def test_the_trainers_turn_is_before_its_batch_or_after_the_commit() -> None:
    desk = Desk(begun=0, **WITH_TRAINER)
    desk.wake(ACTOR)  # to load what it trains
    desk.sleep(ACTOR)
    desk.ledger.begin_batch(BatchId(0))
    with pytest.raises(
        LeaseError, match=r"PENDING.*; the trainer's turn is before its batch begins, or after"
    ):
        desk.activate(ACTOR).result()
    with pytest.raises(LeaseError, match="PENDING"):
        desk.activate(CRITIC).result()
    desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    desk.wake(ACTOR)
    assert desk.activate(CRITIC).state is OperationState.FINISHED, "it has devices of its own"


def test_nothing_is_committed_during_the_trainers_turn() -> None:
    desk = Desk(begun=2, **WITH_TRAINER)
    desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    desk.wake(ACTOR, batch=0)
    with pytest.raises(LeaseError, match="batch 1 is not committed: actor is ACTIVE"):
        desk.ledger.commit_batch(BatchId(1), acknowledged=True)


def test_after_a_failure_the_trainer_gives_its_turn_back_and_gets_no_other() -> None:
    desk = Desk(begun=2, **WITH_TRAINER)
    desk.ledger.commit_batch(BatchId(0), acknowledged=True)
    desk.wake(ACTOR, batch=0)
    desk.ledger.fail_batch(BatchId(1), "no verdict")
    desk.sleep(ACTOR, batch=0)
    with pytest.raises(BatchFailedError, match="no verdict"):
        desk.activate(ACTOR, batch=0).result()
