"""Finding and ending what a dead worker's engine left on its node.

Every process of an engine carries a mark in its environment: which engine of which job it is, and
which start of it. The engine of a worker that dies should die with it (parent-death signal); the
reaper is who looks. It runs on the worker's node, ends what is left of that one start, and reports:
processes gone and their device memory gone is *evidence*, as good as a stop's; anything else names
what is left. It knows no replica, and decides nothing.

Marked processes only: a recycled process or group number can never be taken for an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Protocol

import psutil
from attrs import frozen

from rolecall.engines.deadline import Deadline
from rolecall.engines.device_memory import device_memory_of
from rolecall.engines.worker_handle import WorkerSlot
from rolecall.errors import EngineError
from rolecall.ids import EngineId, RoleName
from rolecall.processes.marks import RUN_DIR_VARIABLE

MARK_VARIABLE = "ROLECALL_ENGINE"

PARENT_DEATH_S = 2.0
"""How long an engine may take to die of its worker's death before the reaper ends it."""

STUBBORN_S = 10.0
"""What outlives SIGKILL for so long hangs in the kernel, and waiting longer would be of no use."""

_LOOK_INTERVAL_S = 0.05


@frozen(kw_only=True)
class EngineMark:
    """Which start of which engine a process belongs to."""

    namespace: str
    role: RoleName
    engine: EngineId
    incarnation: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.role}/{self.engine}/{self.incarnation}"

    def marks(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment is one of the engine's."""
        return environment.get(MARK_VARIABLE) == str(self)

    def variables(self) -> dict[str, str]:
        """The environment that every process of the engine must carry.

        Programs that write a title over their command line use the environment's place for it,
        too, and the mark would be lost; ``SPT_NOENV`` is how setproctitle is told not to.
        """
        return {MARK_VARIABLE: str(self), "SPT_NOENV": "1"}


@frozen(kw_only=True)
class RunMark:
    """All engines of one process of a job; ``run`` is its run folder."""

    run: str

    def __str__(self) -> str:
        return f"engines of run {self.run}"

    def marks(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment is one of an engine's."""
        return MARK_VARIABLE in environment and environment.get(RUN_DIR_VARIABLE) == self.run


@frozen(kw_only=True)
class ReapReport:
    """What was found of one engine start on one node.

    killed: processes that had outlived their worker and were killed.
    left: processes that are still there.
    left_bytes: device memory that is still booked on any process that was seen.
    devices_seen: whether the node's device memory could be looked at; it can't without NVML.
    """

    killed: tuple[int, ...]
    left: tuple[int, ...]
    left_bytes: int
    devices_seen: bool

    @property
    def vacant(self) -> bool:
        """Whether this is evidence that nothing of the engine is left."""
        return not self.left and self.left_bytes == 0

    def __str__(self) -> str:
        killed = f"killed process {_names(self.killed)}; " if self.killed else ""
        if self.left:
            held = f" with {_mib(self.left_bytes)} of device memory" if self.left_bytes else ""
            return f"{killed}process {_names(self.left)} outlived SIGKILL{held}"
        if self.left_bytes:
            return f"{killed}no process is left, but {_mib(self.left_bytes)} of device memory are"
        devices = "none of their device memory" if self.devices_seen else "device memory was not looked at"
        return f"{killed}no process with its mark is left, {devices}"


class NodeGoneError(EngineError):
    """The node is not part of the cluster any more. What runs on it is not known."""


class Reaper(Protocol):
    """Has a look taken on the node of a slot whose worker is dead."""

    async def __call__(self, slot: WorkerSlot, incarnation: int, deadline: Deadline) -> ReapReport:
        """End what is left of the slot's engine and report; repeats look again.

        Raises:
            NodeGoneError: the node has left the cluster; that proves nothing about its processes.
            EngineError: nobody could look in time.
        """
        ...


async def reap(
    mark: EngineMark | RunMark,
    deadline: Deadline,
    *,
    grace_s: float = PARENT_DEATH_S,
    device_memory: Callable[[Collection[int]], Mapping[int, int] | None] = device_memory_of,
) -> ReapReport:
    """Wait ``grace_s`` for the marked processes to end, kill the others, and say what is left."""
    grace = deadline.at_most(grace_s)
    seen: set[int] = set()
    while found := _seen_now(mark, seen):
        if grace.passed:
            break
        await grace.pause(_LOOK_INTERVAL_S)
    patience = deadline.at_most(STUBBORN_S)
    killed = {process.pid for process in found}
    while found:
        killed |= {process.pid for process in found}
        for process in found:
            with suppress(psutil.NoSuchProcess):  # it ended just now: the next look tells
                process.kill()
        await patience.pause(_LOOK_INTERVAL_S)
        found = _seen_now(mark, seen)
        if patience.passed:
            break
    # A driver gives memory back a moment after its process has ended.
    while (held := device_memory(seen)) and any(held.values()) and not patience.passed:
        await patience.pause(_LOOK_INTERVAL_S)
    return ReapReport(
        killed=tuple(sorted(killed)),
        left=tuple(sorted(process.pid for process in found)),
        left_bytes=sum((held or {}).values()),
        devices_seen=held is not None,
    )


def marked_processes(mark: EngineMark | RunMark) -> list[psutil.Process]:
    """Return the living processes that carry the mark; zombies hold nothing and don't count."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if mark.marks(process.environ()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it has ended, or is another user's: not an engine that a worker here started
    return found


def _seen_now(mark: EngineMark | RunMark, seen: set[int]) -> list[psutil.Process]:
    found = marked_processes(mark)
    seen.update(process.pid for process in found)
    return found


def _names(pids: Collection[int]) -> str:
    return ", ".join(map(str, sorted(pids)))


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
