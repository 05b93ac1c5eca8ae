"""Batch sinks store scored batches and give them to training consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from attrs import frozen

Row = Mapping[str, Any]
"""One sample as columns: text, numbers, None, dicts of numbers, or NumPy arrays (their dtype
and shape come back unchanged)."""


@frozen(kw_only=True)
class SinkContext:
    """Where a sink lives: the job's name and the folder that relative paths start from."""

    job: str
    base_dir: Path


class BatchSink(Protocol):
    """Constructed with its options and a :class:`SinkContext`; opened before use.

    Producer and consumers each have an instance of their own, usually in other processes.
    Methods may block on I/O; they are called from worker threads. Failures raise
    :class:`~rolecall.errors.SinkError`.

    A sink whose partitions may end with the job's processes says so by a class attribute ``outlives_job``
    that is False; a run is resumed only if what was committed last is still there.
    """

    name: ClassVar[str]
    api_version: ClassVar[int]
    options: ClassVar[type[Any]]

    def __init__(self, options: Any, context: SinkContext) -> None: ...

    def open(self) -> None:
        """Connect or create what is needed. Repeats do nothing."""
        ...

    def put(self, partition: str, rows: Sequence[Row]) -> None:
        """Store all rows durably, or none; returning is the acknowledgement.

        Idempotent per partition: the same rows again do nothing, and rows of an earlier,
        uncommitted attempt are replaced, never mixed.
        """
        ...

    def read(self, partition: str) -> Sequence[Row]:
        """Return the partition's rows in the order they were put.

        Raises:
            SinkError: there is no such partition.
        """
        ...

    def clear(self, partition: str) -> None:
        """Remove the partition; one that isn't there is no error."""
        ...

    def close(self) -> None:
        """Let go of connections. Stored partitions stay. Repeats do nothing."""
        ...
