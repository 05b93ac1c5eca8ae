"""What must hold after every cell: pure checks, each of which returns what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rolecall.events.event import Event

_AWAKE_LEASES = frozenset({"ONLOADING", "ACTIVE", "DRAINING"})
_AWAKE_REPLICAS = frozenset({"STARTING", "READY", "DRAINING", "ONLOADING"})


def two_awake(events: Iterable[Event]) -> list[str]:
    """A lease given while the other role's was not SLEEPING, two leases held, or engines of both at work.

    Both roles share one device, so every two of them conflict. A coordinator that was restarted has all
    leases BLOCKED until their roles have proved where they stand; that gives none anew.
    """
    problems: list[str] = []
    leases: dict[str, str] = {}
    for event in events:
        if event.kind == "lease.state":
            role, state = event.fields["role"], event.fields["to"]
            leases[role] = state
            others = {other: theirs for other, theirs in leases.items() if other != role}
            granted = (event.fields["from"], state) == ("SLEEPING", "ONLOADING")
            if (granted and set(others.values()) - {"SLEEPING"}) or (
                state in _AWAKE_LEASES and _AWAKE_LEASES & set(others.values())
            ):
                problems.append(f"the lease of {role} was {state} beside {others}")
    replicas: dict[str, tuple[str, str]] = {}
    # Of several senders, so in the order of their clocks and not of their arrival.
    for event in sorted((e for e in events if e.kind == "replica.state"), key=lambda e: e.time_s):
        replicas[event.fields["engine"]] = (event.fields["role"], event.fields["to"])
        awake = {role for role, state in replicas.values() if state in _AWAKE_REPLICAS}
        if len(awake) > 1:
            problems.append(f"engines of {sorted(awake)} were awake: {replicas}")
    return problems


def half_committed(
    events: Iterable[Event], stored: Mapping[int, Mapping[str, Any] | None], rows: int
) -> list[str]:
    """A committed batch without all of its rows, or rows of one that is not committed.

    ``stored`` has what the sink gives of each batch, None if it has nothing.
    """
    states = batch_states(events)
    problems: list[str] = []
    for batch, account in stored.items():
        if states.get(batch) != "COMMITTED":
            if account is not None:
                problems.append(
                    f"batch {batch} is {states.get(batch)}, but the sink has {account['rows']} rows"
                )
        elif account is None or account["rows"] != rows or account["bad"]:
            problems.append(f"batch {batch} is committed, but the sink has {account} of {rows} rows")
    return problems


def batch_states(events: Iterable[Event]) -> dict[int, str]:
    """Each batch's last state by the event log."""
    return {e.fields["batch"]: e.fields["to"] for e in events if e.kind == "batch.state"}


def without_reason(events: Iterable[Event], status: Mapping[str, Any]) -> list[str]:
    """A fence or a failure that does not say why."""
    problems = [
        f"{event.kind} to {event.fields['to']} has no reason: {dict(event.fields)}"
        for event in events
        if event.fields.get("to") in {"BLOCKED", "FAILED"} and not event.fields.get("reason")
    ]
    for role, entry in status.get("roles", {}).items():
        problems += [
            f"{replica['engine']} of {role} is fenced without a word"
            for replica in entry["replicas"]
            if replica["fence"] is not None and not str(replica["fence"]).strip()
        ]
    return problems


def unknown_engines(status: Mapping[str, Any], engines: Mapping[int, str]) -> list[str]:
    """Engine processes that their role does not know of; ``engines`` has the living ones, pid to role."""
    known = {replica["pid"] for entry in status["roles"].values() for replica in entry["replicas"]}
    return [
        f"engine process {pid} of {role} is nobody's" for pid, role in engines.items() if pid not in known
    ]


def unsettled(status: Mapping[str, Any]) -> list[str]:
    """Leases and replicas that are on their way, and replicas that are awake without a fence or a lease."""
    leases = status["coordinator"]["leases"]
    problems = [
        f"the lease of {role} is {lease['state']}"
        for role, lease in leases.items()
        if lease["state"] not in {"SLEEPING", "BLOCKED"}
    ]
    for role, entry in status["roles"].items():
        # A command that came late may have woken a role that is fenced since: it waits for an operator.
        rest = {"SLEEPING", "FAILED"} | ({"READY"} if leases[role]["state"] == "BLOCKED" else set[str]())
        problems += [
            f"{replica['engine']} is {replica['state']}"
            for replica in entry["replicas"]
            if replica["state"] not in rest
            or (replica["state"] == "FAILED" and not replica["vacant"] and replica["fence"] is None)
        ]
    return problems
