"""The event hub as a Ray actor, and the emitter that other actors use to reach it."""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray

from rolecall.config.resolve import job_plugins
from rolecall.config.specs import PluginsSection
from rolecall.errors import JobError
from rolecall.events.event import Emit, Event
from rolecall.events.hub import EventHub, SenderOrder
from rolecall.events.outbox import Outbox, flush_all
from rolecall.interfaces.observer import Observer
from rolecall.plugins.kinds import PluginKind

ACTOR_NAME = "events"

MAX_CONCURRENT_READERS = 1_000
"""Each reader that follows the stream holds a call open; they must never keep an event out."""


class EventHubActor:
    """Ray actor around :class:`EventHub`; loads the observers by name in its own process."""

    def __init__(
        self, observers: tuple[str, ...], log_path: str | None, plugins: PluginsSection, append: bool
    ) -> None:
        self._hub = EventHub(_load(observers, plugins), Path(log_path) if log_path else None, append=append)
        self._order = SenderOrder(self._hub.publish)

    async def emit(self, sender: str, number: int, events: list[Event]) -> None:
        """Take a sender's events, its group ``number``; calls may arrive in any order."""
        self._order.take(sender, number, events)

    async def tail(self, since: int, wait_s: float) -> tuple[int, list[Event]]:
        return await self._hub.tail(since, wait_s)

    async def close(self) -> None:
        self._hub.close()


def start_hub(
    namespace: str,
    *,
    observers: tuple[str, ...],
    log_path: Path | None,
    plugins: PluginsSection | None = None,
    append: bool = False,
) -> Any:
    """Start the job's event hub and return its handle; the caller's process owns it.

    ``append``: a log that is there goes on, since its run does.
    """
    actor: Any = ray.remote(EventHubActor)
    return actor.options(
        name=ACTOR_NAME, namespace=namespace, num_cpus=0, max_concurrency=MAX_CONCURRENT_READERS
    ).remote(observers, None if log_path is None else str(log_path), plugins or PluginsSection(), append)


def find_hub(namespace: str) -> Any:
    """Return the handle of a running job's event hub.

    Raises:
        JobError: there is none in that namespace.
    """
    try:
        return ray.get_actor(ACTOR_NAME, namespace=namespace)
    except ValueError as error:
        raise JobError(f"no event hub runs in Ray namespace {namespace!r}; is the job up?") from error


def _load(names: tuple[str, ...], plugins: PluginsSection) -> dict[str, Observer]:
    host = job_plugins(plugins)
    found = [host.find(PluginKind.OBSERVER, name) for name in names]
    return {
        f"{info.name} ({info.distribution} {info.version})": host.load(info.kind, info.name)()
        for info in found
    }


def remote_emitter(hub: Any) -> Emit:
    """Return an emitter that sends events to the hub actor and does not wait for them.

    Its events reach the hub's readers in the order in which they were emitted here.
    """
    sender = uuid4().hex

    def send(number: int, events: list[Event]) -> None:
        if not ray.is_initialized():
            raise JobError("this process has left its Ray")  # a call would start another one
        hub.emit.remote(sender, number, events)

    return Outbox(send)


# Registered after Ray's own, so called before it.
atexit.register(flush_all)
