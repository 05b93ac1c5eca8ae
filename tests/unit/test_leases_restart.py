"""A ledger that takes over from one that died, a failed run that goes on, a new process of the job."""

from __future__ import annotations

from typing import Any

import pytest

from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import (
    BatchFailedError,
    JournalError,
    LeaseBlockedError,
    LeaseError,
    RolecallError,
    TransitionError,
)
from rolecall.ids import BatchId, OperationId, RoleName
from rolecall.leases.history import replay
from rolecall.leases.lease_state import LeaseState, OpeningLease
from rolecall.leases.ledger import Ledger
from rolecall.leases.operation import Command, Method, Operation, OperationState
from rolecall.testing.memory_journal import MemoryDisk, MemoryJournal

WRITER, JUDGE, GUEST, TRAINER = (RoleName(name) for name in ("writer", "judge", "guest", "trainer"))
SHARED = (WRITER, JUDGE, TRAINER)
CONFLICTS = {role: frozenset(SHARED) - {role} for role in SHARED} | {GUEST: frozenset[RoleName]()}
ZERO, ONE = BatchId(0), BatchId(1)
READY, ASLEEP = ReplicaState.READY, ReplicaState.SLEEPING


class Desk:
    """A ledger on a disk that outlives it."""

    def __init__(self, **options: Any) -> None:
        self.disk = MemoryDisk()
        self.options = options
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.ledger = self.take_over()

    def take_over(self, *, run: str = "this run", disk: MemoryDisk | None = None) -> Ledger:
        """Have another ledger begin by what the disk says."""
        opening = {
            role: OpeningLease(state=LeaseState.SLEEPING if others else LeaseState.ACTIVE, reason="measured")
            for role, others in CONFLICTS.items()
        }
        self.ledger = Ledger(
            conflicts=CONFLICTS,
            opening=opening,
            training={TRAINER},
            clock=lambda: 0.0,
            emit=lambda kind, /, **fields: self.events.append((kind, fields)),
            journal=MemoryJournal(disk or self.disk),
            run=run,
            **self.options,
        )
        return self.ledger

    def ask(self, method: Method, role: RoleName, name: str = "", **asked: Any) -> Operation:
        command = Command(method=method, role=role, **{"batch": ZERO, **asked})
        operation = self.ledger.open(OperationId(name or f"{method} {role}"), command)
        self.ledger.start(operation)
        return operation

    def wake(self, role: RoleName = JUDGE, name: str = "", **asked: Any) -> Operation:
        operation = self.ask(Method.ACTIVATE, role, name, **asked)
        self.ledger.confirm(operation)
        return operation

    def put_to_sleep(self, role: RoleName = JUDGE, name: str = "", **asked: Any) -> Operation:
        operation = self.ask(Method.DEACTIVATE, role, name, **asked)
        self.ledger.confirm(operation)
        return operation

    def resume(self, name: str = "resume") -> BatchId | None:
        operation = self.ledger.open(
            OperationId(name), Command(batch=None, method=Method.RESUME, role=RoleName(""))
        )
        self.ledger.start(operation)
        operation.result()
        return operation.resumed_at

    def settle(self, stands: ReplicaState | None = ASLEEP, *roles: RoleName) -> None:
        for role in roles or self.ledger.unaccounted:
            self.ledger.settle(role, self.ledger.ask(role), stands, "nobody answered")

    def lease(self, role: RoleName) -> dict[str, Any]:
        return self.ledger.status()["leases"][role]

    def state(self, role: RoleName) -> str:
        return self.lease(role)["state"]


def live(desk: Desk) -> None:
    """Let everything happen that a journal has to tell."""
    desk.wake(TRAINER, "early turn", batch=ONE)
    desk.put_to_sleep(TRAINER, "early end", batch=ONE)
    desk.ledger.begin_batch(ZERO)
    desk.wake(WRITER, "wake writer")
    desk.ask(Method.ACTIVATE, WRITER, "again")
    desk.ask(Method.ACTIVATE, JUDGE, "too early")
    desk.put_to_sleep(WRITER, "put writer")
    desk.ledger.commit_batch(ZERO, acknowledged=True)
    desk.wake(TRAINER, "turn")
    desk.put_to_sleep(TRAINER, "end")
    desk.ledger.begin_batch(ONE)
    desk.ledger.fail_batch(ONE, "disk full")
    assert desk.resume() == ONE
    assert desk.ledger.begin_batch(ONE) == 2
    desk.ledger.block(desk.ask(Method.ACTIVATE, JUDGE, "wake judge", batch=ONE), "no answer")


