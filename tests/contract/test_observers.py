"""The first-party observers keep the contract of their kind."""

from __future__ import annotations

import inspect
import re

from rolecall.api import Event
from rolecall.testing import ObserverContract
from rolecall.testing.sample_events import SAMPLE_EVENTS
from rolecall_plugins.observers.console_log import ConsoleLog


class TestConsoleLog(ObserverContract):
    plugin = ConsoleLog


def test_the_sample_events_are_of_every_kind_with_all_fields() -> None:
    told = re.findall(r"(?m)^ {4}(\w+\.\w+|handover): ((?:.|\n {8})*)", inspect.getdoc(Event) or "")
    documented = {kind: _names(fields) for kind, fields in told}
    assert documented
    assert {event.kind: sorted(event.fields) for event in SAMPLE_EVENTS} == documented


def _names(fields: str) -> list[str]:
    """The names in a documented list of fields, without what is said of each or of all."""
    listed = re.sub(r"\([^)]*\)", "", fields.partition(";")[0].replace("\n", " "))
    return sorted(name.strip() for name in listed.split(","))
