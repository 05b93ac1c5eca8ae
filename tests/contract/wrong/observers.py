"""Observers that break a promise, and one that breaks none."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from rolecall.api import ROLECALL_API, Event
from rolecall.testing import ObserverContract


class SoundObserver:
    """Counts."""

    name: ClassVar[str] = "sound_observer"
    api_version: ClassVar[int] = ROLECALL_API

    def __init__(self) -> None:
        self.seen = 0

    def on_event(self, event: Event) -> Any:
        self.seen += 1


class TestSoundObserver(ObserverContract):
    plugin = SoundObserver
    fails: ClassVar = {}


class Narrow(SoundObserver):
    """Takes it that every event is about a role."""

    name = "narrow"

    def on_event(self, event: Event) -> Any:
        if event.kind != "thing.never_heard_of":
            event.fields["role"]


class TestNarrow(ObserverContract):
    plugin = Narrow
    fails: ClassVar = dict.fromkeys(
        (
            "test_it_takes_every_kind_of_event",
            "test_it_leaves_the_event_as_it_was",
            "test_it_takes_kinds_and_fields_that_come_later",
            "test_it_is_called_from_a_thread_of_its_own",
            "test_two_of_them_do_not_disturb_each_other",
            "test_it_keeps_taking_events",
        ),
        "KeyError: 'role'",
    )


class Closed(SoundObserver):
    """Knows the kinds of today."""

    name = "closed"

    def on_event(self, event: Event) -> Any:
        if event.kind.partition(".")[0] == "thing":
            raise ValueError(f"{event.kind} is no kind of event")


class TestClosed(ObserverContract):
    plugin = Closed
    fails: ClassVar = {"test_it_takes_kinds_and_fields_that_come_later": "is no kind of event"}


class Tidying(SoundObserver):
    """Takes out of an event what it has read."""

    name = "tidying"

    def on_event(self, event: Event) -> None:
        event.fields.pop("reason", None)  # type: ignore[attr-defined]


class TestTidying(ObserverContract):
    plugin = Tidying
    fails: ClassVar = {"test_it_leaves_the_event_as_it_was": "the observer changed the event"}


class Promising(SoundObserver):
    """Nobody awaits it."""

    name = "promising"

    async def on_event(self, event: Event) -> None:
        self.seen += 1


class TestPromising(ObserverContract):
    plugin = Promising
    fails: ClassVar = dict.fromkeys(
        TestNarrow.fails.keys() - {"test_it_leaves_the_event_as_it_was"},
        "on_event returned <coroutine object .*nobody takes it, and nobody awaits it",
    )


class AtHome(SoundObserver):
    """Works where it was made, in the main thread."""

    name = "at_home"

    def on_event(self, event: Event) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("there is no current event loop in this thread")


class TestAtHome(ObserverContract):
    plugin = AtHome
    fails: ClassVar = {"test_it_is_called_from_a_thread_of_its_own": "there is no current event loop"}


class Alone(SoundObserver):
    """There can be only one."""

    name = "alone"
    owner: ClassVar[Any] = None

    def __init__(self) -> None:
        super().__init__()
        type(self).owner = self

    def on_event(self, event: Event) -> Any:
        if self.owner is not self:
            raise RuntimeError("the socket is taken")


class TestAlone(ObserverContract):
    plugin = Alone
    fails: ClassVar = {"test_two_of_them_do_not_disturb_each_other": "the socket is taken"}


class FillingUp(SoundObserver):
    """Keeps everything, in a space that ends."""

    name = "filling_up"

    def on_event(self, event: Event) -> Any:
        super().on_event(event)
        if self.seen > 1_000:
            raise MemoryError("1000 events are kept")


class TestFillingUp(ObserverContract):
    plugin = FillingUp
    fails: ClassVar = {"test_it_keeps_taking_events": "1000 events are kept"}
