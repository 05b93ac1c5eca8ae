"""Run the batches of a job file, beside a training consumer that reads them back.

The consumer has a sink of its own and waits at the commit gate like any training process, so
what it returns is what training would have got.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from attrs import frozen

from rolecall.batches.prompts import PromptSource, open_prompts
from rolecall.batches.report import BatchReport
from rolecall.config.specs import BatchSection
from rolecall.errors import JobError, SinkError
from rolecall.ids import BatchId, partition_name
from rolecall.interfaces.batch_sink import BatchSink, Row
from rolecall.job.handle import JobHandle
from rolecall.job.paths import journal_path
from rolecall.job.prompts_point import check_prompts_point, keep_prompts_point
from rolecall.train.consume import consume_async

FIRST_BATCH = BatchId(0)


@frozen(kw_only=True)
class RunOutcome:
    """What a run made.

    read: rows that the consumer read, by batch.
    reports: the producer's reports, with the samples that a reward's ``drop_sample`` took out.
    """

    read: Mapping[BatchId, Sequence[Row]]
    reports: tuple[BatchReport, ...]


async def run_batches(job: JobHandle, *, first: BatchId = FIRST_BATCH) -> RunOutcome:
    """Run the batches of the job's ``[batch]`` from ``first`` on, and read each once it is committed.

    Raises:
        SinkError: earlier batches are committed, but ended with the former run's sink; nothing was begun.
        BatchFailedError: a batch failed; later ones were not begun.
        ConfigError: the prompt file is wrong.
        JobError: no ``[batch]``, or the batches before ``first`` were made of other prompts: nothing began.
    """
    settings = job.resolved.config.batch
    if settings is None:
        raise JobError(f"{job.resolved.file} has no [batch] table, so there is nothing to run")
    prompts = await asyncio.to_thread(_open_prompts, job, settings, first)
    async with _opened_sink(job) as producer, _opened_sink(job) as reader:
        await asyncio.to_thread(_require_kept, producer, first)
        batches = [BatchId(number) for number in range(first, settings.batches)]
        consumer = asyncio.create_task(_read_all(job, reader, batches, settings), name="training consumer")
        try:
            reports = await _produce(job, producer, batches, prompts)
            return RunOutcome(read=await consumer, reports=reports)
        finally:
            # After a failure the consumer leaves by itself, with the same reason: the producer's
            # error is the one to show.
            consumer.cancel()
            await asyncio.gather(consumer, return_exceptions=True)


def _require_kept(sink: BatchSink, first: BatchId) -> None:
    """Return if a sink that may end with its job still has what was committed last.

    Raises:
        SinkError: it has not.
    """
    if first == FIRST_BATCH or getattr(sink, "outlives_job", True):
        return
    last = partition_name(BatchId(first - 1))
    try:
        sink.read(last)
    except SinkError as error:
        raise SinkError(
            f"batches 0 to {first - 1} are committed, but sink {sink.name!r} does not have {last} any more: "
            "its partitions end with the job, and what nobody had read is lost. So the run is not resumed; "
            "`rolecall run` without --resume makes all batches anew"
        ) from error


def _open_prompts(job: JobHandle, settings: BatchSection, first: BatchId) -> PromptSource:
    """Return the prompts, those that the batches before ``first`` were made of, too."""
    source = open_prompts(settings, job.resolved.file)
    journal = journal_path(job.resolved.config, job.resolved.file)
    if first == FIRST_BATCH:
        keep_prompts_point(journal, source)
    else:
        check_prompts_point(journal, source)
    return source


async def _produce(
    job: JobHandle, sink: BatchSink, batches: Sequence[BatchId], prompts: PromptSource
) -> tuple[BatchReport, ...]:
    runner = await job.batch_runner(sink)
    reports: list[BatchReport] = []
    for batch in batches:
        reports.append(await runner.run(batch, prompts.of_batch(batch)))
    return tuple(reports)


async def _read_all(
    job: JobHandle, sink: BatchSink, batches: Sequence[BatchId], settings: BatchSection
) -> dict[BatchId, Sequence[Row]]:
    read: dict[BatchId, Sequence[Row]] = {}
    async for committed in consume_async(job.coordinator, sink, batches, timeout_s=settings.commit_timeout_s):
        read[committed.batch] = committed.rows
    return read


@asynccontextmanager
async def _opened_sink(job: JobHandle) -> AsyncGenerator[BatchSink]:
    sink = await job.open_sink()
    try:
        yield sink
    finally:
        await asyncio.to_thread(sink.close)
