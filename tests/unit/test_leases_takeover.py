"""A coordinator that dies, in virtual time: its successor asks the roles, and a repeated call ends well."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult, ReplicaOutcome
from rolecall.errors import CommitTimeoutError, JournalError, LeaseBlockedError, LeaseError, StaleTokenError
from rolecall.ids import BatchId, EngineId, FencingToken, OperationId, RoleName
from rolecall.leases.coordinator import LeaseCoordinator
from rolecall.leases.lease_state import LeaseState, OpeningLease
from rolecall.leases.repeating import UnreachableError, repeating
from rolecall.testing.memory_journal import MemoryDisk, MemoryJournal
from rolecall.testing.virtual_time import run_virtual

WRITER, JUDGE = RoleName("writer"), RoleName("judge")
ZERO = BatchId(0)
TIMEOUT_S = 100.0


def op(name: str) -> OperationId:
    return OperationId(name)


class Role:
    """Carries commands out one at a time, each in ``delay_s``, and refuses those from the past."""

    def __init__(self, role: RoleName) -> None:
        self.role = role
        self.delay_s = 1.0
        self.silent = False
        self.stands = ReplicaState.SLEEPING
        self.calls: list[str] = []
        self._highest = 0
        self._busy = asyncio.Lock()

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._act("onload", token, ReplicaState.READY)

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._act("offload", token, ReplicaState.SLEEPING)

    async def account(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._act("account", token, None)

    async def _act(self, name: str, token: FencingToken, state: ReplicaState | None) -> LifecycleResult:
        self._admit(token)
        self.calls.append(name)
        async with self._busy:
            self._admit(token)
            await asyncio.sleep(self.delay_s)
            self.stands = state or self.stands
        if self.silent:
            await asyncio.Event().wait()
        outcome = ReplicaOutcome(engine=EngineId("m/replica-0"), state=self.stands, confirmed=True)
        return LifecycleResult(role=self.role, outcomes=(outcome,))

    def _admit(self, token: FencingToken) -> None:
        if token < self._highest:
            raise StaleTokenError(f"{token} is lower than {self._highest}")
        self._highest = token


class Scene:
    """Two roles on the same devices, and the coordinators that come one after the other."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.roles = {role: Role(role) for role in (WRITER, JUDGE)}
        self.judge = self.roles[JUDGE]
        self.coordinator = self.successor()

    def successor(self) -> LeaseCoordinator:
        asleep = OpeningLease(state=LeaseState.SLEEPING, reason="measured")
        self.coordinator = LeaseCoordinator(
            self.roles,  # type: ignore[arg-type]
            conflicts={WRITER: {JUDGE}, JUDGE: {WRITER}},
            opening={WRITER: asleep, JUDGE: asleep},
            timeout_s=TIMEOUT_S,
            clock=lambda: asyncio.get_running_loop().time(),
            journal=MemoryJournal(self.disk),
            run="this run",
        )
        return self.coordinator

    async def state(self, role: RoleName = JUDGE) -> str:
        return (await self.coordinator.status())["leases"][role]["state"]


