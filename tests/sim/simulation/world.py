"""What is true outside, whatever the product believes, and what must hold: the invariants.

The product tells it every change (it is the :class:`~rolecall.events.event.Emit` of everything), the
simulated processes tell it who holds which device, the sink what it stored. Each telling is a step, and every
invariant that the step could break is checked in it. The checks go by the outside: a role holds its devices
from the moment in which an engine of it takes memory until the moment in which that memory is back.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from attrs import frozen

from rolecall.ids import BatchId, RoleName
from rolecall.leases.lease_state import LeaseState
from simulation.evidence import Evidence
from simulation.loop import SimLoop

Row = tuple[str, str | None, str]
"""One row of a transition table that was taken: machine, from, to."""

_COMMANDED = frozenset({LeaseState.ONLOADING.value, LeaseState.DRAINING.value})


@frozen
class Violation:
    """A broken invariant: which, and what was seen."""

    rule: str
    found: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.found}"


class Holder:
    """Something that can have memory on devices."""

    role: RoleName


class World:
    """One schedule's outside. ``trail`` collects the timeline, None for none."""

    def __init__(
        self,
        loop: SimLoop,
        *,
        conflicts: Mapping[RoleName, Set[RoleName]],
        rows_taken: set[Row],
        trail: list[tuple[float, str, str]] | None,
    ) -> None:
        self.loop = loop
        self.conflicts = conflicts
        self.violation: Violation | None = None
        self.holders: dict[str, list[Holder]] = {}
        self.spare: frozenset[str] = frozenset()
        """Devices of replicas that come and go; no two roles have them in turn."""
        self.acknowledged: dict[BatchId, int] = {}
        self.committed: dict[BatchId, int] = {}
        self.read: list[BatchId] = []
        self.steps = 0
        self._rows = rows_taken
        self._trail = trail
        self._token = 0
        self._last: dict[tuple[str, Any], str] = {}
        self.evidence = Evidence(conflicts, violate=self.violate, now=loop.time)

    # --- the timeline -------------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        if self._trail is not None:
            self._trail.append((self.loop.time(), who, what))

    @property
    def recording(self) -> bool:
        return self._trail is not None

    def violate(self, rule: str, found: str) -> None:
        """Record the first broken invariant and end the schedule."""
        if self.violation is None:
            self.violation = Violation(rule, found)
            self.note("VIOLATION", str(self.violation))
            self.loop.stop()

    # --- what the product tells ---------------------------------------------------------

    def emit(self, kind: str, /, **fields: Any) -> None:
        if kind == "lease.state":
            self._lease(fields)
        elif kind == "batch.state":
            self._batch(fields)
        elif kind == "replica.state":
            self._moved("replica", (fields["role"], fields["engine"]), fields)
            if self._trail is not None:
                self.note(
                    fields["role"],
                    f"{fields['engine']}: {fields['from']} → {fields['to']} ({fields['reason']:.160})",
                )
        elif kind == "operation.state":
            self._moved("operation", None, fields)
        elif kind == "scale.state":
            self._moved("scaling", (fields["role"], fields["operation"]), fields)
            if self._trail is not None:
                self.note(
                    fields["role"],
                    f"{fields['action']} {fields['operation']}: {fields['from']} → {fields['to']}"
                    f" ({fields['reason']:.160})",
                )
        self.evidence.tell(kind, fields)

    def _moved(self, machine: str, who: object, fields: Mapping[str, Any]) -> None:
        self.steps += 1
        before, after = fields["from"], fields["to"]
        self._rows.add((machine, before, after))
        if who is None:
            return
        key = (machine, who)
        if before is not None and self._last.get(key, before) != before:
            self.violate("one door", f"{machine} {who} left {before}, but was {self._last[key]}")
        self._last[key] = after

    def _lease(self, fields: Mapping[str, Any]) -> None:
        role, after, token = fields["role"], fields["to"], fields["token"]
        self._moved("lease", role, fields)
        if self._trail is not None:
            self.note(
                "coordinator",
                f"lease of {role}: {fields['from']} → {after}, token {token}, batch {fields['batch']}"
                f" ({fields['reason']:.160})",
            )
        if after in _COMMANDED:
            if token <= self._token:
                self.violate("tokens grow", f"{role} is commanded under {token} after {self._token}")
            self._token = max(token, self._token)
        if after == LeaseState.BLOCKED.value and not fields["reason"]:
            self.violate("every fence has a reason", f"{role} is BLOCKED without one")
        if after == LeaseState.ONLOADING.value:
            self._granted(role)
        elif after == LeaseState.SLEEPING.value:
            self._asleep(role)

    def _in_turn(self) -> list[tuple[str, Holder]]:
        """Who holds which of the devices that roles have in turn."""
        return [
            (device, holder)
            for device, holders in self.holders.items()
            if device not in self.spare
            for holder in holders
        ]

    def _asleep(self, role: RoleName) -> None:
        for device, holder in self._in_turn():
            if holder.role == role:
                self.violate("asleep is proved", f"{role} is SLEEPING, {holder} holds device {device}")

    def _granted(self, role: RoleName) -> None:
        """Nobody who shares a device with the role may have, or be about to get, memory of it."""
        for rival in sorted(self.conflicts[role]):
            lease = self._last[("lease", rival)]
            if lease != LeaseState.SLEEPING.value:
                self.violate(
                    "no grant before a release is confirmed", f"{role} is granted, {rival} is {lease}"
                )
            for _, holder in self._in_turn():
                if holder.role == rival:
                    self.violate(
                        "no grant before a release is confirmed",
                        f"{role} is granted, {holder} holds memory",
                    )

    def _batch(self, fields: Mapping[str, Any]) -> None:
        batch, after = fields["batch"], fields["to"]
        self._moved("batch", batch, fields)
        if self._trail is not None:
            self.note("coordinator", f"batch {batch}: {fields['from']} → {after} ({fields['reason']:.160})")
        if batch in self.committed and after != "COMMITTED":
            self.violate("committed stays committed", f"batch {batch} became {after}")
        if after != "COMMITTED":
            return
        if batch not in self.acknowledged:
            self.violate("no commit before an acknowledged put", f"batch {batch} is committed")
        self.committed[batch] = self.acknowledged.get(batch, -1)
        for device, holder in self._in_turn():
            if self.conflicts.get(holder.role):
                self.violate("no commit while a role is awake", f"{holder} holds {device}")

    def restarted(self, *, whole_job: bool = False) -> None:
        """The coordinator's leases and operations begin anew; what it knows is told again."""
        self._last = {
            key: state for key, state in self._last.items() if key[0] == "replica" and not whole_job
        }
        self.evidence.restarted()

    # --- what processes do --------------------------------------------------------------

    def takes(self, holder: Holder, devices: tuple[str, ...]) -> None:
        """An engine has memory on devices from now on."""
        self.steps += 1
        for device in devices:
            holders = self.holders.setdefault(device, [])
            if holder in holders:
                continue
            holders.append(holder)
            if len(holders) > 1:
                self.violate(
                    "one owner",
                    f"device {device} is held by {' and by '.join(str(each) for each in holders)}",
                )

    def frees(self, holder: Holder) -> None:
        """All memory of an engine is back."""
        self.steps += 1
        for holders in self.holders.values():
            if holder in holders:
                holders.remove(holder)

    # --- what training sees -------------------------------------------------------------

    def consumed(self, batch: BatchId) -> None:
        """A consumer was given a batch."""
        self.steps += 1
        self.note("consumer", f"reads batch {batch}")
        if batch not in self.committed:
            self.violate("nothing is read before its commit", f"batch {batch} was read")
        if batch in self.read:
            self.violate("no batch is repeated", f"batch {batch} was read again")
        if any(earlier not in self.read for earlier in range(batch)):
            self.violate("no batch is lost", f"batch {batch} was read after {self.read}")
        self.read.append(batch)
