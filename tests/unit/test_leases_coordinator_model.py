"""Any order of calls, cancellations, repeats and time against the coordinator, with faulty roles.

Roles answer late, never, twice as told, wrongly or with an error. The truth that is checked is
the roles' own: a role is physically awake from the arrival of its onload until its offload has
really been carried out, whatever it answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from enum import StrEnum
from typing import Any

from attrs import frozen
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rolecall.engines.proof import Proof
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult, ReplicaOutcome
from rolecall.errors import RolecallError
from rolecall.ids import BatchId, EngineId, FencingToken, OperationId, RoleName
from rolecall.leases.coordinator import LeaseCoordinator
from rolecall.leases.lease_state import LeaseState, OpeningLease
from rolecall.leases.operation import Command, Method
from rolecall.leases.reconciliation import Claim
from rolecall.testing.memory_journal import MemoryDisk, MemoryJournal
from rolecall.testing.virtual_time import VirtualTimeLoop

# a-b and b-c share devices, a-c do not, d shares with nobody.
A, B, C, D = (RoleName(name) for name in "abcd")
CONFLICTS: dict[RoleName, set[RoleName]] = {A: {B}, B: {A, C}, C: {B}, D: set()}
SHARED = (A, B, C)
TIMEOUT_S = 10.0

roles = st.sampled_from([A, B, C, D])
picks = st.integers(0, 999)
ages = st.sampled_from([0, 0, 0, 0, 1, -1])
"""How many batches before the newest one a call is about; most are about the newest."""


class Manner(StrEnum):
    """How a role answers a command that it has carried out, or not."""

    GOOD = "does it and says so"
    LOST = "does it and never says so"
    NEVER = "does nothing and never answers"
    UNCONFIRMED = "does nothing and says so"
    RAISES = "does nothing and raises"
    RAISES_AFTER = "does it and raises"
    WRONG_ROLE = "does nothing and answers for another"
    WRONG_STATE = "does nothing and reports its true state as confirmed"
    EMPTY = "does nothing and names no replica"


CLAIM = Claim(proof=Proof.PROCESS_GONE, by="operator@host")


@frozen
class Behaviour:
    manner: Manner
    delay_s: float


# Mostly well-behaved, or every run would soon be one of fences only.
behaviours = st.builds(
    Behaviour,
    st.one_of(*[st.just(Manner.GOOD)] * 4, st.sampled_from(Manner)),
    st.sampled_from([0.0, 0.5, 0.5, 3.0, 9.5, 10.5, 25.0]),
)


class World:
    """What is physically true, and the checks on every command that arrives."""

    def __init__(self) -> None:
        self.awake: set[RoleName] = set()
        self.tokens: list[FencingToken] = []
        self.behaviour: dict[RoleName, Behaviour] = {role: Behaviour(Manner.GOOD, 0.5) for role in SHARED}

    def arrived(self, role: RoleName, token: FencingToken) -> None:
        assert not self.tokens or token > self.tokens[-1], "tokens grow and no command is sent twice"
        self.tokens.append(token)

    def wake(self, role: RoleName) -> None:
        assert not (CONFLICTS[role] & self.awake), f"{role} wakes beside {self.awake}"
        self.awake.add(role)


class FaultyRole:
    """Behaves as the world says at the moment when the command arrives."""

    def __init__(self, role: RoleName, world: World) -> None:
        self._role = role
        self._world = world
        self._busy = asyncio.Lock()

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        self._world.arrived(self._role, token)
        behaviour = self._world.behaviour[self._role]
        self._world.wake(self._role)  # from here on it may hold memory, whatever comes of it
        async with self._busy:
            await asyncio.sleep(behaviour.delay_s)
        return await self._reply(behaviour.manner, ReplicaState.READY, ReplicaState.ONLOADING)

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._free(token)

    async def vacate(self, token: FencingToken, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        return await self._free(token)

    async def _free(self, token: FencingToken) -> LifecycleResult:
        self._world.arrived(self._role, token)
        behaviour = self._world.behaviour[self._role]
        async with self._busy:
            await asyncio.sleep(behaviour.delay_s)
            if behaviour.manner in {Manner.GOOD, Manner.LOST, Manner.RAISES_AFTER}:
                self._world.awake.discard(self._role)
        return await self._reply(behaviour.manner, ReplicaState.SLEEPING, ReplicaState.DRAINING)

    async def account(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        self._world.arrived(self._role, token)
        behaviour = self._world.behaviour[self._role]
        async with self._busy:
            await asyncio.sleep(behaviour.delay_s)
        true = ReplicaState.READY if self._role in self._world.awake else ReplicaState.SLEEPING
        return await self._reply(behaviour.manner, true, true)

    async def lift_fences(self, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        return LifecycleResult(role=self._role, outcomes=())

    async def prepare(self, timeout_s: float) -> None:
        """There is nothing to do ahead."""

    async def _reply(self, manner: Manner, done: ReplicaState, undone: ReplicaState) -> LifecycleResult:
        if manner in {Manner.LOST, Manner.NEVER}:
            await asyncio.get_running_loop().create_future()
        if manner in {Manner.RAISES, Manner.RAISES_AFTER}:
            raise ConnectionError("reset")
        if manner is Manner.EMPTY:
            return LifecycleResult(role=self._role, outcomes=())
        state = undone if manner in {Manner.UNCONFIRMED, Manner.WRONG_STATE} else done
        outcome = ReplicaOutcome(
            engine=EngineId("m/replica-0"), state=state, confirmed=manner is not Manner.UNCONFIRMED
        )
        other = RoleName("z") if manner is Manner.WRONG_ROLE else self._role
        return LifecycleResult(role=other, outcomes=(outcome,))


def move(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """One call of a method of the machine."""
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


moves = st.one_of(
    move("behave", role=st.sampled_from(SHARED), behaviour=behaviours),
    *[move("time_passes", seconds=st.just(1.0))] * 3,
    move("time_passes", seconds=st.sampled_from([0.0, 0.5, 1.0, 4.0, 10.0, 30.0])),
    *[move("ask_sensibly", role=st.sampled_from(SHARED))] * 4,
    move("ask_anything", method=st.sampled_from([Method.ACTIVATE, Method.DEACTIVATE]), role=roles, age=ages),
    *[move("ask_anything", method=st.just(Method.ACTIVATE), role=st.sampled_from(SHARED), age=st.just(0))]
    * 3,
    move("repeat", pick=picks),
    move("give_up", pick=picks),
    move("begin", age=ages),
    move("commit", age=st.just(0), acknowledged=st.just(True)),
    move("commit", age=ages, acknowledged=st.booleans()),
    move("fail", age=ages),
    *[move("reconcile", role=st.sampled_from(SHARED))] * 2,
    *[move("go_on")] * 2,
    move("restart"),
    move("wait", age=ages, timeout_s=st.sampled_from([0.0, 2.0, 20.0, 200.0])),
)


class CoordinatorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.world = World()
        self.fences: set[str] = set()
        self.lifted: set[str] = set()
        self.ends: set[tuple[str, BatchId]] = set()
        self.asked: list[tuple[OperationId, Command, list[asyncio.Task[Any]]]] = []
        self.waiters: list[tuple[BatchId, float, asyncio.Task[tuple[Any, float]]]] = []
        self.acknowledged: set[BatchId] = set()
        self.roles = {role: FaultyRole(role, self.world) for role in SHARED}
        self.disk = MemoryDisk()
        self.life = 0
        self.coordinator = self.make()
        self.run(self.coordinator.begin_batch(BatchId(0)))
        self.calm = 0
        self.newest = 0

    def make(self) -> LeaseCoordinator:
        """The next coordinator of the run, which knows what the disk does."""
        self.life += 1
        life = self.life

        def emit(kind: str, /, **fields: Any) -> None:
            if life == self.life:
                self.listen(kind, **fields)

        return LeaseCoordinator(
            self.roles,
            conflicts=CONFLICTS,
            opening={
                role: OpeningLease(
                    state=LeaseState.SLEEPING if others else LeaseState.ACTIVE, reason="measured"
                )
                for role, others in CONFLICTS.items()
            },
            timeout_s=TIMEOUT_S,
            emit=emit,
            clock=self.loop.time,
            journal=MemoryJournal(self.disk, long_bytes=4_000),
            run="this run",
        )

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Run a call to its end and let all others run as far as they can without time passing."""

        async def step() -> Any:
            try:
                return await call
            finally:
                for _ in range(8):
                    await asyncio.sleep(0)

        return self.loop.run_until_complete(step())

    def spawn(self, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(call)
        # Nobody may ask how it ended. asyncio would print that when the task is collected, in the middle of
        # anything: inside ast.parse, printing (which parses, too) ends in a SystemError on Python 3.11.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.run(asyncio.sleep(0))
        return task

    def listen(self, kind: str, /, **fields: Any) -> None:
        if kind == "lease.state" and fields["from"] == "BLOCKED" != fields["to"]:
            assert "reconciled by" in fields["reason"] or "restart" in fields["reason"], "a fence stays"
            self.lifted.add(fields["role"])
            self.fences.discard(fields["role"])
        if kind != "batch.state":
            return
        self.ends.add((fields["to"], fields["batch"]))
        if fields["to"] == "COMMITTED":
            assert fields["batch"] in self.acknowledged, "committed before the acknowledgement"
            assert not self.world.awake, "committed while a role is awake"

    @initialize(calm=st.integers(0, 20), first=roles)
    def settle_in(self, calm: int, first: RoleName) -> None:
        self.calm = calm
        self.ask_sensibly(first)

    # One rule: of several, hypothesis leaves most out of most runs, and without the callers' asking
    # nothing happens in a run.
    @rule(move=moves)
    def step(self, move: tuple[str, dict[str, Any]]) -> None:
        name, arguments = move
        getattr(self, name)(**arguments)

    # --- the roles ----------------------------------------------------------------------

    def behave(self, role: RoleName, behaviour: Behaviour) -> None:
        self.world.behaviour[role] = behaviour

    def time_passes(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    # --- the callers --------------------------------------------------------------------

    def ask_sensibly(self, role: RoleName) -> None:
        """What a well-behaved caller would ask next."""
        subject = min((CONFLICTS[role] | {role}) & self.world.awake, default=role)
        awake = subject in self.world.awake
        lease = self.run(self.coordinator.status())["leases"][subject]
        holder = self.newest if lease["batch"] is None else lease["batch"]
        self.ask(Method.DEACTIVATE if awake else Method.ACTIVATE, subject, BatchId(holder))

    def ask_anything(self, method: Method, role: RoleName, age: int) -> None:
        self.ask(method, role, self.batch(age))

    def reconcile(self, role: RoleName) -> None:
        self.ask(Method.RECONCILE, role, None)

    def go_on(self) -> None:
        self.ask(Method.RESUME, RoleName(""), None)

    def restart(self) -> None:
        """SIGKILL: its callers and its own work end, what roles do for it goes on, the next one begins."""
        dead = self.coordinator
        callers = [task for _, _, tasks in self.asked for task in tasks]
        for task in (
            *callers,
            *(task for _, _, task in self.waiters),
            *dead._tasks.values(),
            dead._accounting,
        ):
            if task is not None:
                task.cancel()
        self.waiters.clear()
        self.coordinator = self.make()
        self.run(asyncio.sleep(0))
        self.fences.clear()

    def ask(self, method: Method, role: RoleName, batch: BatchId | None) -> None:
        operation_id = OperationId(f"op-{len(self.asked)}")
        self.asked.append((operation_id, Command(batch=batch, method=method, role=role), []))
        self.repeat(-1)

    def repeat(self, pick: int) -> None:
        operation_id, command, callers = self.asked[pick % len(self.asked)]
        match command.method:
            case Method.ACTIVATE:
                call = self.coordinator.activate(command.holder, command.role, operation_id)
            case Method.DEACTIVATE:
                call = self.coordinator.deactivate(command.holder, command.role, operation_id)
            case Method.RECONCILE:
                call = self.coordinator.reconcile(command.role, operation_id, claim=CLAIM)
            case Method.RESUME:
                call = self.coordinator.resume(operation_id)
        callers.append(self.spawn(call))

    def give_up(self, pick: int) -> None:
        callers = [task for _, _, callers in self.asked for task in callers if not task.done()]
        if callers:
            callers[pick % len(callers)].cancel()
            self.run(asyncio.sleep(0))

    def batch(self, age: int) -> BatchId:
        return BatchId(max(0, self.newest - age))

    def begin(self, age: int) -> None:
        self.attempt(self.coordinator.begin_batch(self.batch(age)))

    def commit(self, age: int, acknowledged: bool) -> None:
        batch = self.batch(age)
        if acknowledged:
            self.acknowledged.add(batch)
        self.attempt(self.coordinator.commit_batch(batch, acknowledged=acknowledged))
        if ("COMMITTED", self.newest) in self.ends:
            self.newest += 1
            self.attempt(self.coordinator.begin_batch(BatchId(self.newest)))

    def fail(self, age: int) -> None:
        if len(self.asked) >= self.calm:  # or most runs would soon be failed ones
            self.attempt(self.coordinator.fail_batch(self.batch(age), "a stage failed"))

    def wait(self, age: int, timeout_s: float) -> None:
        batch = self.batch(age)

        async def wait() -> tuple[Any, float]:
            try:
                await self.coordinator.wait_committed(batch, timeout_s)
                fate: Any = None
            except RolecallError as error:
                fate = error
            return fate, self.loop.time()

        self.waiters.append((batch, self.loop.time() + timeout_s, self.spawn(wait())))

    def attempt(self, call: Coroutine[Any, Any, None]) -> None:
        async def attempted() -> None:
            try:
                await call
            except RolecallError:
                return  # refused; what a refusal may say is the ledger's test

        self.run(attempted())

    # --- always -------------------------------------------------------------------------

    @invariant()
    def no_waking_role_is_believed_asleep_and_a_fence_stays(self) -> None:
        self.lifted.clear()
        leases = self.run(self.coordinator.status())["leases"]
        asleep = {role for role in SHARED if leases[role]["state"] == "SLEEPING"}
        assert not (asleep & self.world.awake)
        blocked = {role for role in SHARED if leases[role]["state"] == "BLOCKED"}
        assert self.fences <= blocked
        assert all(leases[role]["reason"] for role in blocked)
        self.fences = blocked - self.lifted

    @invariant()
    def joined_callers_agree(self) -> None:
        for _, _, callers in self.asked:
            done = [task for task in callers if task.done() and not task.cancelled()]
            fates = {repr(task.exception() or task.result()) for task in done}
            assert len(fates) <= 1
            errors = [error for task in done if (error := task.exception())]
            assert all(isinstance(error, RolecallError) for error in errors)

    def teardown(self) -> None:
        """However it went, nobody is left waiting: not a caller, not a waiter."""
        self.run(asyncio.sleep(2 * TIMEOUT_S + 200.0))
        for _, _, callers in self.asked:
            assert all(task.done() for task in callers)
        for batch, latest_s, waiter in self.waiters:
            assert waiter.done()
            fate, ended_s = waiter.result()
            assert ended_s <= latest_s + 1e-6, "waited past its timeout"
            assert fate is not None or ("COMMITTED", batch) in self.ends
            assert fate is None or f"batch {batch}" in str(fate)
        status = self.run(self.coordinator.status())
        assert status["running"] == []
        json.dumps(status)
        lost = asyncio.all_tasks(self.loop)
        assert all(task.get_name().startswith("call: ") for task in lost), "only roles may hang"
        for task in lost:
            task.cancel()
        self.run(asyncio.sleep(0))
        self.loop.close()


CoordinatorMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
TestCoordinator = CoordinatorMachine.TestCase
