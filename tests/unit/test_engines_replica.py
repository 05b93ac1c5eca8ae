"""The transition table and the one door through it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rolecall.engines.fencing import TokenGate
from rolecall.engines.replica import Replica, WorkerRecord
from rolecall.engines.replica_state import TRANSITIONS, ReplicaState, next_state
from rolecall.engines.worker_handle import Started
from rolecall.errors import TransitionError
from rolecall.ids import EngineId, RoleName
from rolecall.interfaces.engine_backend import MemoryReport
from rolecall.testing.fake_workers import FakeWorkers, fake_slot
from rolecall.testing.virtual_time import run_virtual

S = ReplicaState
SPEC = {
    (S.STARTING, S.READY),
    (S.READY, S.DRAINING),
    (S.DRAINING, S.SLEEPING),
    (S.SLEEPING, S.ONLOADING),
    (S.ONLOADING, S.READY),
    *((state, S.FAILED) for state in (S.STARTING, S.READY, S.DRAINING, S.SLEEPING, S.ONLOADING)),
    *((state, S.STOPPING) for state in (S.READY, S.SLEEPING, S.FAILED)),
    (S.FAILED, S.STARTING),
    # Weights are changed, or caught up with, outside of READY.
    (S.STARTING, S.ONLOADING),
    (S.READY, S.ONLOADING),
    (S.ONLOADING, S.DRAINING),
    # It was to leave the model, and stays, or goes.
    (S.DRAINING, S.ONLOADING),
    (S.DRAINING, S.STOPPING),
}


@pytest.mark.parametrize("before", list(S))
@pytest.mark.parametrize("after", list(S))
def test_exactly_these_changes_are_allowed(before: ReplicaState, after: ReplicaState) -> None:
    if (before, after) in SPEC:
        assert next_state("m/replica-0", before, after) is after
    else:
        with pytest.raises(TransitionError, match=f"m/replica-0: {before} → {after} is not allowed"):
            next_state("m/replica-0", before, after)


def test_the_table_knows_every_state() -> None:
    assert TRANSITIONS.keys() == set(S)


@pytest.fixture
def events() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def replica(tmp_path: Path, events: list[dict[str, Any]]) -> Replica:
    slot = fake_slot("m/replica-0")

    async def make() -> Replica:
        return Replica(
            role=RoleName("judge"),
            engine=EngineId("m/replica-0"),
            workers=(WorkerRecord(slot=slot, handle=FakeWorkers(tmp_path)(slot)),),
            gate=TokenGate(),
            emit=lambda kind, **fields: events.append({"kind": kind, **fields}),
        )

    return run_virtual(make())


def test_each_entry_is_told_with_its_reason_and_numbers(replica: Replica, events: list[Any]) -> None:
    replica.enter_state(S.FAILED, "no memory")
    replica.begin_incarnation("rebuild")
    assert [(e["from"], e["to"], e["reason"], e["generation"], e["incarnation"]) for e in events] == [
        (None, "STARTING", "created", 1, 1),
        ("STARTING", "FAILED", "no memory", 1, 1),
        ("FAILED", "STARTING", "rebuild", 2, 2),
    ]


def test_a_refused_change_changes_and_tells_nothing(replica: Replica, events: list[Any]) -> None:
    ticket = replica.ticket()
    with pytest.raises(TransitionError):
        replica.enter_state(S.SLEEPING, "wishful")
    with pytest.raises(TransitionError):
        replica.begin_incarnation("too early")
    assert (replica.state, replica.incarnation, replica.generation) == (S.STARTING, 1, 1)
    assert replica.is_current(ticket)
    assert len(events) == 1


def test_a_ticket_is_void_after_any_change_even_a_round_trip(replica: Replica) -> None:
    replica.enter_state(S.READY, "started")
    ticket = replica.ticket()
    for state in (S.DRAINING, S.SLEEPING, S.ONLOADING, S.READY):
        replica.enter_state(state, "turn")
        assert not replica.is_current(ticket)


def test_a_new_incarnation_has_no_endpoint_and_no_evidence_but_remembers_urls(replica: Replica) -> None:
    memory = MemoryReport(resident_tags=frozenset(), resident_bytes=1)
    replica.record_start(Started(base_url="http://a:1", pid=7, memory=memory, log_path=Path("/log")), "0")
    replica.workers[0].evidence = "gone"
    assert replica.vacant
    replica.enter_state(S.FAILED, "died")
    replica.begin_incarnation("rebuild")
    assert (replica.base_url, replica.vacant, replica.urls) == (None, False, ["http://a:1"])
