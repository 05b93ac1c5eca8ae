"""The matrix: what is hit, when, and how."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from attrs import frozen


class Subject(StrEnum):
    """What is hit; of engine, worker and manager, those of the role that the phase is about."""

    ENGINE = "engine"
    WORKER = "worker"
    MANAGER = "manager"
    COORDINATOR = "coordinator"
    GATEWAY = "gateway"
    CONSUMER = "consumer"
    RAY_HEAD = "Ray head"


class Phase(StrEnum):
    """Where the batch stands when the fault comes; each is held open by a gate."""

    GENERATE = "generate"
    OFFLOAD = "offload"
    ONLOAD = "onload"
    JUDGE = "judge stage"
    PUT = "put"
    COMMIT = "commit"


class Fault(StrEnum):
    """What is done to it. The last three end again, which is when late answers come."""

    KILL = "SIGKILL"
    STOP = "SIGSTOP"
    NETWORK = "network loss"
    LONG_STOP = "SIGSTOP past the deadline"


GENERATOR, JUDGE = "rollout", "teacher"
"""The job's two roles, on one device slot."""

GATE = {
    Phase.GENERATE: "generate",
    Phase.OFFLOAD: f"offload-{GENERATOR}",
    Phase.ONLOAD: f"onload-{JUDGE}",
    Phase.JUDGE: "judge",
    Phase.PUT: "put",
    Phase.COMMIT: "commit",
}

ROLE = {
    Phase.GENERATE: GENERATOR,
    Phase.OFFLOAD: GENERATOR,
    Phase.ONLOAD: JUDGE,
    Phase.JUDGE: JUDGE,
    Phase.PUT: JUDGE,
    Phase.COMMIT: JUDGE,
}
"""The role whose engine, worker or manager is hit: the one at work, or the last one that was."""

_COMMANDED = (Subject.ENGINE, Subject.WORKER, Subject.MANAGER, Subject.COORDINATOR)
"""Subjects that a lease command goes through, so that its deadline can pass."""

_HAND_OVERS = (Phase.OFFLOAD, Phase.ONLOAD)


@frozen
class Cell:
    subject: Subject
    phase: Phase
    fault: Fault

    def __str__(self) -> str:
        return f"{self.subject}, {self.phase}, {self.fault}"


def cells() -> Iterator[Cell]:
    """Every cell of the matrix, those that a job does not outlive last in each row of subjects."""
    for subject in Subject:
        for fault in (Fault.STOP, Fault.NETWORK, Fault.LONG_STOP, Fault.KILL):
            for phase in Phase:
                if fault is not Fault.LONG_STOP or (subject in _COMMANDED and phase in _HAND_OVERS):
                    yield Cell(subject, phase, fault)
