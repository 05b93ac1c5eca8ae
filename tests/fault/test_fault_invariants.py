"""Each invariant of the matrix can be broken, and says so."""

from __future__ import annotations

from typing import Any

import pytest
from fault_matrix import invariants
from fault_matrix.cell_run import Result
from fault_matrix.cells import Cell, Fault, Phase, Subject, cells
from fault_matrix.table import render, summary

from rolecall.events.event import Event


def events(kind: str, *entries: dict[str, Any]) -> list[Event]:
    return [Event(kind=kind, time_s=float(at), fields=fields) for at, fields in enumerate(entries)]


def lease(role: str, to: str, reason: str = "why") -> dict[str, Any]:
    before = "SLEEPING" if to == "ONLOADING" else None
    return {"role": role, "from": before, "to": to, "reason": reason, "token": 1, "batch": 0}


def replica(role: str, to: str) -> dict[str, Any]:
    return {"role": role, "engine": f"{role}/replica-0", "from": None, "to": to, "reason": "why"}


def batch(number: int, to: str) -> dict[str, Any]:
    return {"batch": number, "from": None, "to": to, "reason": "why"}


ASLEEP = [lease("rollout", "SLEEPING"), lease("teacher", "SLEEPING")]


def test_a_hand_over_is_no_problem():
    took_turns = [
        lease("rollout", "ACTIVE"),
        lease("rollout", "DRAINING"),
        lease("rollout", "SLEEPING"),
        lease("teacher", "ONLOADING"),
    ]
    assert invariants.two_awake(events("lease.state", *ASLEEP, *took_turns)) == []
    engines = [replica("rollout", "READY"), replica("rollout", "SLEEPING"), replica("teacher", "ONLOADING")]
    assert invariants.two_awake(events("replica.state", *engines)) == []


def test_a_restart_of_the_coordinator_gives_nothing_anew():
    restart = [lease("rollout", "BLOCKED"), lease("teacher", "BLOCKED"), lease("teacher", "ACTIVE")]
    before = [lease("teacher", "ONLOADING"), lease("teacher", "ACTIVE")]
    told = events("lease.state", *ASLEEP, *before, *restart, lease("rollout", "SLEEPING"))
    assert invariants.two_awake(told) == []
    assert len(invariants.two_awake([*told, *events("lease.state", lease("rollout", "ACTIVE"))])) == 1


@pytest.mark.parametrize("state", ["ACTIVE", "DRAINING", "BLOCKED"])
def test_a_lease_beside_one_that_does_not_sleep_is_found(state: str):
    found = invariants.two_awake(
        events("lease.state", *ASLEEP, lease("rollout", state), lease("teacher", "ONLOADING"))
    )
    assert any(problem.startswith("the lease of teacher was ONLOADING") for problem in found)


def test_engines_of_two_roles_at_work_are_found_in_the_order_of_their_clocks():
    told = events("replica.state", replica("rollout", "READY"), replica("teacher", "STARTING"))
    assert len(invariants.two_awake(told)) == 1
    slept_between = [*told, Event(kind="replica.state", time_s=0.5, fields=replica("rollout", "SLEEPING"))]
    assert invariants.two_awake(slept_between) == []


@pytest.mark.parametrize(
    ("state", "stored", "is_wrong"),
    [
        ("COMMITTED", {"rows": 2, "bad": []}, False),
        ("COMMITTED", {"rows": 1, "bad": []}, True),
        ("COMMITTED", {"rows": 2, "bad": ["no scores"]}, True),
        ("COMMITTED", None, True),
        ("FAILED", None, False),
        ("FAILED", {"rows": 2, "bad": []}, True),
        ("PENDING", {"rows": 2, "bad": []}, True),
    ],
)
def test_rows_and_commits_go_together(state: str, stored: Any, is_wrong: bool):
    found = invariants.half_committed(events("batch.state", batch(3, state)), {3: stored}, 2)
    assert bool(found) == is_wrong


def test_fences_and_failures_without_a_reason_are_found():
    told = events("lease.state", lease("rollout", "BLOCKED", ""), lease("teacher", "BLOCKED"))
    status = {"roles": {"rollout": {"replicas": [{"engine": "e", "fence": " "}]}}}
    assert len(invariants.without_reason(told, status)) == 2


def test_an_engine_process_that_is_nobodys_is_found():
    status = {"roles": {"rollout": {"replicas": [{"pid": 7}]}}}
    assert invariants.unknown_engines(status, {7: "rollout"}) == []
    assert len(invariants.unknown_engines(status, {7: "rollout", 8: "rollout"})) == 1


@pytest.mark.parametrize(
    ("lease_state", "replica_state", "vacant", "fence", "is_settled"),
    [
        ("SLEEPING", "SLEEPING", False, None, True),
        ("BLOCKED", "FAILED", False, "its worker died", True),
        ("SLEEPING", "FAILED", True, None, True),
        ("SLEEPING", "FAILED", False, None, False),
        ("ACTIVE", "SLEEPING", False, None, False),
        ("SLEEPING", "READY", False, None, False),
        ("BLOCKED", "READY", False, None, True),
    ],
)
def test_what_is_on_its_way_is_not_settled(
    lease_state: str, replica_state: str, vacant: bool, fence: str | None, is_settled: bool
):
    status = {
        "coordinator": {"leases": {"rollout": {"state": lease_state}}},
        "roles": {
            "rollout": {
                "replicas": [{"engine": "e", "state": replica_state, "vacant": vacant, "fence": fence}]
            }
        },
    }
    assert (invariants.unsettled(status) == []) == is_settled


def test_the_matrix_has_every_subject_and_fault_in_every_phase():
    matrix = list(cells())
    assert len(matrix) == len(set(matrix)) == 7 * 6 * 3 + 4 * 2
    for fault in (Fault.KILL, Fault.STOP, Fault.NETWORK):
        assert {(c.subject, c.phase) for c in matrix if c.fault is fault} == {
            (subject, phase) for subject in Subject for phase in Phase
        }


def test_the_table_shows_what_is_wrong():
    result = Result(
        cell=Cell(Subject.ENGINE, Phase.PUT, Fault.KILL),
        outcome="committed",
        detail="",
        seconds=2.4,
        problems=("two awake",),
    )
    assert "| engine | SIGKILL |  |  |  |  | **WRONG** committed, 2 s |  |" in render([result])
    assert summary([result], 1, 3.0) == "1 cells in 3 s, 1 jobs: 1 committed; 1 with problems"
