"""Who is left of a process group. Only looks."""

from __future__ import annotations

import os

import psutil


def group_members(group: int) -> tuple[int, ...]:
    """Return the living processes of a process group; zombies hold nothing and don't count."""
    members: list[int] = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue  # ended between the listing and the look
        except (PermissionError, psutil.AccessDenied):
            continue  # another user's process can't be in a group that we made
    return tuple(members)
