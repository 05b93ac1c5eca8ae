"""Reconciling: what opens a fence, what does not, and what is on record afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from rolecall.engines.proof import Proof
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult, ReplicaOutcome
from rolecall.errors import JournalError, LeaseBlockedError, LeaseError, OperationReuseError, RolecallError
from rolecall.ids import BatchId, EngineId, FencingToken, OperationId, RoleName
from rolecall.leases.coordinator import LeaseCoordinator
from rolecall.leases.lease_state import LeaseState, OpeningLease
from rolecall.leases.reconciliation import Claim, Reconciliation
from rolecall.testing.manager_rig import ManagerRig, ok, within
from rolecall.testing.memory_journal import MemoryDisk, MemoryJournal
from rolecall.testing.virtual_time import run_virtual

WRITER, JUDGE, GUEST = (RoleName(name) for name in ("writer", "judge", "guest"))
ZERO = BatchId(0)
TIMEOUT_S = 180.0
NOW_S = 1_700_000_000.0
CLAIM = Claim(proof=Proof.PROCESS_GONE, by="ada@login-1", note="ticket 7")


def said(role: RoleName, state: ReplicaState, *, confirmed: bool = True, detail: str = "") -> LifecycleResult:
    outcome = ReplicaOutcome(engine=EngineId("m/replica-0"), state=state, confirmed=confirmed, detail=detail)
    return LifecycleResult(role=role, outcomes=(outcome,))


@define
class Role:
    """Answers every question as ``answers`` say, after a second; a number stands for that many seconds."""

    name: RoleName
    answers: dict[str, Any] = field(factory=dict)
    calls: list[tuple[str, Any]] = field(factory=list)

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._say("onload", token, said(self.name, ReplicaState.READY))

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._say("offload", token, said(self.name, ReplicaState.SLEEPING))

    async def account(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._say("account", token, said(self.name, ReplicaState.READY))

    async def prepare(self, timeout_s: float) -> None:
        await self._say("prepare", None, None)

    async def vacate(self, token: FencingToken, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        return await self._say(
            "vacate", token, said(self.name, ReplicaState.FAILED, detail=f"nothing is left, {proof}")
        )

    async def lift_fences(self, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        return await self._say("lift_fences", proof, LifecycleResult(role=self.name, outcomes=()))

    async def _say(self, name: str, given: Any, usual: Any) -> Any:
        self.calls.append((name, given))
        answer = self.answers.get(name, usual)
        await asyncio.sleep(answer if isinstance(answer, float) else 1.0)
        if isinstance(answer, Exception):
            raise answer
        return usual if isinstance(answer, float) else answer

    @property
    def asked(self) -> list[str]:
        return [name for name, _ in self.calls]


class Scene:
    """Two roles that share devices and a resident one; with a journal and all events."""

    def __init__(self, *, guest: LeaseState = LeaseState.ACTIVE) -> None:
        self.writer, self.judge, self.guest = Role(WRITER), Role(JUDGE), Role(GUEST)
        self.disk = MemoryDisk()
        self.events: list[tuple[str, dict[str, Any]]] = []
        asleep = OpeningLease(state=LeaseState.SLEEPING, reason="measured")
        self.coordinator = LeaseCoordinator(
            {WRITER: self.writer, JUDGE: self.judge, GUEST: self.guest},
            conflicts={WRITER: {JUDGE}, JUDGE: {WRITER}, GUEST: frozenset()},
            opening={WRITER: asleep, JUDGE: asleep, GUEST: OpeningLease(state=guest, reason="measured")},
            timeout_s=TIMEOUT_S,
            journal=MemoryJournal(self.disk),
            run="run-1",
            emit=lambda kind, /, **fields: self.events.append((kind, fields)),
            clock=lambda: asyncio.get_running_loop().time(),
        )

    async def fence(self) -> None:
        """Have the judge wake, and never hear whether it went to sleep."""
        await self.coordinator.begin_batch(ZERO)
        await self.coordinator.activate(ZERO, JUDGE, OperationId("on"))
        self.judge.answers["offload"] = 1_000.0
        with pytest.raises(LeaseBlockedError, match="rolecall reconcile judge"):
            await self.coordinator.deactivate(ZERO, JUDGE, OperationId("off"))

    async def lift(self, name: str = "lift", role: RoleName = JUDGE, claim: Claim = CLAIM) -> Reconciliation:
        return await self.coordinator.reconcile(role, OperationId(name), claim=claim)

    async def lease(self, role: RoleName = JUDGE) -> dict[str, Any]:
        return (await self.coordinator.status())["leases"][role]

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [fields for of, fields in self.events if of == kind]


def play(scenario: Callable[[Scene], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        await scenario(Scene(**options))

    run_virtual(main())


# --- what opens a fence ---------------------------------------------------------------------


def test_a_proved_claim_frees_the_devices_and_is_on_record() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.fence()
        last = (await scene.lease())["token"]
        record = await scene.lift()
        assert scene.judge.calls[-1] == ("vacate", last + 1), "under a token of its own"
        assert record.claim == CLAIM
        assert record.evidence == {"m/replica-0": "FAILED: nothing is left, process-gone"}
        lease = await scene.lease()
        assert (lease["state"], lease["batch"], lease["token"]) == ("SLEEPING", None, last + 1)
        assert "ada@login-1" in lease["reason"]
        (audit,) = scene.told("lease.reconciled")
        assert audit == {"operation": "lift", **record.to_json()}
        assert Reconciliation.from_json(record.to_json()) == record
        journaled = [r for r in MemoryJournal(scene.disk).records() if r["kind"] == "reconciled"]
        assert [r["record"] for r in journaled] == [record.to_json()]
        # The run goes on: the batch that was under way can be finished.
        await scene.coordinator.activate(ZERO, WRITER, OperationId("next"))
        await scene.coordinator.deactivate(ZERO, WRITER, OperationId("next-off"))
        await scene.coordinator.commit_batch(ZERO, acknowledged=True)

    play(scenario)


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        (said(JUDGE, ReplicaState.FAILED, confirmed=False, detail="process 4711 is left"), "process 4711"),
        (said(JUDGE, ReplicaState.READY), "m/replica-0 is READY, which holds its devices"),
        (said(WRITER, ReplicaState.SLEEPING), "the answer is about 'writer'"),
        (LifecycleResult(role=JUDGE, outcomes=()), "the answer names no replica"),
        (None, "which is no lifecycle result"),
        (ConnectionResetError("reset by peer"), "vacating raised ConnectionResetError"),
        (1_000.0, "vacating had no answer within 180 s"),
    ],
)
def test_anything_else_leaves_the_fence_with_what_is_missing(answer: Any, missing: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.fence()
        scene.judge.answers["vacate"] = answer
        with pytest.raises(LeaseBlockedError, match="the fence stays") as caught:
            await scene.lift()
        assert missing in str(caught.value)
        lease = await scene.lease()
        assert lease["state"] == "BLOCKED"
        assert missing in lease["reason"]
        assert scene.told("lease.reconciled") == []
        with pytest.raises(LeaseError, match="judge is BLOCKED"):
            await scene.coordinator.activate(ZERO, WRITER, OperationId("next"))
        del scene.judge.answers["vacate"]
        await scene.lift("again")
        assert (await scene.lease())["state"] == "SLEEPING"

    play(scenario)


def test_a_late_answer_to_a_reconciliation_opens_nothing() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.fence()
        scene.judge.answers["vacate"] = 200.0
        with pytest.raises(LeaseBlockedError):
            await scene.lift()
        await asyncio.sleep(100.0)
        assert (await scene.lease())["state"] == "BLOCKED"

    play(scenario)


# --- ids ------------------------------------------------------------------------------------


def test_a_repeat_joins_a_finished_one_and_asks_nobody() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.fence()
        first, second = await asyncio.gather(scene.lift(), scene.lift())
        assert first is second
        assert await scene.lift() is first
        assert scene.judge.asked.count("vacate") == 1
        with pytest.raises(OperationReuseError):
            await scene.lift(role=WRITER)
        with pytest.raises(OperationReuseError):
            await scene.coordinator.activate(ZERO, JUDGE, OperationId("lift"))

    play(scenario)


def test_a_second_reconciliation_beside_the_first_is_refused_and_names_it() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.fence()
        first, second = await asyncio.gather(scene.lift(), scene.lift("other"), return_exceptions=True)
        assert isinstance(first, Reconciliation)
        assert isinstance(second, LeaseError)
        assert "'lift'" in str(second)

    play(scenario)


def test_a_caller_that_gives_up_does_not_end_it() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.fence()
        caller = asyncio.ensure_future(scene.lift())
        await asyncio.sleep(0.5)
        caller.cancel()
        await asyncio.sleep(1.0)
        assert (await scene.lease())["state"] == "SLEEPING"

    play(scenario)


def test_without_an_audit_record_no_fence_is_lifted() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.fence()
        caller = asyncio.ensure_future(scene.lift())
        await asyncio.sleep(0.5)
        scene.disk.full = True
        with pytest.raises(RolecallError):
            await caller
        assert (await scene.lease())["state"] == "BLOCKED"
        with pytest.raises(JournalError):
            await scene.lift("again")
        scene.disk.full = False
        await scene.lift("at last")
        assert (await scene.lease())["state"] == "SLEEPING"

    play(scenario)


def test_an_unknown_role_is_refused() -> None:
    async def scenario(scene: Scene) -> None:
        with pytest.raises(LeaseError, match="no role 'tutor'"):
            await scene.lift(role=RoleName("tutor"))

    play(scenario)


# --- roles that are not fenced, resident roles ----------------------------------------------


@pytest.mark.parametrize("role", [JUDGE, GUEST])
def test_a_lease_that_is_not_blocked_keeps_its_state_and_only_fenced_replicas_are_looked_at(
    role: RoleName,
) -> None:
    async def scenario(scene: Scene) -> None:
        asked = {JUDGE: scene.judge, GUEST: scene.guest}[role]
        before = await scene.lease(role)
        assert (await scene.lift(role=role)).evidence == {}
        asked.answers["lift_fences"] = said(role, ReplicaState.FAILED, detail="node gone")
        assert (await scene.lift("second", role)).evidence == {"m/replica-0": "FAILED: node gone"}
        asked.answers["lift_fences"] = said(role, ReplicaState.FAILED, confirmed=False, detail="4711")
        with pytest.raises(LeaseBlockedError, match="4711"):
            await scene.lift("third", role)
        assert asked.asked == ["lift_fences"] * 3
        after = await scene.lease(role)
        assert (after["state"], after["token"]) == (before["state"], before["token"])

    play(scenario)


def test_a_blocked_resident_role_is_active_again_when_all_its_replicas_are_ready() -> None:
    async def scenario(scene: Scene) -> None:
        scene.guest.answers["account"] = said(GUEST, ReplicaState.FAILED, confirmed=False, detail="starts")
        with pytest.raises(LeaseBlockedError, match="starts"):
            await scene.lift(role=GUEST)
        assert (await scene.lease(GUEST))["state"] == "BLOCKED"
        del scene.guest.answers["account"]
        await scene.lift("again", GUEST)
        assert (await scene.lease(GUEST))["state"] == "ACTIVE"
        assert scene.guest.asked == ["lift_fences", "account"] * 2, "it is never put to sleep"

    play(scenario, guest=LeaseState.BLOCKED)


# --- with a real manager --------------------------------------------------------------------


class OfManager(Role):
    """The judge, whose replicas a real manager has."""

    def __init__(self, rig: ManagerRig) -> None:
        super().__init__(JUDGE)
        self.rig = rig

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return self._result(await self.rig.manager.onload(token, within(timeout_s)))

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return self._result(await self.rig.manager.offload(token, within(timeout_s)))

    async def vacate(self, token: FencingToken, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        return self._result(await self.rig.manager.vacate(token, within(timeout_s), proof=proof))

    def _result(self, outcomes: tuple[ReplicaOutcome, ...]) -> LifecycleResult:
        return LifecycleResult(role=self.name, outcomes=outcomes)


def test_an_engine_that_outlives_its_worker_keeps_the_devices_fenced_until_it_is_gone(
    tmp_path: Path,
) -> None:
    """Pitfall 24"""

    async def main() -> None:
        rig = ManagerRig(tmp_path)
        assert ok(await rig.manager.start())
        assert ok(await rig.offload(0))
        scene = Scene()
        scene.coordinator = LeaseCoordinator(
            {WRITER: scene.writer, JUDGE: OfManager(rig)},
            conflicts={WRITER: {JUDGE}, JUDGE: {WRITER}},
            opening={r: OpeningLease(state=LeaseState.SLEEPING, reason="measured") for r in (WRITER, JUDGE)},
            timeout_s=TIMEOUT_S,
        )
        await scene.coordinator.begin_batch(ZERO)
        await scene.coordinator.activate(ZERO, JUDGE, OperationId("on"))
        rig.worker("m/replica-0").dead.set()
        rig.reaper.left = (4711,)
        with pytest.raises(LeaseBlockedError, match="4711"):
            await scene.coordinator.deactivate(ZERO, JUDGE, OperationId("off"))
        with pytest.raises(LeaseBlockedError, match="4711 outlived SIGKILL"):
            await scene.lift("too early")
        assert rig.states() == ["FAILED", "SLEEPING"]
        with pytest.raises(LeaseError):
            await scene.coordinator.activate(ZERO, WRITER, OperationId("writer"))
        rig.reaper.left = ()
        record = await scene.lift("now")
        assert set(record.evidence) == {"m/replica-0", "m/replica-1"}
        await scene.coordinator.activate(ZERO, WRITER, OperationId("writer again"))
        assert rig.states() == ["FAILED", "SLEEPING"], "nothing is started for it"
        await scene.coordinator.deactivate(ZERO, WRITER, OperationId("writer off"))
        await scene.coordinator.activate(ZERO, JUDGE, OperationId("on again"))
        assert rig.states() == ["READY", "READY"], "it is rebuilt by its next onload"

    run_virtual(main())