def test_wherever_a_coordinator_may_die_its_successor_knows_what_was_done() -> None:
    """Each record, and each with a torn one behind it; that any byte may tear is the journal's own test."""
    desk = Desk()
    live(desk)
    content = desk.disk.content
    ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
    committed = 0
    for kept in sorted({at for end in ends for at in (end, min(end + 9, len(content)))}):
        disk = MemoryDisk()
        disk.content = content[:kept]
        told = replay(MemoryJournal(disk).records())
        ledger = desk.take_over(disk=disk)
        past = ledger.history()
        assert past.batches == told.batches, "batches are as they were"
        assert past.last_token == told.last_token
        now = sum(batch.state.value == "COMMITTED" for batch in past.batches.values())
        assert now >= committed, "what is committed stays committed"
        committed = now
        assert {desk.state(role) for role in (WRITER, JUDGE)} == {"BLOCKED"}, "only proof is a way out"
        assert desk.state(TRAINER) in {"SLEEPING", "ACTIVE"}
        for role in ledger.unaccounted:
            token = ledger.ask(role)
            assert token > told.last_token, "no token is given twice"
            ledger.settle(role, token, ASLEEP, "")
        assert ledger.status()["running"] == [], "every operation has a fate"
        assert replay(MemoryJournal(disk).records()) == ledger.history()
    assert committed == 1


def test_what_somebody_hears_of_survives_a_power_cut() -> None:
    desk = Desk()
    desk.ledger.begin_batch(ZERO)
    sent = desk.ask(Method.ACTIVATE, WRITER)
    desk.disk.lose()
    assert desk.take_over().history().last_token == sent.token, "a command has left under it"
    desk.settle()
    desk.ledger.begin_batch(ZERO)
    desk.ledger.commit_batch(ZERO, acknowledged=True)
    desk.disk.lose()
    assert desk.take_over().is_committed(ZERO)
    desk.settle()
    desk.ledger.begin_batch(ONE)
    desk.ledger.fail_batch(ONE, "disk full")
    desk.disk.lose()
    with pytest.raises(BatchFailedError, match="disk full"):
        desk.take_over().begin_batch(ONE)
    desk.settle()
    assert desk.resume() == ONE
    desk.disk.lose()
    desk.take_over().begin_batch(ONE)


def test_the_journal_tells_what_the_ledger_knows_also_when_it_was_rewritten() -> None:
    desk = Desk(retired_limit=3, committed_limit=2)
    live(desk)
    before = desk.ledger.history()
    assert replay(MemoryJournal(desk.disk).records()).leases == before.leases
    journal = MemoryJournal(desk.disk)
    journal.rewrite([before.snapshot()])
    assert replay(journal.records()) == before
    desk.take_over()
    after = desk.ledger.history()
    assert (after.batches, after.operations, after.last_token) == (
        before.batches,
        before.operations,
        before.last_token,
    )
    assert (len(after.operations), len(after.batches)) == (3, 2)


def test_a_long_journal_is_rewritten_and_stays_bounded() -> None:
    disk = MemoryDisk()
    ledger = Ledger(
        conflicts={JUDGE: {WRITER}, WRITER: {JUDGE}},
        opening=dict.fromkeys((JUDGE, WRITER), OpeningLease(state=LeaseState.SLEEPING, reason="measured")),
        clock=lambda: 0.0,
        journal=MemoryJournal(disk, long_bytes=2_000),
        retired_limit=4,
        committed_limit=4,
    )
    longest = 0
    for number in range(300):
        ledger.begin_batch(BatchId(number))
        ledger.commit_batch(BatchId(number), acknowledged=True)
        longest = max(longest, len(disk.content))
    assert longest < 10_000
    assert replay(MemoryJournal(disk).records()).next_batch == 300


# --- fates, leases, batches after a restart -------------------------------------------------


def test_fates_outlive_the_coordinator() -> None:
    desk = Desk()
    live(desk)
    sent = desk.ledger.history().last_token
    desk.take_over()
    assert desk.ask(Method.ACTIVATE, WRITER, "wake writer").result() == 4
    with pytest.raises(LeaseError, match="writer is ACTIVE"):
        desk.ask(Method.ACTIVATE, JUDGE, "too early").result()
    with pytest.raises(LeaseBlockedError, match="no answer"):
        desk.ask(Method.ACTIVATE, JUDGE, "wake judge", batch=ONE).result()
    assert desk.resume() == ONE, "a repeat joins"
    assert desk.ledger.history().last_token == sent, "nobody was commanded"


