"""A port for a process that a test starts."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a loopback port that nothing listened on just now.

    Nothing holds it: two processes may be given the same one, though the kernel avoids that for a while.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
