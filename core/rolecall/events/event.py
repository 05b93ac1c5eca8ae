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

    Kinds and their fields (``from`` is null in a first state):
        replica.state: role, engine, from, to, reason, generation, incarnation, token (the highest that its
            manager has seen)
        replica.prepared: role, engine, bytes (of files that its next start or wake reads), read_bytes (what
            of those was not in memory yet), seconds, problem (or null); no device was touched
        replica.memory: role, engine, awake (bool), resident_bytes
        engine.reaped: role, engine, incarnation, node, killed (pids), left (pids), left_bytes, vacant (bool);
            what a dead worker's engine left on its node, and whether nothing of it is there any more
        weights.update: role, model, version, source (``disk``, ``tensors`` or ``group``), current (the
            model's version now), updated (engines), failed (engines)
        scale.state: role, model, action (``scale_out`` or ``scale_in``), operation, from, to, reason, engines
            (that come or go), left (engines of which something is left to clean)
        lease.state: role, from, to, reason, token, batch (int or null)
        lease.reconciled: role, operation, by, decided_s (Unix time), proof, note, evidence (engine → what
            was found); the audit record of a fence that was lifted, or of a look at fenced replicas
        batch.state: batch, from, to, reason
        operation.state: operation, method, role, batch (int or null), from, to, reason, token (or null)
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