def test_a_fence_outlives_the_coordinator_and_nobody_is_asked_about_it() -> None:
    desk = Desk()
    live(desk)
    desk.take_over()
    assert desk.ledger.unaccounted == (WRITER,)
    assert (desk.state(JUDGE), desk.lease(JUDGE)["reason"]) == ("BLOCKED", "no answer")
    with pytest.raises(TransitionError, match="was not asked"):
        desk.ledger.settle(JUDGE, desk.ledger.ask(WRITER), ASLEEP, "")


@pytest.mark.parametrize("was", ["SLEEPING", "ONLOADING", "ACTIVE", "DRAINING"])
@pytest.mark.parametrize("stands", [ASLEEP, READY, None])
def test_where_a_role_proves_to_stand_decides_on_its_lease_and_its_operation(
    was: str, stands: ReplicaState | None
) -> None:
    desk = Desk()
    desk.ledger.begin_batch(ZERO)
    if was != "SLEEPING":
        desk.ask(Method.ACTIVATE, JUDGE, "wake")
    if was in {"ACTIVE", "DRAINING"}:
        desk.ledger.confirm(desk.ask(Method.ACTIVATE, JUDGE, "wake"))
    if was == "DRAINING":
        desk.ask(Method.DEACTIVATE, JUDGE, "put")
    assert desk.state(JUDGE) == was
    sent = desk.ledger.history().last_token
    desk.take_over()
    assert (desk.state(JUDGE), desk.state(WRITER)) == ("BLOCKED", "BLOCKED")
    desk.settle(ASLEEP, WRITER)
    desk.settle(stands, JUDGE)
    held = stands is READY and was in {"ONLOADING", "ACTIVE"}
    expected = "SLEEPING" if stands is ASLEEP else "ACTIVE" if held else "BLOCKED"
    lease = desk.lease(JUDGE)
    assert lease["state"] == expected
    assert lease["batch"] == (
        0 if expected == "ACTIVE" or (expected != "SLEEPING" and was != "SLEEPING") else None
    )
    assert lease["token"] > sent
    assert "after the coordinator's restart" in lease["reason"]
    if was == "ONLOADING":
        wake = desk.ask(Method.ACTIVATE, JUDGE, "wake")
        assert wake.state is (OperationState.FINISHED if held else OperationState.FAILED)
        assert isinstance(wake.error, LeaseBlockedError) is (expected == "BLOCKED")
    if was == "DRAINING":
        put = desk.ask(Method.DEACTIVATE, JUDGE, "put")
        assert put.state is (OperationState.FINISHED if stands is ASLEEP else OperationState.FAILED)
    if expected == "SLEEPING":
        desk.ledger.commit_batch(ZERO, acknowledged=True)
    elif expected == "ACTIVE":
        desk.put_to_sleep(JUDGE, "give back")
        desk.ledger.commit_batch(ZERO, acknowledged=True)
    else:
        with pytest.raises(LeaseBlockedError):
            desk.ledger.commit_batch(ZERO, acknowledged=True)


def test_a_role_that_is_awake_for_a_batch_that_is_not_pending_is_fenced() -> None:
    desk = Desk()
    desk.ledger.begin_batch(ZERO)
    desk.wake()
    desk.ledger.fail_batch(ZERO, "disk full")
    desk.take_over()
    desk.settle(READY, JUDGE)
    assert desk.state(JUDGE) == "BLOCKED"
    assert "awake for batch 0, of which it is FAILED" in desk.lease(JUDGE)["reason"]


def test_two_roles_that_both_claim_to_be_awake_are_not_both_believed() -> None:
    desk = Desk()
    desk.ledger.begin_batch(ZERO)
    desk.wake()
    desk.take_over()
    desk.settle(READY, JUDGE, WRITER)
    assert (desk.state(JUDGE), desk.state(WRITER)) == ("ACTIVE", "BLOCKED")


@pytest.mark.parametrize("sent", ["onload", "turn", "offload", "no turn"])
def test_the_trainers_word_stands(sent: str) -> None:
    desk = Desk()
    if sent != "no turn":
        turn = desk.ask(Method.ACTIVATE, TRAINER, "turn")
        if sent != "onload":
            desk.ledger.confirm(turn)
    if sent == "offload":
        desk.ask(Method.DEACTIVATE, TRAINER, "end")
    desk.take_over()
    assert TRAINER not in desk.ledger.unaccounted
    assert desk.state(TRAINER) == ("ACTIVE" if sent in {"onload", "turn"} else "SLEEPING")
    assert desk.state(GUEST) == "ACTIVE"
    if sent == "onload":
        assert desk.ask(Method.ACTIVATE, TRAINER, "turn").result() is not None
    if sent == "offload":
        assert desk.ask(Method.DEACTIVATE, TRAINER, "end").state is OperationState.FINISHED


