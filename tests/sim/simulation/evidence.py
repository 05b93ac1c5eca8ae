"""What the coordinator could know: invariants of its decisions, by its messages and by what it was answered.

``World`` goes by the devices, which forgives a decision that nothing came of; this goes by the decision.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from typing import Any

from attrs import frozen

from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult
from rolecall.ids import BatchId, FencingToken, OperationId, RoleName
from rolecall.leases.history import JOB_ENDED
from simulation.layouts import TRAINER

_AWAKE = {ReplicaState.READY, ReplicaState.ONLOADING}
_OFF = {ReplicaState.SLEEPING, ReplicaState.FAILED, ReplicaState.STOPPING}
_PROVE: Mapping[str, tuple[str, set[ReplicaState]]] = {
    "onload": ("ACTIVE", _AWAKE),
    "offload": ("SLEEPING", {ReplicaState.SLEEPING}),
    "vacate": ("SLEEPING", _OFF),
}
"""Command → the lease's state that its answer may prove, and the states in which every replica then is."""


_FAILED_WITH = re.compile(r"batch (\d+) failed: (.*)", re.DOTALL)


@frozen(kw_only=True)
class Asked:
    """An operation that the present coordinator knows."""

    operation: OperationId
    method: str
    role: RoleName
    batch: BatchId | None


class Evidence:
    """One schedule's. ``violate`` takes the rule that broke and what was seen.

    told: how many changes of leases, batches and operations there were.
    alarms: what happens right after so many; on_fence: what happens right after a role became BLOCKED.
    asked: the operations of the present coordinator.
    failure: batch and reason of the run's first failure, until it is resumed.
    committed_s, failed_s: when a batch was committed, and when the run failed last.
    waiting: when each wait for a commit has to be over.
    """

    def __init__(
        self,
        conflicts: Mapping[RoleName, Set[RoleName]],
        *,
        violate: Callable[[str, str], None],
        now: Callable[[], float],
    ) -> None:
        self._conflicts = conflicts
        self._violate = violate
        self._now = now
        self.told = 0
        self.alarms: dict[int, Callable[[], None]] = {}
        self.on_fence: Callable[[], None] = lambda: None
        self.asked: list[Asked] = []
        self.committed_s: dict[BatchId, float] = {}
        self.failed_s: float | None = None
        self.waiting: dict[object, float] = {}
        self._sent: set[FencingToken] = set()
        self._proved: set[tuple[RoleName, FencingToken, str]] = set()
        self._holder: dict[RoleName, BatchId | None] = {}
        self._states: dict[RoleName, str] = {}
        self._pending: set[BatchId] = set()
        self.failure: tuple[BatchId, str] | None = None

    # --- messages between the coordinator and the roles -----------------------------------

    def sent(self, role: RoleName, command: str, token: FencingToken) -> None:
        if token in self._sent:
            self._violate("a command is sent once", f"{command} of {role} under token {token} again")
        self._sent.add(token)

    def answered(self, role: RoleName, command: str, token: FencingToken, answer: object) -> None:
        """An answer has come, in time or not; whether it proves anything is judged here once more."""
        if not isinstance(answer, LifecycleResult) or answer.role != role or not answer.outcomes:
            return
        if not all(outcome.confirmed for outcome in answer.outcomes):
            return
        states = {outcome.state for outcome in answer.outcomes}
        for asked in ("onload", "offload") if command == "account" else (command,):
            proved, allowed = _PROVE[asked]
            if states <= allowed:
                self._proved.add((role, token, proved))

    # --- events ---------------------------------------------------------------------------

    def tell(self, kind: str, fields: Mapping[str, Any]) -> None:
        match kind:
            case "lease.state":
                self._lease(fields)
            case "batch.state":
                self._batch(fields)
            case "operation.state":
                self._operation(fields)
            case _:
                return
        self.told += 1
        if (alarm := self.alarms.pop(self.told, None)) is not None:
            alarm()

    def restarted(self) -> None:
        """Another coordinator is in charge; what only the last one knew is gone."""
        self.asked.clear()

    def over(self) -> None:
        """The schedule has come to its end."""
        late = [deadline_s for deadline_s in self.waiting.values() if deadline_s < self._now()]
        if late:
            self._violate("a wait ends in its time", f"one should have ended at {min(late):.3f} s")

    def _operation(self, fields: Mapping[str, Any]) -> None:
        method, after = fields["method"], fields["to"]
        if after == "WAITING":
            self.asked.append(
                Asked(
                    operation=fields["operation"], method=method, role=fields["role"], batch=fields["batch"]
                )
            )
        elif after == "FAILED" and method != "reconcile" and "has not answered yet" in fields["reason"]:
            self._violate("after a restart the roles are heard first", f"{method}: {fields['reason']}")
        elif (method, after) == ("resume", "FINISHED"):
            self.failure = None
            up = sorted(role for role, state in self._states.items() if state != "SLEEPING")
            if up:
                self._violate("a run goes on while all sleep", f"it does with {up} not asleep")

    def _lease(self, fields: Mapping[str, Any]) -> None:
        role, batch, token = fields["role"], fields["batch"], fields["token"]
        before, after = fields["from"], fields["to"]
        needs_proof = after in {"ACTIVE", "SLEEPING"} and before is not None and role != TRAINER
        if needs_proof and (role, token, after) not in self._proved:
            self._violate("what is not proved did not happen", f"{role} is {after} under token {token}")
        if after == "ONLOADING":
            if self.failure is not None:
                self._violate("after a failure nothing is granted", f"{role} for batch {batch}")
            if (batch in self._pending) is (role == TRAINER):
                self._violate("granted for an open batch, the trainer for none", f"{role} for batch {batch}")
        if after == "DRAINING" and self._holder.get(role, batch) != batch:
            self._violate(
                "only the holder gives a lease back",
                f"batch {batch} that of {role}, not {self._holder[role]}",
            )
        self._holder[role] = batch
        if self._conflicts[role]:
            self._states[role] = after
        if after == "BLOCKED":
            self.on_fence()

    def _batch(self, fields: Mapping[str, Any]) -> None:
        batch, after = fields["batch"], fields["to"]
        if after == "FAILED":
            self._pending.discard(batch)
            if fields["reason"] == JOB_ENDED:
                return  # nobody's failure: it was open when its job ended
            if self.failure is None:
                again = _FAILED_WITH.fullmatch(fields["reason"])
                self.failure = (int(again[1]), again[2]) if again else (batch, fields["reason"])
                self.failed_s = self._now()
            elif fields["reason"] != f"batch {self.failure[0]} failed: {self.failure[1]}":
                self._violate("the first failure wins", f"batch {batch}: {fields['reason']}")
            return
        if self.failure is not None:
            self._violate("after a failure nothing begins or is committed", f"batch {batch} is {after}")
        if after == "PENDING":
            self._pending.add(batch)
        else:
            self._pending.discard(batch)
            self.committed_s[batch] = self._now()
