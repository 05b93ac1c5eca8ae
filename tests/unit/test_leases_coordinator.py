"""The coordinator in time: deadlines, late answers, callers that give up, waiters.

Runs in virtual time: minutes of deadlines pass at once, and a waiter that nothing will ever wake
is an error at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult, ReplicaOutcome
from rolecall.errors import (
    BatchFailedError,
    CommitTimeoutError,
    LeaseBlockedError,
    LeaseError,
    OperationReuseError,
    StaleTokenError,
)
from rolecall.ids import BatchId, EngineId, FencingToken, OperationId, RoleName
from rolecall.leases.coordinator import LeaseCoordinator
from rolecall.leases.lease_state import LeaseState, OpeningLease
from rolecall.testing.virtual_time import run_virtual

WRITER, JUDGE, GUEST = (RoleName(name) for name in ("writer", "judge", "guest"))
ZERO, ONE = BatchId(0), BatchId(1)
TIMEOUT_S = 180.0


def op(name: str) -> OperationId:
    return OperationId(name)


def answer(
    role: RoleName, state: ReplicaState, *, confirmed: bool = True, detail: str = ""
) -> LifecycleResult:
    outcome = ReplicaOutcome(engine=EngineId("m/replica-0"), state=state, confirmed=confirmed, detail=detail)
    return LifecycleResult(role=role, outcomes=(outcome,))


class ScriptedRole:
    """A role that takes ``delay_s`` and then answers by ``respond``; by default it does as told."""

    def __init__(self, role: RoleName) -> None:
        self.role = role
        self.delay_s = 1.0
        self.respond: Callable[[ReplicaState], Any] | None = None
        self.calls: list[tuple[str, FencingToken, float]] = []
        self.prepared: list[float] = []
        self.finished = 0

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._act("onload", token, timeout_s, ReplicaState.READY)

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._act("offload", token, timeout_s, ReplicaState.SLEEPING)

    async def prepare(self, timeout_s: float) -> None:
        self.prepared.append(timeout_s)
        await asyncio.sleep(self.delay_s)

    async def _act(
        self, name: str, token: FencingToken, timeout_s: float, expected: ReplicaState
    ) -> LifecycleResult:
        self.calls.append((name, token, timeout_s))
        await asyncio.sleep(self.delay_s)
        self.finished += 1
        return self.respond(expected) if self.respond else answer(self.role, expected)

    @property
    def commands(self) -> list[str]:
        return [name for name, _, _ in self.calls]


class Scene:
    """A coordinator over two roles that share devices and one that has its own."""

    def __init__(self) -> None:
        self.writer, self.judge = ScriptedRole(WRITER), ScriptedRole(JUDGE)
        asleep = OpeningLease(state=LeaseState.SLEEPING, reason="measured")
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.coordinator = LeaseCoordinator(
            {WRITER: self.writer, JUDGE: self.judge},
            conflicts={WRITER: {JUDGE}, JUDGE: {WRITER}, GUEST: frozenset()},
            opening={
                WRITER: asleep,
                JUDGE: asleep,
                GUEST: OpeningLease(state=LeaseState.ACTIVE, reason="measured"),
            },
            timeout_s=TIMEOUT_S,
            emit=lambda kind, /, **fields: self.events.append((kind, fields)),
            clock=lambda: asyncio.get_running_loop().time(),
        )

    async def command(self, name: str, role: RoleName, operation: OperationId) -> None:
        """Cause the role's ``onload`` or ``offload``."""
        method = self.coordinator.activate if name == "onload" else self.coordinator.deactivate
        await method(ZERO, role, operation)

    async def state(self, role: RoleName) -> str:
        return (await self.coordinator.status())["leases"][role]["state"]


