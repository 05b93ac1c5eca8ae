"""Processes that are started here, pinned to a core, looked at, and ended without a trace.

Each leads a session of its own, so Ctrl-C reaches this program alone; whatever belongs to that session is
counted as the process's use and ended with it, and nothing else is touched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import psutil
from attrs import define, field, frozen

PATIENCE_S = 5.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class BenchmarkError(Exception):
    """Something can't be measured; the message says why, in one line."""


@frozen(kw_only=True)
class Cores:
    """``subject`` is for what is measured, ``load`` for everything else."""

    load: int
    subject: int

    @classmethod
    def chosen(cls) -> Cores:
        """Return two of the cores this process may use; the same one twice where there is no other."""
        allowed = sorted(os.sched_getaffinity(0))
        return cls(load=allowed[0], subject=allowed[-1])


# --- starting and ending ------------------------------------------------------------------


@define(eq=False)
class Started:
    """One process and its session; ``log`` has what it said, without its output if that is piped."""

    process: subprocess.Popen[str]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs. It stays to be reaped, so its number is nobody else's."""
        if self.process.returncode is not None:
            return False
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def line(self) -> str:
        """Return the next line of the piped output.

        Raises:
            BenchmarkError: it ended without one.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise BenchmarkError(f"it ended unexpectedly: {self.last_words()}")
        return line.strip()

    def last_words(self) -> str:
        """Return the last line of the log that has something in it."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else "it said nothing"

    def members(self) -> list[int]:
        """Return the processes of the session. Right as long as :meth:`end` has not returned."""
        return [pid for pid in psutil.pids() if _session_of(pid) == self.pid]

    def end(self) -> None:
        """End the session: ask its leader, wait, kill what is left. Repeats do nothing."""
        if self.process.returncode is not None:
            return
        self.process.terminate()
        deadline = time.monotonic() + PATIENCE_S
        while self.alive and time.monotonic() < deadline:
            time.sleep(0.02)
        # The leader is not reaped yet, so its number can't be anybody else's session.
        while left := [pid for pid in self.members() if not _is_dead(pid)]:
            for pid in left:
                with suppress(ProcessLookupError):  # it may end by itself
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@define
class Processes:
    """All that was started in the block; its end is theirs. ``folder`` takes their logs."""

    folder: Path
    _started: list[Started] = field(factory=list[Started], init=False)
    _count: int = field(default=0, init=False)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        with uninterrupted():
            for started in reversed(self._started):
                started.end()

    def start(
        self,
        command: Sequence[str],
        *,
        core: int,
        piped: bool = False,
        environment: dict[str, str] | None = None,
    ) -> Started:
        """Start a command on one core; its output goes to its log, or to :meth:`Started.line`."""
        self._count += 1
        path = self.folder / f"process-{self._count}.log"
        with path.open("w") as log, uninterrupted(), pinned(core):
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else log,
                stderr=log,
                text=True,
                start_new_session=True,
                env=os.environ | (environment or {}),
            )
            started = Started(process, path)
            self._started.append(started)
        return started


@contextmanager
def pinned(core: int) -> Generator[None]:
    """Hold this thread, and what it starts, to one core for the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def uninterrupted() -> Generator[None]:
    """Put signals that end this program off to the end of the block: nothing may be lost between.

    They are caught, not blocked: what is started would inherit the blocking, and not end when asked to.
    """
    arrived: list[int] = []

    def remember(number: int, _: object) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, remember) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in arrived[:1]:
            signal.raise_signal(number)


# --- looking ------------------------------------------------------------------------------


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of processes, all threads and reaped children included."""
    return sum(_cpu_ticks(Path(f"/proc/{pid}/stat").read_text()) for pid in pids) / _TICKS_A_SECOND


def _cpu_ticks(stat: str) -> int:
    # The name in parentheses may hold anything, parentheses too; utime is the 14th field of all.
    fields = stat[stat.rindex(")") + 2 :].split()
    return sum(int(ticks) for ticks in fields[11:15])


def memory_mb(pids: Iterable[int | Literal["self"]], *, peak: bool = False) -> float:
    """Return the resident memory of processes, or the sum of their peaks since :func:`reset_peaks`."""
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return sum(_kilobytes(text, "VmHWM" if peak else "VmRSS") for text in texts) / 1024


def _kilobytes(status: str, name: str) -> int:
    return next(
        (int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{name}:")),
        0,  # a process that has just ended has no memory
    )


def reset_peaks(pids: Iterable[int | Literal["self"]]) -> None:
    """Let the kernel measure peaks of memory from now on."""
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def _is_dead(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat[stat.rindex(")") + 2] in "ZX"


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None
