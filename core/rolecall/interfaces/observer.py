"""Observers are told what happens; they can change nothing."""

from __future__ import annotations

from typing import ClassVar, Protocol

from rolecall.events.event import Event


class Observer(Protocol):
    """Constructed without arguments; called from one thread, events in order.

    An observer that raises is logged with its distribution and keeps being called; no request,
    lease or batch notices.
    """

    name: ClassVar[str]
    api_version: ClassVar[int]

    def on_event(self, event: Event) -> None: ...
