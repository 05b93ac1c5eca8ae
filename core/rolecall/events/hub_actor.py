"""The event hub as a Ray actor, and the emitter that other actors use to reach it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolecall.events.event import Emit, Event
from rolecall.events.hub import EventHub
from rolecall.interfaces.observer import Observer
from rolecall.plugins.host import PluginHost
from rolecall.plugins.kinds import PluginKind

ACTOR_NAME = "events"

logger = logging.getLogger(__name__)


class EventHubActor:
    """Ray actor around :class:`EventHub`; loads the observers by name in its own process.

    ``about`` is the job's description, kept here so that a training loop which knows only the
    job's name finds the rest.
    """

    def __init__(self, observers: tuple[str, ...], log_path: str | None, about: Mapping[str, Any]) -> None:
        self._hub = EventHub(_load(observers), Path(log_path) if log_path else None)
        self._about = dict(about)

    async def emit(self, kind: str, time_s: float, fields: Mapping[str, Any]) -> None:
        self._hub.publish(Event(kind=kind, time_s=time_s, fields=fields))

    async def tail(self, since: int, wait_s: float) -> tuple[int, list[Event]]:
        return await self._hub.tail(since, wait_s)

    async def about(self) -> dict[str, Any]:
        return self._about

    async def describe(self, about: Mapping[str, Any]) -> None:
        """Add to the job's description."""
        self._about.update(about)

    async def close(self) -> None:
        self._hub.close()


def _load(names: tuple[str, ...]) -> dict[str, Observer]:
    host = PluginHost.from_environment()
    origin = {
        info.name: f"{info.name} ({info.distribution} {info.version})"
        for info in host.list()
        if info.kind is PluginKind.OBSERVER
    }
    return {origin[name]: host.load(PluginKind.OBSERVER, name)() for name in names}


def remote_emitter(hub: Any) -> Emit:
    """Return an emitter that sends events to the hub actor and does not wait for them."""

    def emit(kind: str, /, **fields: Any) -> None:
        try:
            hub.emit.remote(kind, time.time(), fields)
        except Exception:  # sight may be lost, work may not: the hub owns no state of the job
            logger.exception("event %s was not sent", kind)

    return emit
