"""Contract of observers, as a test class to inherit.

    class TestPager(ObserverContract):
        plugin = Pager

The core isolates an observer that raises; one that keeps the contract does not.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from copy import deepcopy
from typing import Any, ClassVar

import pytest
from attrs import evolve

from rolecall.events.event import Event
from rolecall.interfaces.observer import Observer
from rolecall.plugins.kinds import PluginKind
from rolecall.testing.plugin_contract import PluginContract
from rolecall.testing.sample_events import SAMPLE_EVENTS

_every_kind = pytest.mark.parametrize("event", SAMPLE_EVENTS, ids=[event.kind for event in SAMPLE_EVENTS])


class ObserverContract(PluginContract):
    """What every observer has to do.

    Override ``fresh`` if what it writes to has to be kept away from the real thing.
    """

    kind: ClassVar[PluginKind] = PluginKind.OBSERVER

    def fresh(self) -> Observer:
        """Return the observer as the core makes it: without arguments."""
        return self.plugin()

    @_every_kind
    def test_it_takes_every_kind_of_event(self, event: Event) -> None:
        """As the first one, and again: what happened before a job's hub began is told to nobody."""
        observer = self.fresh()
        for _ in range(2):
            _observe(observer, event)

    @_every_kind
    def test_it_leaves_the_event_as_it_was(self, event: Event) -> None:
        """The event log and the other observers get the same object."""
        given = deepcopy(event)
        self.fresh().on_event(given)
        assert given == event, "the observer changed the event"

    def test_it_takes_kinds_and_fields_that_come_later(self) -> None:
        """A newer rolecall tells of more; an observer passes over what it does not know."""
        observer = self.fresh()
        _observe(observer, Event(kind="thing.never_heard_of", time_s=0.0))
        _observe(observer, Event(kind="thing.never_heard_of", time_s=1e9, fields={"deep": {"list": [None]}}))
        for event in SAMPLE_EVENTS:
            _observe(observer, evolve(event, fields={**event.fields, "new_field": [1, "two", None]}))

    def test_it_is_called_from_a_thread_of_its_own(self) -> None:
        """Not the main thread, and no event loop runs in it."""
        observer = self.fresh()

        def observe_all() -> None:
            for event in SAMPLE_EVENTS:
                _observe(observer, event)

        _in_a_thread(observe_all)

    def test_two_of_them_do_not_disturb_each_other(self) -> None:
        """Two jobs on one machine, or two in one process, have an observer each."""
        one, other = self.fresh(), self.fresh()
        for event in SAMPLE_EVENTS:
            _observe(one, event)
            _observe(other, event)

    def test_it_keeps_taking_events(self) -> None:
        """A job tells of thousands."""
        observer = self.fresh()
        for number in range(1_200):
            event = SAMPLE_EVENTS[number % len(SAMPLE_EVENTS)]
            _observe(observer, evolve(event, time_s=event.time_s + number))


def _observe(observer: Any, event: Event) -> None:
    answer = observer.on_event(deepcopy(event))
    if inspect.iscoroutine(answer):
        answer.close()
    assert answer is None, f"on_event returned {answer!r}; nobody takes it, and nobody awaits it"


def _in_a_thread(work: Callable[[], None]) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
            raised.append(error)

    thread = threading.Thread(target=run, name="observers", daemon=True)
    thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive(), "the observer does not return"
    if raised:
        raise raised[0]
