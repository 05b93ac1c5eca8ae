"""A sink whose storage survives everybody, and the rows that belong in it.

Rows are checked when they are stored: every sample of the batch, every field of every stage, its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rolecall.errors import SinkError
from rolecall.ids import BatchId
from rolecall.interfaces.batch_sink import Row
from simulation.network import Endpoint
from simulation.world import World


class Storage:
    """Partitions on disk; ``full`` and ``unsure`` strike the next puts."""

    def __init__(self, world: World, fields: Sequence[str], samples: int) -> None:
        self.world = world
        self.partitions: dict[str, tuple[Row, ...]] = {}
        self.full = 0
        self.unsure = 0
        self._fields = fields
        self._samples = samples
        self._puts = 0

    def store(self, partition: str, rows: Sequence[Row]) -> None:
        world = self.world
        batch = _batch_of(partition)
        world.note("sink", f"put {partition}, {len(rows)} rows")
        if batch in world.committed:
            world.violate("committed rows are never replaced", f"{partition} was put again")
        wrong = self.wrong(batch, rows)
        if wrong:
            world.violate("all or none is written back", f"{partition}: {wrong}")
        if self.full:
            self.full -= 1
            raise SinkError(f"{partition}: no space left on device")
        self.partitions[partition] = tuple(rows)
        if self.unsure:
            self.unsure -= 1
            raise SinkError(f"{partition}: the store did not answer")
        self._puts += 1
        world.acknowledged[batch] = self._puts

    def wrong(self, batch: BatchId, rows: Sequence[Row]) -> str:
        """What is wrong with a partition's rows; empty if nothing is."""
        if len(rows) != self._samples:
            return f"{len(rows)} rows instead of {self._samples}"
        for row in rows:
            if not row["sample_id"].startswith(f"{batch}/"):
                return f"{row['sample_id']} is of another batch"
            for name in self._fields:
                if row.get(name) != score(name, row["sample_id"]):
                    return f"{name} of {row['sample_id']} is {row.get(name)!r}"
        return ""

    def clear(self, partition: str, who: str) -> None:
        batch = _batch_of(partition)
        self.world.note(who, f"clears {partition}")
        if who == "producer" and batch in self.world.committed:
            self.world.violate("committed rows are never taken back", f"{partition} was cleared")
        self.partitions.pop(partition, None)
        self.world.acknowledged.pop(batch, None)


class SimSink:
    """Implements :class:`~rolecall.interfaces.batch_sink.BatchSink` for one process."""

    name: ClassVar[str] = "simulated"
    api_version: ClassVar[int] = 1
    options: ClassVar[type[Any]] = dict

    def __init__(self, storage: Storage, who: str, life: Endpoint) -> None:
        self._storage = storage
        self._who = who
        self._life = life

    def open(self) -> None:
        """Nothing to connect to."""

    def put(self, partition: str, rows: Sequence[Row]) -> None:
        self._require_life()
        self._storage.store(partition, rows)

    def read(self, partition: str) -> Sequence[Row]:
        if partition not in self._storage.partitions:
            raise SinkError(f"there is no partition {partition}")
        return self._storage.partitions[partition]

    def clear(self, partition: str) -> None:
        self._require_life()
        self._storage.clear(partition, self._who)

    def close(self) -> None:
        """Nothing to let go of."""

    def _require_life(self) -> None:
        if not self._life.alive:
            raise SinkError("its process is gone")


def score(name: str, sample_id: str) -> float:
    """The one right value of a score."""
    return float(sum(map(ord, name)) * 31 + sum(map(ord, sample_id)))


def _batch_of(partition: str) -> BatchId:
    return BatchId(int(partition.removeprefix("train_")))
