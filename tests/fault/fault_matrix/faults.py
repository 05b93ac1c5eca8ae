"""Finds the processes that a cell hits, and hits them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from typing import Any

import psutil
from fault_matrix.cells import ROLE, Cell, Fault, Subject
from fault_matrix.job import Job
from fault_matrix.joined import Joined
from fault_matrix.network import NetworkLoss


def victims(cell: Cell, job: Job, processes: Mapping[str, Any], consumer: Joined) -> list[int]:
    """Return the living processes of a cell's subject; ``processes`` is a participant's answer."""
    role, actors = ROLE[cell.phase], processes["actors"]
    match cell.subject:
        case Subject.ENGINE:
            found = [pid for pid in processes["engines"][role] if pid is not None]
        case Subject.WORKER:
            found = [pid for name, pid in actors.items() if name.startswith(f"worker:{role}:")]
        case Subject.MANAGER:
            found = [actors[f"role:{role}"]]
        case Subject.COORDINATOR:
            found = [actors["coordinator"]]
        case Subject.GATEWAY:
            found = job.named("ray::ServeReplica", "ray::ProxyActor")
        case Subject.CONSUMER:
            found = [consumer.pid]
        case Subject.RAY_HEAD:
            found = job.named("gcs_server")
    return [pid for pid in found if psutil.pid_exists(pid)]


class Hit:
    """A fault, from its beginning to its end. Killing ends at once."""

    def __init__(self, fault: Fault, pids: Iterable[int], others: Iterable[int]) -> None:
        self._fault = fault
        self._pids = tuple(pids)
        self._loss: NetworkLoss | None = None
        match fault:
            case Fault.KILL:
                self._signal(signal.SIGKILL)
            case Fault.STOP | Fault.LONG_STOP:
                self._signal(signal.SIGSTOP)
            case Fault.NETWORK:
                self._loss = NetworkLoss(self._pids, others)

    def end(self) -> None:
        """Let the processes go on. Repeats do nothing."""
        if self._loss is not None:
            self._loss.heal()
        elif self._fault is not Fault.KILL:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue  # ended meanwhile, e.g. because of the fault
