"""Process groups: who is left of an engine, and how to end them for certain.

An engine leads a process group of its own. Its leader's exit does not prove that the group is
gone: a scheduler or a compile helper may live on and hold device memory. Only
:func:`group_members` returning nothing is the proof.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from rolecall.engines.deadline import Deadline
from rolecall.errors import EngineError
from rolecall.processes.groups import group_members

_LOOK_INTERVAL_S = 0.05


async def end_group(group: int, deadline: Deadline) -> tuple[int, ...]:
    """Kill what is left of a process group and return who had been left, once all are gone.

    Returns an empty tuple at once when nobody was left.

    Raises:
        EngineError: a process is still there when the deadline passes; names the pids.
    """
    found = left = group_members(group)
    while left:
        with suppress(ProcessLookupError):  # the last one ended just now: the next look tells
            os.killpg(group, signal.SIGKILL)
        await deadline.pause(_LOOK_INTERVAL_S)
        left = group_members(group)
        if left and deadline.passed:
            raise EngineError(
                f"processes {', '.join(map(str, left))} of engine process group {group} outlived SIGKILL for "
                f"{deadline.total_s:.3g} s; their memory can't be counted as free"
            )
    return found