def play(scenario: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario in virtual time, batch 0 being open."""

    async def main() -> None:
        scene = Scene()
        await scene.coordinator.begin_batch(ZERO)
        await scenario(scene)

    run_virtual(main())


async def given_up(call: Coroutine[Any, Any, Any]) -> None:
    """Make a call that is on its way when its caller, or the coordinator, goes."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0.5)
    task.cancel()


def test_an_activate_in_which_the_coordinator_died_is_joined_by_its_repeat() -> None:
    async def scenario(scene: Scene) -> None:
        scene.judge.delay_s = 30.0
        await given_up(scene.coordinator.activate(ZERO, JUDGE, op("wake")))
        scene.successor()
        assert await scene.coordinator.activate(ZERO, JUDGE, op("wake")) > 1
        assert scene.judge.calls == ["onload", "account"], "sent once"
        assert await scene.state() == "ACTIVE"
        await scene.coordinator.deactivate(ZERO, JUDGE, op("put"))
        await scene.coordinator.commit_batch(ZERO, acknowledged=True)

    play(scenario)


def test_whatever_needs_the_leases_waits_for_the_account_and_nothing_else_does() -> None:
    async def scenario(scene: Scene) -> None:
        scene.judge.delay_s = 30.0
        coordinator = scene.successor()
        assert await scene.state() == "BLOCKED"
        assert await coordinator.begin_batch(ZERO) == 1
        with pytest.raises(CommitTimeoutError, match="batch 0 was not committed within 5 s"):
            await coordinator.wait_committed(ZERO, 5.0)
        await coordinator.commit_batch(ZERO, acknowledged=True)
        assert asyncio.get_running_loop().time() >= 30.0
        assert scene.judge.calls == ["account"], "asked once, by whoever came first"

    play(scenario)


def test_a_role_that_gives_no_account_stays_fenced_with_the_reason() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.coordinator.activate(ZERO, JUDGE, op("wake"))
        scene.judge.silent = True
        coordinator = scene.successor()
        with pytest.raises(LeaseBlockedError, match="account had no answer within 100 s"):
            await coordinator.activate(ZERO, WRITER, op("next"))
        assert await scene.state() == "BLOCKED"
        assert await scene.state(WRITER) == "SLEEPING"
        with pytest.raises(LeaseError, match="judge is BLOCKED"):
            await coordinator.commit_batch(ZERO, acknowledged=True)

    play(scenario)


def test_a_command_of_the_dead_coordinator_that_still_waits_is_refused_by_the_role() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.coordinator.activate(ZERO, JUDGE, op("wake"))
        scene.judge.delay_s = 30.0
        former = asyncio.ensure_future(scene.coordinator.deactivate(ZERO, JUDGE, op("put")))
        await asyncio.sleep(0.5)
        scene.successor()
        await scene.coordinator.deactivate(ZERO, JUDGE, op("put"))
        assert scene.judge.calls == ["onload", "offload", "account"]
        with pytest.raises(StaleTokenError):
            await scene.judge.onload(FencingToken(2), 1.0)
        await former
        assert await scene.state() == "SLEEPING"

    play(scenario)


def test_roles_are_not_asked_while_that_can_not_be_written_down() -> None:
    async def scenario(scene: Scene) -> None:
        scene.successor()
        scene.disk.full = True
        for name in ("first", "second"):
            with pytest.raises(JournalError):
                await scene.coordinator.activate(ZERO, JUDGE, op(name))
        assert scene.judge.calls == []
        scene.disk.full = False
        assert await scene.coordinator.activate(ZERO, JUDGE, op("first")) > 0

    play(scenario)


def test_an_operation_that_could_not_be_written_down_may_be_repeated() -> None:
    async def scenario(scene: Scene) -> None:
        scene.disk.full = True
        with pytest.raises(JournalError):
            await scene.coordinator.activate(ZERO, JUDGE, op("wake"))
        assert await scene.state() == "SLEEPING"
        scene.disk.full = False
        assert await scene.coordinator.activate(ZERO, JUDGE, op("wake")) > 0
        assert scene.judge.calls == ["onload"]

    play(scenario)


def test_a_failed_run_goes_on_and_its_waiters_with_it() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.coordinator.fail_batch(ZERO, "disk full")
        assert await scene.coordinator.resume(op("resume")) == ZERO
        waiter = asyncio.ensure_future(scene.coordinator.wait_committed(ZERO, 50.0))
        assert await scene.coordinator.begin_batch(ZERO) == 2
        await scene.coordinator.commit_batch(ZERO, acknowledged=True, attempt=2)
        await waiter
        assert await scene.coordinator.resume(op("resume")) == ZERO, "a repeat joins"

    play(scenario)


# --- repeating ------------------------------------------------------------------------------


def test_a_call_is_repeated_until_somebody_answers() -> None:
    answers: list[Callable[[], Awaitable[str]]] = []

    async def gone() -> str:
        raise UnreachableError("nobody there")

    async def there() -> str:
        return "done"

    async def refused() -> str:
        raise LeaseError("no")

    async def next_answer() -> str:
        return await answers.pop(0)()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        answers.extend([gone] * 8 + [there])
        assert await repeating("it", next_answer) == "done"
        assert 5.0 < loop.time() < 20.0, "with pauses"
        answers.extend([gone, refused])
        with pytest.raises(LeaseError, match="no"):
            await repeating("it", next_answer)
        began_s = loop.time()
        with pytest.raises(UnreachableError):
            await repeating("it", gone, within_s=10.0)
        assert loop.time() - began_s <= 10.0

    run_virtual(scenario())
