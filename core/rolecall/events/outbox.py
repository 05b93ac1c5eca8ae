"""Where events leave a process: those of a moment together, in their order.

Pure asyncio. Emitting costs an append: what sends (a call to another process) is called a moment later, when
the work that emitted is on its way, so nobody waits for being seen. Who ends the process, or its way out,
calls :func:`flush_all` first; one that is killed takes the events of its last moment with it. Outside an
event loop, as in a thread, events leave at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from rolecall.events.event import Event

logger = logging.getLogger(__name__)

MOMENT_S = 0.025
"""Longer than a hand-over between two roles takes without their engines."""

_holding: set[Outbox] = set()


def flush_all() -> None:
    """Send what waits anywhere in this process."""
    for outbox in tuple(_holding):
        outbox.flush()


class Outbox:
    """An :class:`~rolecall.events.event.Emit`. Safe to use from any thread.

    ``send`` takes the group's number, from 0 without a gap, and its events. If it raises, these events are
    lost, which is logged: sight may be lost, work may not.
    """

    def __init__(self, send: Callable[[int, list[Event]], object]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._waiting: list[Event] = []
        self._sent = 0
        self._due_in: asyncio.AbstractEventLoop | None = None

    def __call__(self, kind: str, /, **fields: Any) -> None:
        event = Event(kind=kind, time_s=time.time(), fields=fields)
        with self._lock:
            self._waiting.append(event)
            due_in = self._due_in if len(self._waiting) > 1 else None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        if due_in is not loop:  # nothing is to come, or only in a loop that may have ended
            self._due_in = loop
            _holding.add(self)
            loop.call_later(MOMENT_S, self.flush)

    def flush(self) -> None:
        """Send what waits."""
        with self._lock:
            events, self._waiting = self._waiting, []
            _holding.discard(self)
            if not events:
                return
            try:
                self._send(self._sent, events)
            except Exception:
                logger.exception("%d events were not sent, the first is %s", len(events), events[0].kind)
            else:
                self._sent += 1
