"""Looks at the engines' processes themselves: no two roles' may hold a model's memory at once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

_POLL_S = 0.1
_SETTLED_S = 3.0
"""A process younger than this may yet become an engine: between fork and exec it looks like its parent."""
_PAGE = os.sysconf("SC_PAGE_SIZE")

AWAKE_BYTES = 160 * 1024**2
"""An engine of the small model holds 236 to 290 MiB awake, and 86 MiB asleep."""


class MemoryWatch:
    """Watches the processes whose command line has the word that stands for a role, until it is closed."""

    def __init__(self, marks: Mapping[str, str]) -> None:
        self._roles = tuple(marks)
        self._marks = {mark.encode(): role for role, mark in marks.items()}
        self._known: dict[tuple[int, str], tuple[str | None, float]] = {}
        self._problems: list[str] = []
        self._most: dict[str, int] = dict.fromkeys(marks, 0)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def problems(self) -> list[str]:
        """Return what was seen since the last call; that includes what has to be seen, and was not."""
        seen, self._problems = self._problems, []
        if not self._thread.is_alive():
            seen.append("the memory watch has ended")
        seen += [f"{role} was never seen awake" for role, most in self._most.items() if most < AWAKE_BYTES]
        return seen

    def engines(self) -> dict[int, str]:
        """Return the living engine processes, pid to role."""
        return {pid: role for pid, role, _ in self._look()}

    def _watch(self) -> None:
        while not self._closed.wait(_POLL_S):
            held = dict.fromkeys(self._roles, 0)
            for _, role, resident in self._look():
                held[role] = max(held[role], resident)
                self._most[role] = max(self._most[role], resident)
            if sum(resident > AWAKE_BYTES for resident in held.values()) > 1 and not self._problems:
                self._problems.append(f"engines of two roles held memory at once: {held}")

    def _look(self) -> list[tuple[int, str, int]]:
        found: list[tuple[int, str, int]] = []
        for name in os.listdir("/proc"):
            if not name.isdecimal():
                continue
            try:
                stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                key = (int(name), stat[19])
                role, first_seen = self._known.get(key, (None, time.monotonic()))
                if role is None and time.monotonic() - first_seen < _SETTLED_S:
                    role = self._role(key[0])
                self._known[key] = role, first_seen
                if role is not None and stat[0] != "Z":
                    found.append((key[0], role, int(stat[21]) * _PAGE))
            except OSError:
                continue  # ended meanwhile
        return found

    def _role(self, pid: int) -> str | None:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return next((role for mark, role in self._marks.items() if mark in words), None)
