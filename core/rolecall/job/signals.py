"""How a job process hears that it should end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def on_ending_signal(act: Callable[[], object]) -> None:
    """Call ``act`` in the running loop when a signal asks this process to end.

    To be repeated once Ray has been joined: it puts a handler of its own in place of ours.
    """
    loop = asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, act)


def cancel_on_ending_signal() -> None:
    """Cancel the current task when a signal asks this process to end; also to be repeated."""
    task = asyncio.current_task()
    assert task is not None
    on_ending_signal(task.cancel)
