"""Every event that the core emits is documented with its fields, and has exactly those."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rolecall
from rolecall.engines.proof import Proof
from rolecall.engines.results import LifecycleResult
from rolecall.ids import BatchId, FencingToken, OperationId, RoleName
from rolecall.leases.coordinator import LeaseCoordinator
from rolecall.leases.lease_state import LeaseState, OpeningLease
from rolecall.leases.reconciliation import Claim
from rolecall.testing.manager_rig import ManagerRig, within
from rolecall.testing.sample_events import SAMPLE_EVENTS
from rolecall.testing.virtual_time import run_virtual

CORE = Path(rolecall.__file__).parent
DOCUMENTED = {event.kind: set(event.fields) for event in SAMPLE_EVENTS}
"""A contract test holds the samples and ``Event``'s docstring together."""

JUDGE = RoleName("judge")
MACHINES = {"replica.state", "lease.state", "batch.state", "operation.state"}


def emitted_kinds() -> Iterator[tuple[str, str]]:
    """Every kind that is written out in a call of an ``emit``, or of an event's constructor."""
    for path in CORE.rglob("*.py"):
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "kind")]
            if name.lstrip("_") in {"emit", "Event"}:
                for value in given:
                    if isinstance(value, ast.Constant):
                        yield str(value.value), str(path)


def test_every_kind_that_is_emitted_is_documented_and_the_other_way_round() -> None:
    found = dict(emitted_kinds())
    assert set(found) == set(DOCUMENTED), found


def test_every_transition_of_every_machine_tells_exactly_the_documented_fields(tmp_path: Path) -> None:
    """A role is woken, loses a worker, is fenced and reconciled, and its batch fails."""
    events: list[tuple[str, dict[str, Any]]] = []

    class Judge:
        def __init__(self, rig: ManagerRig) -> None:
            self.manager = rig.manager

        async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
            return LifecycleResult(role=JUDGE, outcomes=await self.manager.onload(token, within(timeout_s)))

        async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
            return LifecycleResult(role=JUDGE, outcomes=await self.manager.offload(token, within(timeout_s)))

        async def account(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
            return LifecycleResult(role=JUDGE, outcomes=await self.manager.account(token, within(timeout_s)))

        async def prepare(self, timeout_s: float) -> None:
            await self.manager.prepare(within(timeout_s))

        async def vacate(self, token: FencingToken, timeout_s: float, *, proof: Proof) -> LifecycleResult:
            outcomes = await self.manager.vacate(token, within(timeout_s), proof=proof)
            return LifecycleResult(role=JUDGE, outcomes=outcomes)

        async def lift_fences(self, timeout_s: float, *, proof: Proof) -> LifecycleResult:
            outcomes = await self.manager.lift_fences(within(timeout_s), proof=proof)
            return LifecycleResult(role=JUDGE, outcomes=outcomes)

    async def scenario() -> None:
        rig = ManagerRig(tmp_path, replicas=1)
        await rig.manager.start()
        await rig.offload(0)
        writer = RoleName("writer")
        asleep = OpeningLease(state=LeaseState.SLEEPING, reason="measured")
        coordinator = LeaseCoordinator(
            {JUDGE: Judge(rig), writer: Judge(rig)},
            conflicts={JUDGE: {writer}, writer: {JUDGE}},
            opening={JUDGE: asleep, writer: asleep},
            emit=lambda kind, /, **fields: events.append((kind, fields)),
        )
        await coordinator.begin_batch(BatchId(0))
        await coordinator.activate(BatchId(0), JUDGE, OperationId("on"))
        rig.worker("m/replica-0").dead.set()
        rig.reaper.left = (4711,)
        off = coordinator.deactivate(BatchId(0), JUDGE, OperationId("off"))
        (failure,) = await asyncio.gather(off, return_exceptions=True)
        await coordinator.fail_batch(BatchId(0), str(failure))
        rig.reaper.left = ()
        claim = Claim(proof=Proof.PROCESS_GONE, by="ada@login-1")
        await coordinator.reconcile(JUDGE, OperationId("lift"), claim=claim)
        events.extend(
            (event["kind"], {k: v for k, v in event.items() if k != "kind"}) for event in rig.events
        )

    run_virtual(scenario())
    seen = {kind for kind, _ in events}
    assert seen >= MACHINES | {"lease.reconciled", "engine.reaped", "replica.memory"}
    for kind, fields in events:
        assert set(fields) == DOCUMENTED[kind], kind
        if kind in MACHINES:
            assert {"from", "to", "reason"} <= set(fields)
            assert fields["reason"], f"{kind}: {fields['from']} → {fields['to']} has no reason"
