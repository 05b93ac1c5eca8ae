"""Find processes that this CI run started and that are still alive: a failure, and then killed.

Every process of the run carries ``ROLECALL_CI_RUN`` in its environment; processes of anyone else
are left alone. Those on their way out get a moment.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

GRACE_S = 20.0


def ancestors() -> frozenset[int]:
    """Return this process and those that started it."""
    found: list[int] = []
    pid = os.getpid()
    while pid > 0:
        found.append(pid)
        try:
            status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except OSError:
            break
        pid = int(status.rpartition(")")[2].split()[1])
    return frozenset(found)


def left(mark: bytes) -> dict[int, str]:
    """Return pid and command line of the run's living processes."""
    found: dict[int, str] = {}
    mine = ancestors()
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            # A zombie's environment reads empty, so it does not count.
            if pid not in mine and mark in (folder / "environ").read_bytes().split(b"\0"):
                found[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # ended meanwhile, or another user's
    return found


def main() -> None:
    mark = f"ROLECALL_CI_RUN={os.environ['ROLECALL_CI_RUN']}".encode()
    deadline = time.monotonic() + GRACE_S
    while (found := left(mark)) and time.monotonic() < deadline:
        time.sleep(0.5)
    for pid, command in found.items():
        print(f"left behind: process {pid}: {command[:200]}", flush=True)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
