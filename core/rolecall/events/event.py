"""Events: what happened, told to observers, to the event log and to the progress display."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from attrs import field, frozen


@frozen(kw_only=True)
class Event:
    """One thing that happened.

    ``kind`` is a dotted name (``replica.state``, ``lease.state``, ``batch.state``,
    ``stage.progress``, ``job.phase``). ``time_s`` is Unix time at the place where it happened.
    ``fields`` are JSON values only.

    Kinds and their fields (``from`` is null when a lease or a batch enters its first state):
        replica.state: role, engine, from, to, reason, generation, incarnation
        replica.memory: role, engine, awake (bool), resident_bytes
        engine.reaped: role, engine, incarnation, node, killed (pids), left (pids), left_bytes, vacant (bool);
            what a dead worker's engine left on its node, and whether nothing of it is there any more
        weights.update: role, model, version, source (``disk``, ``tensors`` or ``group``), current (the
            model's version now), updated (engines), failed (engines)
        lease.state: role, from, to, reason, token, batch (int or null)
        batch.state: batch, from, to, reason
        stage.state: batch, stage, role (or null), state (``started`` or ``finished``)
        stage.progress: batch, stage, done, total, tokens
        router.started: role, model, url, number (of this model's routers)
        router.ended: role, model, reason
        handover: batch, role, direction (``onload`` or ``offload``), seconds
        observer.raised: observer (its name, distribution and version), event (its kind), error; the first
            time that an observer raises
    """

    kind: str
    time_s: float
    fields: Mapping[str, Any] = field(factory=dict)


class Emit(Protocol):
    """Takes an event's kind and fields; stamps the time; never raises, never blocks."""

    def __call__(self, kind: str, /, **fields: Any) -> None: ...


def discard(kind: str, /, **fields: Any) -> None:
    """An :class:`Emit` that nobody listens to."""
    del kind, fields
