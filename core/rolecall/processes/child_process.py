"""One child process: its own group, bound to its parent's life, its output in a log file.

For plugins whose engines or routers are programs. Owns the child from ``start`` to a confirmed
``stop``; knows nothing of HTTP or of models. The child is started in a new session, so that its
whole group can be signalled, and through ``bound_exec``, so that it dies when the thread that
called ``start`` does.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rolecall.errors import EngineError
from rolecall.processes import bound_exec

if TYPE_CHECKING:
    import subprocess

_POLL_S = 0.02
_TAIL_BYTES = 8192
_TAIL_LINES = 30
_TERMINATE_SHARE = 0.5
"""Part of a stop's time-out given to SIGTERM before SIGKILL."""


class ChildProcess:
    """A child process that is started once and stopped with proof."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], log_path: Path) -> None:
        self._command = tuple(command)
        self._environment = dict(environment)
        self._log_path = log_path
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id, which is also the group's id; None before ``start``."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the child; call it from the thread whose life the child shall share.

        Raises:
            EngineError: it was started before, or the program or log file can't be opened.
        """
        import subprocess  # a while to import; plugins import this module while a job is planned

        if self._child is not None:
            raise EngineError(f"the process was started before, as pid {self._child.pid}")
        bound = [sys.executable, "-I", "-S", bound_exec.__file__, str(os.getpid()), *self._command]
        try:
            self._log_path.parent.mkdir(parents=True, exist_ok=True)
            with self._log_path.open("ab") as log:
                self._child = subprocess.Popen(
                    bound,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self._environment},
                    start_new_session=True,
                )
        except OSError as error:
            raise EngineError(f"cannot start {self._command[0]}: {error}") from error

    def exit_code(self) -> int | None:
        """Exit code once the child has ended (negative: signal); None before and while it runs."""
        return None if self._child is None else self._child.poll()

    def group_alive(self) -> bool:
        """Whether any process of the child's group is left; one that only waits to be reaped is not.

        Orphans of the group go to init, and a container's init may take its time, or never reap.
        """
        if self._child is None:
            return False
        if self._child.poll() is None:
            # Not reaped: it runs, or it shows as a zombie while its last threads still hold memory.
            return True
        try:
            os.killpg(self._child.pid, 0)
        except ProcessLookupError:
            return False
        from rolecall.processes.groups import group_members  # psutil, for the same reason

        return bool(group_members(self._child.pid))

    async def stop(self, timeout_s: float) -> None:
        """SIGTERM the group, then SIGKILL it, and return when nothing of it is left.

        Repeats do nothing, as does a stop before ``start``. Cancelling leaves the group in
        whatever state it has reached; a further ``stop`` carries on.

        Raises:
            EngineError: a member is still there after ``timeout_s``.
        """
        if not self.group_alive():
            return
        self._signal(signal.SIGTERM)
        if await self._gone_within(timeout_s * _TERMINATE_SHARE):
            return
        self._signal(signal.SIGKILL)
        if await self._gone_within(timeout_s * (1 - _TERMINATE_SHARE)):
            return
        raise EngineError(
            f"process group {self.pid} is still there {timeout_s:g} s after it was told to stop; "
            f"see {self._log_path} and `ps -o pid,stat,cmd -g {self.pid}`"
        )

    def log_tail(self) -> str:
        """The last lines of the log, for an error message."""
        try:
            with self._log_path.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError as error:
            return f"(log unreadable: {error})"
        return "\n".join(text.splitlines()[-_TAIL_LINES:]) or "(the log is empty)"

    def _signal(self, number: signal.Signals) -> None:
        assert self._child is not None
        try:
            os.killpg(self._child.pid, number)
        except ProcessLookupError:
            return  # gone between the look and the signal, which is what was wanted

    async def _gone_within(self, timeout_s: float) -> bool:
        import asyncio

        deadline = asyncio.get_running_loop().time() + timeout_s
        while self.group_alive():
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True
