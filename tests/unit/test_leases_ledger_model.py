"""Any order of calls and answers against the ledger, with the rules checked after every step.

The checks know nothing of lease states. They go by what is true outside: a role holds devices
from the moment it is commanded to wake until it is proved asleep.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rolecall.engines.proof import Proof
from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import (
    BatchFailedError,
    LeaseBlockedError,
    LeaseError,
    OperationReuseError,
    RolecallError,
    TransitionError,
)
from rolecall.ids import BatchId, OperationId, RoleName
from rolecall.leases.history import replay
from rolecall.leases.lease_state import TRANSITIONS, LeaseState, OpeningLease
from rolecall.leases.ledger import Ledger
from rolecall.leases.operation import Command, Method, Operation, OperationState
from rolecall.leases.reconciliation import Claim
from rolecall.testing.memory_journal import MemoryDisk, MemoryJournal

# a-b and b-c share devices, a-c do not, d shares with nobody; t is the trainer's and shares with a.
A, B, C, D, T = (RoleName(name) for name in "abcdt")
CONFLICTS: dict[RoleName, set[RoleName]] = {A: {B, T}, B: {A, C}, C: {B}, D: set(), T: {A}}
SHARED = (A, B, C, T)

roles = st.sampled_from([A, B, C, D, T])
picks = st.integers(0, 999)
ages = st.sampled_from([0, 0, 0, 0, 1, -1])
"""How many batches before the newest one a call is about; most are about the newest."""


def move(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """One call of a method of the machine."""
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


METHODS = [Method.ACTIVATE, Method.DEACTIVATE]

moves = st.one_of(
    *[move("ask_sensibly", role=st.sampled_from(SHARED), at_once=st.just(True))] * 4,
    move("ask_sensibly", role=roles, at_once=st.just(False)),
    move("ask_anything", method=st.sampled_from(METHODS), role=roles, age=ages, at_once=st.booleans()),
    *[
        move(
            "ask_anything",
            method=st.just(Method.ACTIVATE),
            role=st.sampled_from(SHARED),
            age=st.just(0),
            at_once=st.just(True),
        )
    ]
    * 3,
    move("start_one", pick=picks),
    move("ask_again", pick=picks, method=st.sampled_from(METHODS), role=roles, age=ages),
    *[move("answer", pick=picks, proved=st.just(True))] * 4,
    move("answer", pick=picks, proved=st.booleans()),
    move("answer_late_or_early", pick=picks, proved=st.booleans()),
    move("begin", age=ages),
    move("commit", age=st.just(0), acknowledged=st.just(True)),
    move("commit", age=ages, acknowledged=st.booleans()),
    move("fail", age=ages, number=st.integers(0, 99)),
    move("reconcile", role=roles, found=st.booleans()),
    move("go_on"),
    move("restart"),
    *[move("account", pick=picks, truly=st.just(True))] * 3,
    move("account", pick=picks, truly=st.booleans()),
)

CLAIM = Claim(proof=Proof.PROCESS_GONE, by="operator@host")


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        opening = {
            role: OpeningLease(state=LeaseState.SLEEPING if others else LeaseState.ACTIVE, reason="measured")
            for role, others in CONFLICTS.items()
        }
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.opening = opening
        self.disk = MemoryDisk()
        self.ledger = self.make()
        self.holding: set[RoleName] = set()
        self.holder: dict[RoleName, BatchId] = {}
        self.unknown: set[RoleName] = set()
        self.unaccounted: set[RoleName] = set()
        self.tokens = [0]
        self.operations: list[Operation] = []
        self.sent: set[OperationId] = set()
        self.fates: dict[OperationId, Any] = {}
        self.pending: set[BatchId] = set()
        self.attempts: dict[BatchId, int] = {}
        self.committed: set[BatchId] = set()
        self.failure: tuple[BatchId, str] | None = None
        self.calm = 0
        self.newest = 0

    def make(self) -> Ledger:
        """A ledger of the present run, which begins or goes on by what the disk says."""
        return Ledger(
            conflicts=CONFLICTS,
            opening=self.opening,
            training={T},
            clock=lambda: 0.0,
            wall_clock=lambda: 0.0,
            emit=self.listen,
            journal=MemoryJournal(self.disk, long_bytes=4_000),
            run="this run",
        )

    def listen(self, kind: str, /, **fields: Any) -> None:
        self.events.append((kind, fields))

    # One rule: of several, hypothesis leaves most out of most runs, and without the callers' asking
    # nothing happens in a run.
    @rule(move=moves)
    def step(self, move: tuple[str, dict[str, Any]]) -> None:
        name, arguments = move
        getattr(self, name)(**arguments)

    # --- calls --------------------------------------------------------------------------

    @initialize(calm=st.integers(0, 30), first=roles)
    def open_first_batch(self, calm: int, first: RoleName) -> None:
        self.calm = calm
        self.begin(0)
        self.ask_sensibly(first, at_once=True)

    @property
    def fenced(self) -> set[RoleName]:
        """Nobody knows what they hold."""
        return self.unknown | self.unaccounted

    def batch(self, age: int) -> BatchId:
        return BatchId(max(0, self.newest - age))

    def in_state(self, state: OperationState) -> list[Operation]:
        return [operation for operation in self.operations if operation.state is state]

    def ask_sensibly(self, role: RoleName, at_once: bool) -> None:
        """What a well-behaved caller would ask next."""
        subject = min((CONFLICTS[role] | {role}) & self.holding, default=role)
        awake = subject in self.holding
        wanted = self.newest - 1 if subject == T else self.newest
        holder = self.ledger.status()["leases"][subject]["batch"] if awake else wanted
        method = Method.DEACTIVATE if awake else Method.ACTIVATE
        self.ask_anything(method, subject, self.newest - holder, at_once)

    def ask_anything(self, method: Method, role: RoleName, age: int, at_once: bool) -> None:
        command = Command(batch=self.batch(age), method=method, role=role)
        operation = self.ledger.open(OperationId(f"op-{len(self.operations)}"), command)
        self.operations.append(operation)
        if at_once:
            self.start(operation)

    def start_one(self, pick: int) -> None:
        waiting = self.in_state(OperationState.WAITING)
        self.start((waiting or self.operations)[pick % len(waiting or self.operations)])

    def ask_again(self, pick: int, method: Method, role: RoleName, age: int) -> None:
        operation = self.operations[pick % len(self.operations)]
        assert self.ledger.open(operation.id, operation.command) is operation, "a repeat joins"
        command = Command(batch=self.batch(age), method=method, role=role)
        if command != operation.command:
            with pytest.raises(OperationReuseError):
                self.ledger.open(operation.id, command)

    def start(self, operation: Operation) -> None:
        before = self.ledger.status()
        was = operation.state
        waits_for = self.ledger.start(operation)
        if waits_for is not None:
            assert operation.command.method is Method.DEACTIVATE
            assert waits_for.state is OperationState.CALLING
            assert waits_for.command.role == operation.command.role
            assert self.ledger.status() == before
            return
        if was is OperationState.WAITING and operation.state is OperationState.CALLING:
            self.sending(operation)
        else:
            assert self.ledger.status()["leases"] == before["leases"]

    def sending(self, operation: Operation) -> None:
        """A command goes out: is it allowed to?"""
        role, batch = operation.command.role, operation.command.batch
        assert role in SHARED, "resident roles are never commanded"
        assert operation.id not in self.sent, "an operation is sent once"
        self.sent.add(operation.id)
        assert operation.token is not None
        assert operation.token > self.tokens[-1], "tokens grow"
        self.tokens.append(operation.token)
        assert role not in self.fenced, "a fence is never passed"
        if operation.command.method is Method.ACTIVATE:
            assert self.failure is None, "after a failure only deactivations"
            assert (batch in self.pending) is (role != T), (
                "training waits for the commit, all others for none"
            )
            assert not (CONFLICTS[role] & (self.holding | self.fenced)), "two roles on one device"
            assert role not in self.holding
            self.holding.add(role)
            self.holder[role] = batch
        else:
            assert role in self.holding
            assert self.holder[role] == batch, "only the batch that holds a lease gives it back"

    def answer(self, pick: int, proved: bool) -> None:
        calling = [
            operation
            for operation in self.in_state(OperationState.CALLING)
            if operation.command.role not in self.unaccounted
        ]
        if not calling:
            return
        operation = calling[pick % len(calling)]
        role = operation.command.role
        if not proved:
            self.ledger.block(operation, "no proof")
            self.unknown.add(role)
            return
        self.ledger.confirm(operation)
        if operation.command.method is Method.DEACTIVATE:
            self.holding.discard(role)

    def answer_late_or_early(self, pick: int, proved: bool) -> None:
        operation = self.operations[pick % len(self.operations)]
        if operation.state is OperationState.CALLING or operation.command.role not in SHARED:
            return
        before = self.ledger.status()
        with pytest.raises(TransitionError):
            self.ledger.confirm(operation) if proved else self.ledger.block(operation, "late")
        assert self.ledger.status() == before, "it changes nothing"

    # --- batches ------------------------------------------------------------------------

    def begin(self, age: int) -> None:
        batch = self.batch(age)
        if self.failure is not None:
            with pytest.raises(BatchFailedError, match=self.failure[1]):
                self.ledger.begin_batch(batch)
        elif batch in self.committed:
            with pytest.raises(TransitionError):
                self.ledger.begin_batch(batch)
        else:
            again = batch not in self.pending
            self.attempts[batch] = self.attempts.get(batch, 0) + again
            self.pending.add(batch)
            assert self.ledger.begin_batch(batch) == self.attempts[batch]

    def commit(self, age: int, acknowledged: bool) -> None:
        batch = self.batch(age)
        if batch in self.committed:
            self.ledger.commit_batch(batch, acknowledged=acknowledged)
            return
        if self.failure is not None:
            with pytest.raises(BatchFailedError, match=self.failure[1]):
                self.ledger.commit_batch(batch, acknowledged=acknowledged)
        elif batch in self.pending and acknowledged and not self.holding | self.fenced:
            self.ledger.commit_batch(batch, acknowledged=acknowledged)
            self.pending.discard(batch)
            self.committed.add(batch)
            self.newest = max(self.newest, batch + 1)
            self.begin(0)
        else:
            with pytest.raises(RolecallError):
                self.ledger.commit_batch(batch, acknowledged=acknowledged)

    def fail(self, age: int, number: int) -> None:
        if len(self.operations) < self.calm:
            return  # or most runs would soon be failed ones
        batch = self.batch(age)
        reason = f"failure-{number}"
        if batch in self.committed:
            with pytest.raises(TransitionError):
                self.ledger.fail_batch(batch, reason)
            return
        self.ledger.fail_batch(batch, reason)
        if self.failure is None:
            self.failure = (batch, reason)
            self.attempts.setdefault(batch, 1)
            self.pending.clear()

    # --- after a failure, after a death --------------------------------------------------

    def reconcile(self, role: RoleName, found: bool) -> None:
        """An operator's claim, found true or not."""
        operation = self.ask_for(Command(batch=None, method=Method.RECONCILE, role=role, claim=CLAIM))
        if role in self.unaccounted:
            assert operation.state is OperationState.FAILED, "it has not been asked yet"
            return
        assert operation.state is OperationState.CALLING
        assert self.ledger.may_lift(operation) is (role in self.unknown)
        if role in self.unknown:
            assert operation.token is not None
            assert operation.token > self.tokens[-1], "tokens grow"
            self.tokens.append(operation.token)
        if found:
            self.ledger.lift(operation, {})
            if role in self.unknown:
                self.unknown.discard(role)
                self.holding.discard(role)
        else:
            self.ledger.keep_fence(operation, "process 4711 is left")
            self.sent.add(operation.id)

    def go_on(self) -> None:
        """Have the run go on after its failure."""
        operation = self.ask_for(Command(batch=None, method=Method.RESUME, role=RoleName("")))
        if self.holding | self.fenced:
            assert operation.state is OperationState.FAILED, "only while every shared role sleeps"
            return
        assert operation.state is OperationState.FINISHED
        assert operation.resumed_at == self.newest, "the lowest batch that is not committed"
        self.failure = None

    def ask_for(self, command: Command) -> Operation:
        operation = self.ledger.open(OperationId(f"op-{len(self.operations)}"), command)
        self.operations.append(operation)
        assert self.ledger.start(operation) is None
        return operation

    def restart(self) -> None:
        """The coordinator dies, and another one takes over: what roles do is unknown until they account."""
        self.ledger = self.make()
        self.operations = [self.ledger.open(known.id, known.command) for known in self.operations]
        self.unaccounted = set(SHARED) - {T} - self.unknown
        assert set(self.ledger.unaccounted) == self.unaccounted
        draining = self.ledger.status()["leases"][T]["state"] == "SLEEPING"
        if draining:  # the trainer's word stands, also one that was just given
            self.holding.discard(T)

    def account(self, pick: int, truly: bool) -> None:
        """A role says where it stands, or proves nothing."""
        if not self.unaccounted:
            return
        role = sorted(self.unaccounted)[pick % len(self.unaccounted)]
        token = self.ledger.ask(role)
        assert token > self.tokens[-1], "tokens grow"
        self.tokens.append(token)
        stands = ReplicaState.READY if role in self.holding else ReplicaState.SLEEPING
        self.ledger.settle(role, token, stands if truly else None, "no answer")
        self.unaccounted.discard(role)
        match self.ledger.status()["leases"][role]["state"]:
            case "ACTIVE":
                assert truly
                assert role in self.holding
                assert not CONFLICTS[role] & (self.holding - self.unknown), "two roles on one device"
                assert self.holder[role] in self.pending, "awake for an open batch"
            case "SLEEPING":
                assert truly
                assert role not in self.holding
            case blocked:
                assert blocked == "BLOCKED"
                assert not truly or role in self.holding
                self.unknown.add(role)

    # --- always -------------------------------------------------------------------------

    @invariant()
    def waiters_would_hear_the_truth(self) -> None:
        for number in range(max(0, self.newest - 2), self.newest + 2):
            batch = BatchId(number)
            if batch in self.committed:
                assert self.ledger.is_committed(batch)
            elif self.failure is None:
                assert not self.ledger.is_committed(batch)
            else:
                with pytest.raises(
                    BatchFailedError, match=f"batch {self.failure[0]} failed: {self.failure[1]}"
                ):
                    self.ledger.is_committed(batch)

    @invariant()
    def nobody_shares_a_device(self) -> None:
        for role in self.holding:
            assert not (CONFLICTS[role] & self.holding)

    @invariant()
    def states_tell_who_may_hold_devices(self) -> None:
        leases = self.ledger.status()["leases"]
        assert leases[D]["state"] == "ACTIVE"
        assert {role for role in SHARED if leases[role]["state"] != "SLEEPING"} == self.holding | self.fenced
        assert {role for role in SHARED if leases[role]["state"] == "BLOCKED"} == self.fenced

    @invariant()
    def fates_are_final(self) -> None:
        for operation in self.operations:
            if not operation.ended:
                assert operation.id not in self.fates
                continue
            error = operation.error
            fate = (type(error), str(error)) if error else (operation.token, operation.resumed_at)
            assert self.fates.setdefault(operation.id, fate) == fate, "also after a restart"
            if error and operation.id in self.sent and "restart" not in str(error):
                assert isinstance(error, LeaseBlockedError)
            if error:
                assert isinstance(error, LeaseError | BatchFailedError)

    def teardown(self) -> None:
        """The journal and the events tell the whole story: each role's changes form a path of the table."""
        assert replay(MemoryJournal(self.disk).records()) == self.ledger.history()
        path: dict[str, LeaseState] = {}
        for kind, fields in self.events:
            if kind == "lease.state" and fields["from"] is not None:
                before, after = LeaseState(fields["from"]), LeaseState(fields["to"])
                assert path[fields["role"]] is before
                assert after in TRANSITIONS[before]
                assert fields["reason"]
            if kind == "lease.state":
                path[fields["role"]] = LeaseState(fields["to"])


LedgerMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=50, deadline=None)
TestLedger = LedgerMachine.TestCase
