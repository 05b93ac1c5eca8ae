"""Consuming: nothing before its commit, the reason when there will be none, an end in any case."""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from rolecall.errors import BatchFailedError, CommitTimeoutError, SinkError
from rolecall.ids import BatchId, partition_name
from rolecall.interfaces.batch_sink import Row
from rolecall.leases.coordinator import LeaseCoordinator
from rolecall.train import CommittedBatch, consume, consume_async

# The package's function has the module's name.
module = importlib.import_module("rolecall.train.consume")


class MemorySink:
    def __init__(self, batches: int = 0) -> None:
        self.partitions: dict[str, Sequence[Row]] = {
            partition_name(BatchId(n)): [{"sample_id": f"p{n}/0"}] for n in range(batches)
        }
        self.block: threading.Event | None = None

    def read(self, partition: str) -> Sequence[Row]:
        if self.block is not None:
            self.block.wait()
        if partition not in self.partitions:
            raise SinkError(f"there is no partition {partition}")
        return self.partitions[partition]

    def clear(self, partition: str) -> None:
        self.partitions.pop(partition, None)


async def committed(*batches: int) -> LeaseCoordinator:
    coordinator = LeaseCoordinator({}, conflicts={}, opening={})
    for number in batches:
        await coordinator.begin_batch(BatchId(number))
        await coordinator.commit_batch(BatchId(number), acknowledged=True)
    return coordinator


async def collect(coordinator: Any, sink: Any, batches: Any, timeout_s: float = 5.0) -> list[CommittedBatch]:
    return [batch async for batch in consume_async(coordinator, sink, batches, timeout_s=timeout_s)]


async def test_committed_batches_come_in_order_with_their_rows() -> None:
    got = await collect(await committed(0, 1), MemorySink(2), range(2))
    assert [(one.batch, one.partition, list(one.rows)) for one in got] == [
        (0, "train_0", [{"sample_id": "p0/0"}]),
        (1, "train_1", [{"sample_id": "p1/0"}]),
    ]


async def test_a_batch_is_not_read_before_its_commit() -> None:
    coordinator = await committed(0)
    await coordinator.begin_batch(BatchId(1))
    sink = MemorySink(2)
    seen: list[int] = []
    first = asyncio.Event()

    async def consumer() -> None:
        async for batch in consume_async(coordinator, sink, range(2), timeout_s=5.0):
            seen.append(batch.batch)
            first.set()

    task = asyncio.create_task(consumer())
    await first.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert seen == [0]
    await coordinator.commit_batch(BatchId(1), acknowledged=True)
    await task
    assert seen == [0, 1]


async def test_partitions_stay_until_they_are_cleared() -> None:
    sink = MemorySink(1)
    (batch,) = await collect(await committed(0), sink, [0])
    assert "train_0" in sink.partitions
    batch.clear()
    batch.clear()
    assert sink.partitions == {}
    assert list(batch.rows) == [{"sample_id": "p0/0"}]


async def test_a_failed_run_ends_the_consumer_with_the_reason() -> None:
    coordinator = await committed(0)
    await coordinator.begin_batch(BatchId(1))
    task = asyncio.create_task(collect(coordinator, MemorySink(2), range(3), timeout_s=60.0))
    await asyncio.sleep(0)
    await coordinator.fail_batch(BatchId(1), "publish: disk full")
    with pytest.raises(BatchFailedError, match="publish: disk full"):
        await task


async def test_a_batch_that_never_comes_ends_the_consumer_in_time() -> None:
    with pytest.raises(CommitTimeoutError, match="batch 1"):
        await collect(await committed(0), MemorySink(1), [0, 1], timeout_s=0.05)


async def test_a_coordinator_that_does_not_answer_ends_the_consumer_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_GRACE_S", 0.05)

    class Silent:
        async def wait_committed(self, batch: BatchId, timeout_s: float) -> None:
            await asyncio.Event().wait()

    with pytest.raises(CommitTimeoutError, match=r"batch 3: the coordinator gave no answer within 0\.1 s"):
        await collect(Silent(), MemorySink(), [3], timeout_s=0.05)


async def test_a_sink_that_hangs_ends_the_consumer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRACE_S", 0.05)
    sink = MemorySink(1)
    sink.block = threading.Event()
    with pytest.raises(SinkError, match="batch 0 is committed, but train_0 could not be read in time"):
        await collect(await committed(0), sink, [0], timeout_s=0.05)
    sink.block.set()


async def test_a_partition_that_is_not_there_is_the_sink_s_error() -> None:
    with pytest.raises(SinkError, match="there is no partition train_0"):
        await collect(await committed(0), MemorySink(), [0])


def test_a_plain_loop_consumes_without_an_event_loop() -> None:
    coordinator = asyncio.run(committed(0, 1))
    sink = MemorySink(2)
    seen = []
    for batch in consume(coordinator, sink, range(2), timeout_s=5.0):
        seen.append(batch.batch)
        batch.clear()
    assert seen == [0, 1]
    assert sink.partitions == {}


def test_a_plain_loop_gets_the_reason_and_may_leave_early() -> None:
    coordinator = asyncio.run(committed(0))
    batches = consume(coordinator, MemorySink(1), range(2), timeout_s=0.05)
    assert next(batches).batch == 0
    with pytest.raises(CommitTimeoutError, match="batch 1"):
        next(batches)
    early = consume(coordinator, MemorySink(1), range(2), timeout_s=5.0)
    next(early)
    early.close()


def test_a_plain_loop_does_not_hang_on_a_hanging_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRACE_S", 0.05)
    sink = MemorySink(1)
    sink.block = threading.Event()
    began = time.monotonic()
    with pytest.raises(SinkError):
        next(consume(asyncio.run(committed(0)), sink, [0], timeout_s=0.05))
    assert time.monotonic() - began < 10
    sink.block.set()
