"""Run a command that cannot outlive the process that started it.

usage: python bound_exec.py PARENT_PID COMMAND [ARGUMENT …]

Asks the kernel to kill this process when its parent dies, then becomes the command (the request
survives ``execve``). The parent may have died before the request was made; the parent id given on
the command line settles that race. Only the standard library: it is run by path, without ``site``.

Linux sends the signal when the *thread* that forked ends, so start children from a thread that
lives as long as they should: an actor's event loop, never a pool thread.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel SIGKILL this process when ``parent_pid`` ends; exit now if it has ended."""
    import ctypes  # not needed by a plugin that only imports rolecall.api

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != parent_pid:
        sys.exit(f"the process that started this one (pid {parent_pid}) has ended")


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
