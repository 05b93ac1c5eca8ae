"""The processes of one SGLang engine besides its leader: schedulers, detokenizers, controllers.

SGLang's HTTP server may outlive them and go on answering, so they are looked at by themselves. They are
known by the titles that SGLang gives them (``sglang::scheduler_TP0``); helpers such as compilers come and
go, and are not counted. Used by the engine object alone; looking changes nothing outside.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil

_TITLE = "sglang::"


class EngineMembers:
    """Remembers every member it has seen, and tells which of them have ended."""

    def __init__(self) -> None:
        self._seen: dict[psutil.Process, str] = {}

    def look(self, group: int) -> list[str]:
        """Look at process group ``group``; return the members, by title and id, that have ended."""
        for process in _of_group(group):
            if process in self._seen or (title := _title(process)) is None:
                continue
            if not _is_fork(process, title):
                self._seen[process] = title
        return [f"{title} (pid {each.pid})" for each, title in self._seen.items() if not _runs(each)]

    @property
    def pids(self) -> frozenset[int]:
        """Process ids of the members that were seen and still run."""
        return frozenset(process.pid for process in self._seen if _runs(process))


def listens(group: int, port: int) -> bool:
    """Whether a process of the group listens on the TCP port."""
    return any(port in _listening_ports(process) for process in _of_group(group))


def group_pids(group: int) -> frozenset[int]:
    """Process ids of everything in the group, its leader included."""
    return frozenset(process.pid for process in _of_group(group))


def _of_group(group: int) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group:
                yield process
        except ProcessLookupError:
            continue  # it ended while it was looked at


def _title(process: psutil.Process) -> str | None:
    try:
        words = process.cmdline()
    except psutil.Error:
        return None  # it ended, or is ending
    return words[0].split()[0] if words and words[0].startswith(_TITLE) else None


def _is_fork(process: psutil.Process, title: str) -> bool:
    """Whether it is a member's child on its way to become something else: it has its parent's title."""
    try:
        return _title(psutil.Process(process.ppid())) == title
    except psutil.NoSuchProcess:
        return True  # it ended between two looks at it, so it was one


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _listening_ports(process: psutil.Process) -> set[int]:
    try:
        connections = process.net_connections(kind="tcp")
    except psutil.Error:
        return set()  # it ended, or is ending
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