def play(scenario: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario in virtual time, batch 0 being open."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert loop.time() < 1.0
        scene = Scene()
        await scene.coordinator.begin_batch(ZERO)
        await scenario(scene)

    run_virtual(main())


def raised(results: list[Any], kind: type[Exception]) -> list[str]:
    assert [type(result) for result in results] == [kind] * len(results)
    return [str(result) for result in results]


def at_once(call: Coroutine[Any, Any, None]) -> None:
    """Run a call that waits for nothing from a plain callback."""
    with contextlib.suppress(StopIteration):
        call.send(None)


async def soon() -> None:
    """Let every task run as far as it can without time passing."""
    for _ in range(10):
        await asyncio.sleep(0)


# --- commands ---------------------------------------------------------------------------


def test_roles_take_turns_under_growing_tokens() -> None:
    async def scenario(scene: Scene) -> None:
        granted = [await scene.coordinator.activate(ZERO, WRITER, op("1"))]
        await scene.coordinator.deactivate(ZERO, WRITER, op("2"))
        granted.append(await scene.coordinator.activate(ZERO, JUDGE, op("3")))
        await scene.coordinator.deactivate(ZERO, JUDGE, op("4"))
        await scene.coordinator.commit_batch(ZERO, acknowledged=True)
        calls = scene.writer.calls + scene.judge.calls
        assert [name for name, _, _ in calls] == ["onload", "offload"] * 2
        tokens = [token for _, token, _ in calls]
        assert tokens == sorted(set(tokens)), "a command's token is higher than all before it"
        assert granted == [tokens[0], tokens[2]]

    play(scenario)


def test_the_role_gets_a_shorter_deadline_than_the_coordinator_waits() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.coordinator.activate(ZERO, WRITER, op("1"))
        assert 0.9 * TIMEOUT_S < scene.writer.calls[0][2] < TIMEOUT_S

    play(scenario)


def test_of_two_conflicting_activations_in_the_same_moment_one_is_granted() -> None:
    async def scenario(scene: Scene) -> None:
        results = await asyncio.gather(
            scene.coordinator.activate(ZERO, WRITER, op("1")),
            scene.coordinator.activate(ZERO, JUDGE, op("2")),
            return_exceptions=True,
        )
        assert isinstance(results[0], int)
        assert isinstance(results[1], LeaseError)
        assert scene.judge.calls == []

    play(scenario)


def test_a_resident_role_needs_no_lifecycle_and_no_time() -> None:
    async def scenario(scene: Scene) -> None:
        started_s = asyncio.get_running_loop().time()
        await scene.coordinator.activate(ZERO, GUEST, op("1"))
        await scene.coordinator.deactivate(ZERO, GUEST, op("2"))
        assert asyncio.get_running_loop().time() == started_s
        assert await scene.state(GUEST) == "ACTIVE"

    play(scenario)


# --- no proof, no confirmation ----------------------------------------------------------


def no_reply(_: ReplicaState) -> Any:
    return None


def for_another_role(expected: ReplicaState) -> Any:
    return answer(GUEST, expected)


def about_no_replica(_: ReplicaState) -> Any:
    return LifecycleResult(role=JUDGE, outcomes=())


def unconfirmed(expected: ReplicaState) -> Any:
    return answer(JUDGE, ReplicaState.FAILED, confirmed=False, detail="memory is still held")


def another_state(expected: ReplicaState) -> Any:
    return answer(JUDGE, ReplicaState.DRAINING)


def one_of_two(expected: ReplicaState) -> Any:
    good, bad = answer(JUDGE, expected), unconfirmed(expected)
    return LifecycleResult(role=JUDGE, outcomes=good.outcomes + bad.outcomes)


def stale_token(_: ReplicaState) -> Any:
    raise StaleTokenError("token 1 is lower than 9")


def broken_connection(_: ReplicaState) -> Any:
    raise ConnectionResetError("reset by peer")


def cancelled(_: ReplicaState) -> Any:
    raise asyncio.CancelledError


@pytest.mark.parametrize("command", ["onload", "offload"])
@pytest.mark.parametrize(
    ("respond", "reason"),
    [
        (no_reply, "answered None, which is no lifecycle result"),
        (for_another_role, "the answer is about 'guest'"),
        (about_no_replica, "the answer names no replica"),
        (unconfirmed, "m/replica-0 is FAILED: memory is still held"),
        (another_state, "m/replica-0 is DRAINING instead of"),
        (one_of_two, "memory is still held"),
        (stale_token, "StaleTokenError: token 1 is lower than 9"),
        (broken_connection, "ConnectionResetError: reset by peer"),
        (cancelled, "was cancelled on the role's side"),
    ],
)
def test_whatever_does_not_prove_success_leaves_the_lease_blocked(
    command: str, respond: Callable[[ReplicaState], Any], reason: str
) -> None:
    async def scenario(scene: Scene) -> None:
        if command == "offload":
            await scene.coordinator.activate(ZERO, JUDGE, op("wake"))
        scene.judge.respond = respond
        with pytest.raises(LeaseBlockedError, match=reason):
            await scene.command(command, JUDGE, op("x"))
        assert await scene.state(JUDGE) == "BLOCKED"
        with pytest.raises(LeaseBlockedError, match="judge is BLOCKED"):
            await scene.coordinator.activate(ZERO, WRITER, op("y"))
        assert scene.writer.calls == []
        assert scene.judge.commands.count(command) == 1, "never sent twice"

    play(scenario)


def test_a_role_that_raised_is_the_cause_of_the_error() -> None:
    async def scenario(scene: Scene) -> None:
        scene.judge.respond = broken_connection
        with pytest.raises(LeaseBlockedError) as caught:
            await scene.coordinator.activate(ZERO, JUDGE, op("x"))
        assert isinstance(caught.value.__cause__, ConnectionResetError)

    play(scenario)


@pytest.mark.parametrize("command", ["onload", "offload"])
def test_a_timeout_blocks_and_the_late_answer_is_logged_but_frees_nothing(
    command: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(scene: Scene) -> None:
        loop = asyncio.get_running_loop()
        if command == "offload":
            await scene.coordinator.activate(ZERO, JUDGE, op("wake"))
        scene.judge.delay_s = TIMEOUT_S + 60
        started_s = loop.time()
        with pytest.raises(LeaseBlockedError, match="had no answer within 180 s"):
            await scene.command(command, JUDGE, op("x"))
        assert loop.time() - started_s == pytest.approx(TIMEOUT_S)
        done_before = scene.judge.finished
        await asyncio.sleep(61)
        assert scene.judge.finished == done_before + 1, "the call was not cancelled"
        assert await scene.state(JUDGE) == "BLOCKED"

    with caplog.at_level(logging.WARNING):
        play(scenario)
    late = [record.getMessage() for record in caplog.records if "after its deadline" in record.getMessage()]
    assert len(late) == 1
    assert "the lease stays BLOCKED" in late[0]
    assert "LifecycleResult" in late[0]


def test_a_late_exception_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(scene: Scene) -> None:
        scene.judge.delay_s, scene.judge.respond = TIMEOUT_S + 1, broken_connection
        with pytest.raises(LeaseBlockedError):
            await scene.coordinator.activate(ZERO, JUDGE, op("x"))
        await asyncio.sleep(2)

    with caplog.at_level(logging.WARNING):
        play(scenario)
    assert any("ConnectionResetError('reset by peer')" in record.getMessage() for record in caplog.records)


def test_the_clean_up_of_a_blocked_role_is_told_precisely_why_it_stays() -> None:
    async def scenario(scene: Scene) -> None:
        scene.judge.respond = unconfirmed
        with pytest.raises(LeaseBlockedError):
            await scene.coordinator.activate(ZERO, JUDGE, op("wake"))
        await scene.coordinator.fail_batch(ZERO, "could not wake the judge")
        with pytest.raises(
            LeaseBlockedError,
            match=r"can't deactivate judge for batch 0: judge is BLOCKED \(batch 0, token \d+: .*memory is",
        ):
            await scene.coordinator.deactivate(ZERO, JUDGE, op("clean-up"))
        assert scene.judge.commands == ["onload"]

    play(scenario)


# --- repeats and callers that give up ---------------------------------------------------


def test_concurrent_repeats_join_one_call() -> None:
    async def scenario(scene: Scene) -> None:
        tokens = await asyncio.gather(
            *(scene.coordinator.activate(ZERO, JUDGE, op("wake")) for _ in range(5))
        )
        assert len(set(tokens)) == 1
        assert await scene.coordinator.activate(ZERO, JUDGE, op("wake")) == tokens[0]
        assert scene.judge.commands == ["onload"]

    play(scenario)


def test_all_who_joined_a_failing_operation_get_its_error_and_so_do_later_repeats() -> None:
    async def scenario(scene: Scene) -> None:
        scene.judge.respond = unconfirmed
        calls = [scene.coordinator.activate(ZERO, JUDGE, op("wake")) for _ in range(3)]
        results: list[Any] = list(await asyncio.gather(*calls, return_exceptions=True))
        results += await asyncio.gather(
            scene.coordinator.activate(ZERO, JUDGE, op("wake")), return_exceptions=True
        )
        assert len(set(raised(results, LeaseBlockedError))) == 1
        assert scene.judge.commands == ["onload"]

    play(scenario)


def test_an_operation_id_of_another_command_is_refused_while_it_runs() -> None:
    async def scenario(scene: Scene) -> None:
        first = asyncio.create_task(scene.coordinator.activate(ZERO, JUDGE, op("x")))
        await soon()
        with pytest.raises(OperationReuseError):
            await scene.coordinator.activate(ZERO, WRITER, op("x"))
        await first

    play(scenario)


def test_a_caller_that_gives_up_does_not_cancel_the_operation() -> None:
    async def scenario(scene: Scene) -> None:
        caller = asyncio.create_task(scene.coordinator.activate(ZERO, JUDGE, op("wake")))
        await soon()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert await scene.state(JUDGE) == "ONLOADING"
        token = await scene.coordinator.activate(ZERO, JUDGE, op("wake"))
        assert token == scene.judge.calls[0][1]
        assert scene.judge.commands == ["onload"]
        assert scene.judge.finished == 1

    play(scenario)


def test_a_caller_that_gives_up_before_the_command_was_sent_does_not_cancel_it_either() -> None:
    async def scenario(scene: Scene) -> None:
        caller = asyncio.create_task(scene.coordinator.activate(ZERO, JUDGE, op("wake")))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.sleep(2)
        assert caller.cancelled()
        assert await scene.state(JUDGE) == "ACTIVE"

    play(scenario)


def test_one_of_several_joined_callers_gives_up_and_the_others_do_not_notice() -> None:
    async def scenario(scene: Scene) -> None:
        callers = [asyncio.create_task(scene.coordinator.activate(ZERO, JUDGE, op("wake"))) for _ in range(3)]
        await soon()
        callers[0].cancel()
        results = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1] == results[2] == scene.judge.calls[0][1]

    play(scenario)


def test_clean_up_after_a_cancelled_activate_waits_for_the_onload_and_then_drains() -> None:
    async def scenario(scene: Scene) -> None:
        scene.judge.delay_s = 30
        caller = asyncio.create_task(scene.coordinator.activate(ZERO, JUDGE, op("wake")))
        await asyncio.sleep(1)
        caller.cancel()
        await scene.coordinator.fail_batch(ZERO, "interrupted")
        await scene.coordinator.deactivate(ZERO, JUDGE, op("clean-up"))
        assert scene.judge.commands == ["onload", "offload"]
        assert await scene.state(JUDGE) == "SLEEPING"

    play(scenario)


def test_a_clean_up_that_is_given_up_while_it_waits_is_still_carried_out() -> None:
    async def scenario(scene: Scene) -> None:
        scene.judge.delay_s = 30
        waking = asyncio.create_task(scene.coordinator.activate(ZERO, JUDGE, op("wake")))
        await soon()
        clean_up = asyncio.create_task(scene.coordinator.deactivate(ZERO, JUDGE, op("clean-up")))
        await soon()
        clean_up.cancel()
        await waking
        await asyncio.sleep(31)
        assert await scene.state(JUDGE) == "SLEEPING"

    play(scenario)


# --- waiters ----------------------------------------------------------------------------


def waiting(scene: Scene, batch: BatchId, timeout_s: float = 1000.0) -> asyncio.Task[None]:
    return asyncio.create_task(scene.coordinator.wait_committed(batch, timeout_s))


def test_waiters_leave_with_the_commit_even_those_that_came_before_the_batch_began() -> None:
    async def scenario(scene: Scene) -> None:
        waiters = [waiting(scene, ZERO), waiting(scene, ZERO), waiting(scene, ONE)]
        await asyncio.sleep(5)
        await scene.coordinator.commit_batch(ZERO, acknowledged=True)
        await asyncio.gather(*waiters[:2])
        assert not waiters[2].done()
        await scene.coordinator.begin_batch(ONE)
        await scene.coordinator.commit_batch(ONE, acknowledged=True)
        await waiters[2]
        await scene.coordinator.wait_committed(ZERO, 0.0)
        assert asyncio.get_running_loop().time() == 5.0, "woken at once, not by their timeouts"

    play(scenario)


def test_a_refused_commit_wakes_nobody() -> None:
    async def scenario(scene: Scene) -> None:
        waiter = waiting(scene, ZERO)
        await scene.coordinator.activate(ZERO, JUDGE, op("wake"))
        with pytest.raises(LeaseError):
            await scene.coordinator.commit_batch(ZERO, acknowledged=True)
        await soon()
        assert not waiter.done()

    play(scenario)


def test_the_first_failure_wakes_present_and_future_waiters_with_its_reason() -> None:
    async def scenario(scene: Scene) -> None:
        present = [waiting(scene, ZERO), waiting(scene, ONE)]
        await asyncio.sleep(5)
        await scene.coordinator.fail_batch(ZERO, "judge stage: reward is NaN")
        await scene.coordinator.fail_batch(ZERO, "and then the sink failed")
        future = [waiting(scene, ZERO), waiting(scene, BatchId(8))]
        messages = raised(await asyncio.gather(*present, *future, return_exceptions=True), BatchFailedError)
        assert all("batch 0 failed: judge stage: reward is NaN" in message for message in messages)
        assert asyncio.get_running_loop().time() == 5.0, "woken at once, not by their timeouts"
        assert "batch 8" in messages[3]

    play(scenario)


def test_who_waits_hears_of_a_failure_also_if_the_run_is_resumed_in_the_same_moment() -> None:
    async def scenario(scene: Scene) -> None:
        waiter = waiting(scene, ZERO)
        await soon()
        await asyncio.gather(
            scene.coordinator.resume(op("again")), scene.coordinator.fail_batch(ZERO, "its driver is gone")
        )
        with pytest.raises(BatchFailedError, match="its driver is gone"):
            await asyncio.wait_for(waiter, 1.0)

    play(scenario)


def test_a_waiter_never_outstays_its_timeout_and_says_which_batch_and_why() -> None:
    async def scenario(scene: Scene) -> None:
        loop = asyncio.get_running_loop()
        await scene.coordinator.activate(ZERO, JUDGE, op("wake"))
        started_s = loop.time()
        with pytest.raises(
            CommitTimeoutError,
            match=r"batch 0 was not committed within 30 s: it is PENDING since 31\.0 s; "
            r"judge is ACTIVE \(batch 0",
        ):
            await scene.coordinator.wait_committed(ZERO, 30.0)
        assert loop.time() - started_s == pytest.approx(30.0)
        with pytest.raises(
            CommitTimeoutError, match="batch 1 was not committed within 2 s: it has not begun"
        ):
            await scene.coordinator.wait_committed(ONE, 2.0)

    play(scenario)


@pytest.mark.parametrize("timeout_s", [0.0, -3.0, float("nan")])
def test_a_timeout_that_has_passed_looks_once(timeout_s: float) -> None:
    async def scenario(scene: Scene) -> None:
        with pytest.raises(CommitTimeoutError):
            await scene.coordinator.wait_committed(ZERO, timeout_s)
        await scene.coordinator.commit_batch(ZERO, acknowledged=True)
        await scene.coordinator.wait_committed(ZERO, timeout_s)

    play(scenario)


def test_a_commit_in_the_very_moment_of_the_timeout_counts() -> None:
    async def scenario(scene: Scene) -> None:
        loop = asyncio.get_running_loop()
        waiter = waiting(scene, ZERO, 10.0)
        await soon()
        # For the moment of the waiter's own timer, and before the waiter itself runs again.
        loop.call_at(loop.time() + 10.0, at_once, scene.coordinator.commit_batch(ZERO, acknowledged=True))
        await waiter
        assert loop.time() == pytest.approx(10.0)

    play(scenario)


def test_a_cancelled_waiter_ends_and_disturbs_nobody() -> None:
    async def scenario(scene: Scene) -> None:
        first, second = waiting(scene, ZERO), waiting(scene, ZERO)
        await soon()
        first.cancel()
        await scene.coordinator.commit_batch(ZERO, acknowledged=True)
        await second
        assert first.cancelled()

    play(scenario)


def test_a_blocked_lease_does_not_fail_the_batch_by_itself() -> None:
    """Leases and batches are two machines: whoever runs the batch says that it failed."""

    async def scenario(scene: Scene) -> None:
        scene.judge.respond = unconfirmed
        waiter = waiting(scene, ZERO)
        with pytest.raises(LeaseBlockedError):
            await scene.coordinator.activate(ZERO, JUDGE, op("wake"))
        await soon()
        assert not waiter.done()
        await scene.coordinator.fail_batch(ZERO, "the judge does not wake")
        with pytest.raises(BatchFailedError):
            await waiter

    play(scenario)


def test_ended_operations_leave_no_task_behind() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.coordinator.activate(ZERO, JUDGE, op("wake"))
        await asyncio.gather(scene.coordinator.activate(ZERO, WRITER, op("x")), return_exceptions=True)
        await soon()
        assert not scene.coordinator._tasks, "a long run would keep a task for each of its operations"

    play(scenario)


# --- the rest ---------------------------------------------------------------------------


def test_status_is_json_and_tells_the_deadline() -> None:
    async def scenario(scene: Scene) -> None:
        status = await scene.coordinator.status()
        assert json.loads(json.dumps(status)) == status
        assert status["timeout_s"] == TIMEOUT_S

    play(scenario)


def test_a_role_that_shares_devices_needs_a_lifecycle() -> None:
    asleep = OpeningLease(state=LeaseState.SLEEPING, reason="measured")
    with pytest.raises(LeaseError, match=r"no lifecycle was given for \['judge', 'writer'\]"):
        LeaseCoordinator(
            {}, conflicts={WRITER: {JUDGE}, JUDGE: {WRITER}}, opening={WRITER: asleep, JUDGE: asleep}
        )


def test_a_defect_of_the_ledger_reaches_every_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is nobody's refusal must not leave callers waiting."""

    async def scenario(scene: Scene) -> None:
        async def broken(*_: Any) -> Awaitable[None]:
            raise ZeroDivisionError

        monkeypatch.setattr(scene.coordinator, "_command", broken)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await scene.coordinator.activate(ZERO, JUDGE, op("wake"))
        with pytest.raises(ZeroDivisionError):
            await scene.coordinator.deactivate(ZERO, JUDGE, op("clean-up"))
        assert await scene.state(JUDGE) == "ONLOADING", "fenced, as nothing is known"

    play(scenario)


# --- a head start -----------------------------------------------------------------------


def test_a_head_start_moves_no_lease_and_is_no_command() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.coordinator.activate(ZERO, WRITER, op("1"))
        before = await scene.coordinator.status()
        told = len(scene.events)
        await scene.coordinator.prepare(ZERO, JUDGE)
        assert scene.judge.prepared == [pytest.approx(0.95 * TIMEOUT_S)]
        assert scene.judge.calls == []
        assert len(scene.events) == told
        after = await scene.coordinator.status()
        assert [lease["state"] for lease in after["leases"].values()] == [
            lease["state"] for lease in before["leases"].values()
        ]
        await scene.coordinator.prepare(ZERO, GUEST)
        await scene.coordinator.prepare(ZERO, RoleName("nobody"))

    play(scenario)


def test_a_head_start_keeps_no_command_waiting_and_ends_in_time() -> None:
    async def scenario(scene: Scene) -> None:
        scene.judge.delay_s = 10 * TIMEOUT_S
        ahead = asyncio.create_task(scene.coordinator.prepare(ZERO, JUDGE))
        await soon()
        scene.judge.delay_s = 1.0
        await scene.coordinator.activate(ZERO, JUDGE, op("1"))
        assert asyncio.get_running_loop().time() < 2.0
        with pytest.raises(TimeoutError):
            await ahead
        assert asyncio.get_running_loop().time() == pytest.approx(TIMEOUT_S, abs=1.0)

    play(scenario)
