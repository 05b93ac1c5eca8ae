"""The event hub: one ordered stream of a job's events.

Appends every event to the event log, hands it to each observer, and lets readers follow the
stream. It owns nothing else: no state of the job depends on it, so losing it loses only sight.
An observer that raises is logged with its distribution and keeps being called; the first time is an
event, ``observer.raised``, since what an actor logs is seldom read.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rolecall.events.event import Event
from rolecall.interfaces.observer import Observer

logger = logging.getLogger(__name__)

HISTORY = 16_384
"""Events kept for readers that come late; older ones are in the event log only."""


def event_to_json(event: Event) -> dict[str, Any]:
    """One flat object: ``kind``, ``time_s`` and the fields."""
    return {"kind": event.kind, "time_s": event.time_s, **event.fields}


def event_from_json(line: Mapping[str, Any]) -> Event:
    """Inverse of :func:`event_to_json`."""
    fields = {key: value for key, value in line.items() if key not in {"kind", "time_s"}}
    return Event(kind=line["kind"], time_s=line["time_s"], fields=fields)


def read_event_log(path: Path) -> list[Event]:
    """Read a JSON-lines event log; a torn last line, left by a crash, is passed over."""
    events: list[Event] = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            events.append(event_from_json(json.loads(line)))
    return events


def _cut_torn_line(path: Path) -> None:
    """Take off a last line that a crash left unfinished, so that the next event has a line of its own."""
    if path.exists():
        whole = path.read_bytes().rpartition(b"\n")
        os.truncate(path, len(whole[0]) + len(whole[1]))


class SenderOrder:
    """Puts each sender's events back into the order in which they were sent.

    A Ray actor may start concurrent calls in any order. Group n + 1 of a sender's events is held until n
    has come; senders don't wait for each other.
    """

    def __init__(self, publish: Callable[[Event], None]) -> None:
        self._publish = publish
        self._next: dict[str, int] = {}
        self._early: dict[tuple[str, int], Sequence[Event]] = {}

    def take(self, sender: str, number: int, events: Sequence[Event]) -> None:
        """Take group ``number`` (from 0) of a sender and publish what is now in order."""
        self._early[sender, number] = events
        due = self._next.get(sender, 0)
        while (ready := self._early.pop((sender, due), None)) is not None:
            due += 1
            for event in ready:
                self._publish(event)
        self._next[sender] = due


class EventHub:
    """Lives in one event loop; observers run on one thread of their own, in order.

    ``observers`` maps a label, the plugin's name with its distribution, to the observer. ``append``: the
    log of the run that is resumed goes on; otherwise a log that is there is written anew.
    """

    def __init__(
        self, observers: Mapping[str, Observer], log_path: Path | None = None, *, append: bool = False
    ) -> None:
        self._observers = dict(observers)
        self._history: deque[tuple[int, Event]] = deque(maxlen=HISTORY)
        self._next_sequence = 0
        self._arrived = asyncio.Event()
        self._log: IO[str] | None = None
        if log_path is not None:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            if append:
                _cut_torn_line(log_path)
            self._log = log_path.open("a" if append else "w", encoding="utf-8")
        self._inbox: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._raised: set[str] = set()
        if self._observers:
            self._thread = threading.Thread(target=self._notify, name="observers", daemon=True)
            self._thread.start()

    def publish(self, event: Event) -> None:
        """Take one event: number it, log it, pass it on."""
        self._history.append((self._next_sequence, event))
        self._next_sequence += 1
        if self._log is not None:
            self._log.write(json.dumps(event_to_json(event)) + "\n")
            self._log.flush()
        if self._thread is not None:
            self._loop = asyncio.get_running_loop()
            self._inbox.put(event)
        self._arrived.set()
        self._arrived = asyncio.Event()

    async def tail(self, since: int, wait_s: float) -> tuple[int, list[Event]]:
        """Return the events from number ``since`` on and the number to ask for next.

        Waits up to ``wait_s`` for the first one. A reader that fell behind the history gets
        what is left of it.
        """
        if since >= self._next_sequence and wait_s > 0:
            arrived = self._arrived
            try:
                await asyncio.wait_for(arrived.wait(), wait_s)
            except TimeoutError:
                return since, []
        return self._next_sequence, [event for number, event in self._history if number >= since]

    def close(self) -> None:
        """Let observers finish what they were given, then close the log. Repeats do nothing."""
        if self._thread is not None:
            self._inbox.put(None)
            self._thread.join(timeout=10)
            self._thread = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def _notify(self) -> None:
        while (event := self._inbox.get()) is not None:
            for label, observer in self._observers.items():
                try:
                    observer.on_event(event)
                except Exception as error:  # an observer can change nothing, not even by raising
                    logger.exception("observer %s raised on %s", label, event.kind)
                    self._tell_once(label, event, error)

    def _tell_once(self, label: str, event: Event, error: Exception) -> None:
        if label in self._raised or self._loop is None:
            return
        self._raised.add(label)
        fields = {"observer": label, "event": event.kind, "error": f"{type(error).__name__}: {error}"}
        told = Event(kind="observer.raised", time_s=time.time(), fields=fields)
        try:
            self._loop.call_soon_threadsafe(self.publish, told)
        except RuntimeError:  # the loop has ended, and with it every reader
            logger.debug("nobody is left to be told of observer %s", label)