def test_until_a_role_has_accounted_nothing_that_needs_it_goes_on() -> None:
    desk = Desk()
    desk.ledger.begin_batch(ZERO)
    desk.take_over()
    for call in (
        lambda: desk.ask(Method.ACTIVATE, JUDGE, "a").result(),
        lambda: desk.ask(Method.RECONCILE, JUDGE, "b", batch=None).result(),
        lambda: desk.ledger.commit_batch(ZERO, acknowledged=True),
        lambda: desk.resume("c"),
    ):
        with pytest.raises(LeaseError, match="the coordinator was restarted"):
            call()


def test_a_second_death_before_a_role_has_answered_forgets_nothing() -> None:
    desk = Desk()
    desk.ledger.begin_batch(ZERO)
    wake = desk.ask(Method.ACTIVATE, JUDGE, "wake")
    first = desk.take_over().ask(JUDGE)
    journal = MemoryJournal(desk.disk)
    journal.rewrite([desk.ledger.history().snapshot()])
    second = desk.take_over().ask(JUDGE)
    assert wake.token is not None
    assert wake.token < first < second
    desk.ledger.settle(JUDGE, second, READY, "")
    assert desk.ask(Method.ACTIVATE, JUDGE, "wake").result() == second


def test_a_journal_of_other_roles_is_refused() -> None:
    desk = Desk()
    with pytest.raises(JournalError, match="of a job with roles"):
        Ledger(
            conflicts={GUEST: frozenset()},
            opening={GUEST: OpeningLease(state=LeaseState.ACTIVE, reason="measured")},
            clock=lambda: 0.0,
            journal=MemoryJournal(desk.disk),
            run="this run",
        )


# --- after a failure ------------------------------------------------------------------------


def failed_run() -> Desk:
    desk = Desk()
    desk.ledger.begin_batch(ZERO)
    desk.ledger.commit_batch(ZERO, acknowledged=True)
    for batch in (1, 2):
        desk.ledger.begin_batch(BatchId(batch))
    desk.ledger.fail_batch(BatchId(2), "disk full")
    return desk


def test_a_failed_run_goes_on_with_the_lowest_batch_that_is_not_committed() -> None:
    desk = failed_run()
    with pytest.raises(BatchFailedError):
        desk.ledger.begin_batch(ONE)
    assert desk.resume() == ONE
    assert not desk.ledger.is_committed(ONE), "who waits for it may wait again"
    assert [desk.ledger.begin_batch(BatchId(number)) for number in (1, 2, 3)] == [2, 2, 1]
    assert desk.ledger.begin_batch(ONE) == 2, "a repeat is no attempt"
    desk.ledger.commit_batch(ONE, acknowledged=True, attempt=2)
    assert desk.resume() == ONE, "a repeat joins"
    assert desk.resume("another") == BatchId(2)
    with pytest.raises(TransitionError, match="never made again"):
        desk.ledger.begin_batch(ONE)


@pytest.mark.parametrize("stands", ["ACTIVE", "BLOCKED", "trainer"])
def test_it_does_not_go_on_while_a_role_is_not_asleep(stands: str) -> None:
    desk = Desk()
    role = TRAINER if stands == "trainer" else JUDGE
    if role == JUDGE:
        desk.ledger.begin_batch(ZERO)
    operation = desk.ask(Method.ACTIVATE, role, "wake")
    if stands == "BLOCKED":
        desk.ledger.block(operation, "no answer")
    else:
        desk.ledger.confirm(operation)
    desk.ledger.fail_batch(ZERO, "disk full")
    with pytest.raises(LeaseError, match=rf"the run can't go on: {role} is .*rolecall reconcile ROLE"):
        desk.resume()
    assert desk.ledger.status()["failure"] is not None


def test_what_belongs_to_an_earlier_attempt_comes_too_late() -> None:
    desk = failed_run()
    desk.resume()
    desk.ledger.begin_batch(ONE)
    with pytest.raises(TransitionError, match="attempt 1 of batch 1 is over"):
        desk.ledger.commit_batch(ONE, acknowledged=True, attempt=1)
    with pytest.raises(TransitionError, match="attempt 1 of batch 1 is over"):
        desk.ledger.fail_batch(ONE, "the first attempt's", attempt=1)
    with pytest.raises(LeaseError, match="attempt 1 of batch 1 is over"):
        desk.ask(Method.ACTIVATE, JUDGE, "late", batch=ONE, attempt=1).result()
    desk.wake(JUDGE, "wake", batch=ONE, attempt=2)
    with pytest.raises(LeaseError, match="attempt 1 of batch 1 is over"):
        desk.ask(Method.DEACTIVATE, JUDGE, "late too", batch=ONE, attempt=1).result()
    desk.put_to_sleep(JUDGE, "put", batch=ONE, attempt=2)
    desk.ledger.commit_batch(ONE, acknowledged=True, attempt=2)
    with pytest.raises(TransitionError):
        desk.ledger.commit_batch(ONE, acknowledged=True, attempt=1)


