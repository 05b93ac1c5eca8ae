"""Network loss for a process that runs, without rights and without its help; Linux only.

Nothing that is sent to any of the process's TCP sockets arrives any more, at listening ones neither: the
kernel drops it by a socket filter, as if a cable was pulled. What was sent is kept and repeated by who sent
it, as TCP does, so everything goes on when the filter is taken away. At first also the other ends of its
connections, in the processes that are named, hear nothing. A socket that the process opens meanwhile is
deaf within some milliseconds. Unix sockets are no network and are left alone.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterable
from pathlib import Path

import psutil

_PIDFD_GETFD = 438
_ATTACH_FILTER, _DETACH_FILTER = 26, 27
_TCP_STATE_LISTEN_POLL_S = 0.02

_libc = ctypes.CDLL(None, use_errno=True)
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
"""One BPF instruction: keep 0 bytes."""
_PROGRAM = struct.pack("HL", 1, ctypes.addressof(_DROP_ALL))


class NetworkLoss:
    """Begins when it is made and ends by :meth:`heal`, at the latest when the block is left.

    Args:
        victims: processes that are cut off.
        others: processes whose connections to a victim are cut as well.
    """

    def __init__(self, victims: Iterable[int], others: Iterable[int] = ()) -> None:
        self._deaf: dict[tuple[int, str], socket.socket] = {}
        self._victims = tuple(victims)
        self._healed = threading.Event()
        ends = self._cut_victims()
        for pid in others:
            if pid not in self._victims:
                self._cut(pid, only=ends)
        self._thread = threading.Thread(target=self._follow, name="network loss", daemon=True)
        self._thread.start()

    def heal(self) -> None:
        """Let everything through again. Repeats do nothing."""
        self._healed.set()
        self._thread.join()
        for held in self._deaf.values():
            held.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, b"\0\0\0\0")
            # Only our descriptor; the process's own stays open.
            held.close()
        self._deaf.clear()

    def _follow(self) -> None:
        while not self._healed.wait(_TCP_STATE_LISTEN_POLL_S):
            self._cut_victims()

    def _cut_victims(self) -> frozenset[tuple[str, int]]:
        return frozenset(end for pid in self._victims for end in self._cut(pid))

    def _cut(self, pid: int, only: frozenset[tuple[str, int]] | None = None) -> list[tuple[str, int]]:
        """Make the process's TCP sockets deaf; return their own addresses.

        ``only``: just the connections whose other end is one of these.
        """
        addresses: list[tuple[str, int]] = []
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return addresses
        try:
            for number, inode in _sockets(pid):
                if (pid, inode) in self._deaf or (taken := _take(pidfd, number)) is None:
                    continue
                if not _is_tcp(taken) or (only is not None and _other_end(taken) not in only):
                    taken.close()
                    continue
                taken.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, _PROGRAM)
                self._deaf[pid, inode] = taken
                addresses.append(taken.getsockname()[:2])
        finally:
            os.close(pidfd)
        return addresses


def processes_with(variable: str, value: str) -> list[psutil.Process]:
    """Return the living processes that have the variable in their environment."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(variable) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _sockets(pid: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(link)
            except OSError:
                continue  # closed meanwhile
            if target.startswith("socket:"):
                found.append((int(link.name), target))
    except OSError:
        pass  # the process has ended
    return found


def _take(pidfd: int, number: int) -> socket.socket | None:
    """Return a descriptor of ours for the process's socket; None if it was closed meanwhile."""
    taken = _libc.syscall(_PIDFD_GETFD, pidfd, number, 0)
    if taken < 0:
        error = ctypes.get_errno()
        if error == 1:
            raise PermissionError(error, "this system lets no process take another's sockets (pidfd_getfd)")
        return None
    return socket.socket(fileno=taken)


def _is_tcp(taken: socket.socket) -> bool:
    return taken.family in (socket.AF_INET, socket.AF_INET6) and taken.type == socket.SOCK_STREAM


def _other_end(taken: socket.socket) -> tuple[str, int] | None:
    try:
        return taken.getpeername()[:2]
    except OSError:
        return None  # it listens
