"""Training's end of the commit gate: wait for a batch's commit, then read it.

    for batch in consume(coordinator, sink, range(20), timeout_s=600):
        train_on(batch.rows)
        batch.clear()

Nothing of a batch is seen before it is committed, so never a half-scored one. The coordinator and
the sink are the caller's: opened before, closed after, the sink an instance of this process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from attrs import field, frozen

from rolecall.errors import CommitTimeoutError, SinkError
from rolecall.ids import BatchId, partition_name
from rolecall.interfaces.batch_sink import BatchSink, Row
from rolecall.leases.port import CoordinatorPort

_GRACE_S = 5.0
"""How much longer than asked a coordinator may take to say that it waited in vain."""

_Result = TypeVar("_Result")


@frozen(kw_only=True)
class CommittedBatch:
    """A committed batch and its rows, in the order in which they were generated."""

    batch: BatchId
    partition: str
    rows: Sequence[Row]
    _sink: BatchSink = field(repr=False, alias="sink")

    def clear(self) -> None:
        """Remove the partition from the sink. Repeats do nothing; ``rows`` stay usable.

        Raises:
            SinkError: it could not be removed.
        """
        self._sink.clear(self.partition)


async def consume_async(
    coordinator: CoordinatorPort, sink: BatchSink, batches: Iterable[int], *, timeout_s: float
) -> AsyncGenerator[CommittedBatch]:
    """Yield the batches one after the other, each once it is committed.

    ``timeout_s`` is for each batch: waiting for its commit and reading it. Stored partitions stay
    until :meth:`CommittedBatch.clear`, so a consumer may be started again from any batch.

    Raises:
        BatchFailedError: the batch, or the run, failed; the message is the first failure.
        CommitTimeoutError: it was not committed in time, or the coordinator does not answer.
        SinkError: the partition can't be read, or not in time.
    """
    loop = asyncio.get_running_loop()
    for number in batches:
        batch = BatchId(number)
        deadline = loop.time() + timeout_s
        await _wait_committed(coordinator, batch, timeout_s)
        rows = await _read(sink, batch, max(deadline - loop.time(), 0.0))
        yield CommittedBatch(batch=batch, partition=partition_name(batch), rows=rows, sink=sink)


def consume(
    coordinator: CoordinatorPort, sink: BatchSink, batches: Iterable[int], *, timeout_s: float
) -> Generator[CommittedBatch]:
    """The same for a training loop without an event loop; see :func:`consume_async`.

    Raises:
        RuntimeError: called where an event loop runs; use :func:`consume_async` there.
    """
    with asyncio.Runner() as runner:
        source = consume_async(coordinator, sink, batches, timeout_s=timeout_s)

        async def following() -> CommittedBatch | None:
            return await anext(source, None)

        while (batch := runner.run(following())) is not None:
            yield batch


async def _wait_committed(coordinator: CoordinatorPort, batch: BatchId, timeout_s: float) -> None:
    limit = asyncio.timeout(timeout_s + _GRACE_S)
    try:
        async with limit:
            await coordinator.wait_committed(batch, timeout_s)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise CommitTimeoutError(
            f"batch {batch}: the coordinator gave no answer within {timeout_s + _GRACE_S:g} s; "
            "the job may be gone"
        ) from error


async def _read(sink: BatchSink, batch: BatchId, timeout_s: float) -> Sequence[Row]:
    partition = partition_name(batch)
    limit = asyncio.timeout(max(timeout_s, _GRACE_S))
    try:
        async with limit:
            return await _in_daemon_thread(lambda: sink.read(partition))
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise SinkError(f"batch {batch} is committed, but {partition} could not be read in time") from error


async def _in_daemon_thread(call: Callable[[], _Result]) -> _Result:
    """Await a blocking call that may never return.

    The event loop's own threads are waited for when the loop closes, which would hang with it.
    """
    outcome: Future[_Result] = Future()
    outcome.set_running_or_notify_cancel()  # so that a caller who gives up can't end it

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 (handed to the caller, who raises it)
            outcome.set_exception(error)

    threading.Thread(target=work, name="read partition", daemon=True).start()
    return await asyncio.wrap_future(outcome)