def test_a_late_failure_of_an_attempt_that_has_failed_does_not_fail_the_run_again() -> None:
    desk = failed_run()
    desk.resume()
    desk.ledger.fail_batch(BatchId(2), "disk full", attempt=1)
    assert desk.ledger.begin_batch(BatchId(2)) == 2


# --- a new process of the job ---------------------------------------------------------------


def test_a_new_process_goes_on_where_the_former_one_was() -> None:
    desk = Desk()
    desk.ledger.begin_batch(ZERO)
    desk.ledger.commit_batch(ZERO, acknowledged=True)
    desk.ledger.begin_batch(ONE)
    desk.ask(Method.ACTIVATE, JUDGE, "wake", batch=ONE)
    last = desk.ledger.history().last_token
    desk.events.clear()
    desk.take_over(run="the next run")
    assert desk.ledger.unaccounted == ()
    assert [desk.state(role) for role in (WRITER, JUDGE, TRAINER, GUEST)] == ["SLEEPING"] * 3 + ["ACTIVE"]
    failed = [fields for kind, fields in desk.events if kind == "batch.state"]
    assert [(f["batch"], f["from"], f["to"]) for f in failed] == [(1, "PENDING", "FAILED")]
    assert desk.ledger.is_committed(ZERO)
    assert desk.resume() == ONE
    assert desk.ledger.begin_batch(ONE) == 2
    with pytest.raises(LeaseError, match="the job's process ended"):
        desk.ask(Method.ACTIVATE, JUDGE, "wake", batch=ONE).result()
    token = desk.wake(JUDGE, "wake again", batch=ONE, attempt=2).token
    assert token is not None
    assert token > last


# --- a disk that refuses --------------------------------------------------------------------


def test_a_decision_that_can_not_be_written_is_not_made_and_may_be_asked_for_again() -> None:
    desk = Desk()
    desk.ledger.begin_batch(ZERO)
    before = desk.ledger.history()
    desk.disk.full = True
    calls = (
        lambda: desk.ledger.begin_batch(ONE),
        lambda: desk.ask(Method.ACTIVATE, JUDGE, "wake"),
        lambda: desk.ledger.commit_batch(ZERO, acknowledged=True),
        lambda: desk.ledger.fail_batch(ZERO, "disk full"),
        desk.resume,
    )
    for call in calls:
        with pytest.raises(JournalError):
            call()
        assert desk.ledger.history() == before
    desk.disk.full = False
    assert desk.wake(name="wake").token == 2
    assert replay(MemoryJournal(desk.disk).records()) == desk.ledger.history()


@pytest.mark.parametrize("trouble", ["full", "stuck"])
def test_news_that_can_not_be_written_counts_and_is_written_before_the_next_decision(trouble: str) -> None:
    desk = Desk()
    desk.ledger.begin_batch(ZERO)
    operation = desk.ask(Method.ACTIVATE, JUDGE, "wake")
    setattr(desk.disk, trouble, True)
    desk.ledger.block(operation, "no answer")
    assert desk.state(JUDGE) == "BLOCKED"
    with pytest.raises(JournalError):
        desk.ledger.begin_batch(ONE)
    setattr(desk.disk, trouble, False)
    desk.ledger.begin_batch(ONE)
    assert replay(MemoryJournal(desk.disk).records()) == desk.ledger.history()
    desk.take_over()
    assert desk.lease(JUDGE)["reason"] == "no answer"


def test_every_error_that_ends_an_operation_comes_back_as_what_it_was() -> None:
    desk = Desk()
    desk.ledger.begin_batch(ZERO)
    desk.ledger.fail_batch(ZERO, "disk full")
    asked = [
        ("failed", {"method": Method.ACTIVATE, "role": JUDGE}),
        ("nobody", {"method": Method.ACTIVATE, "role": RoleName("nobody")}),
    ]
    errors: list[RolecallError | None] = [desk.ask(name=name, **command).error for name, command in asked]
    desk.take_over()
    again = [desk.ask(name=name, **command).error for name, command in asked]
    assert [(type(e), str(e)) for e in again] == [(type(e), str(e)) for e in errors]
    assert [type(e) for e in again] == [BatchFailedError, LeaseError]
