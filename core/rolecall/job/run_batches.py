"""Run the batches of a job file, beside a training consumer that reads them back.

The consumer has a sink of its own and waits at the commit gate like any training process, so
what it returns is what training would have got.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from attrs import frozen

from rolecall.batches.prompts import load_prompts, pick_prompts
from rolecall.batches.report import BatchReport
from rolecall.config.specs import BatchSection
from rolecall.errors import JobError
from rolecall.ids import BatchId
from rolecall.interfaces.batch_sink import BatchSink, Row
from rolecall.job.handle import JobHandle
from rolecall.train.consume import consume_async


@frozen(kw_only=True)
class RunOutcome:
    """What a run made.

    read: rows that the consumer read, by batch.
    reports: the producer's reports, with the samples that a reward's ``drop_sample`` took out.
    """

    read: Mapping[BatchId, Sequence[Row]]
    reports: tuple[BatchReport, ...]


async def run_batches(job: JobHandle) -> RunOutcome:
    """Run all batches of the job's ``[batch]``, and read each once it is committed.

    Raises:
        BatchFailedError: a batch failed; later ones were not begun.
        ConfigError: the prompt file is wrong.
        JobError: the job has no ``[batch]``.
    """
    settings = job.resolved.config.batch
    if settings is None:
        raise JobError(f"{job.resolved.file} has no [batch] table, so there is nothing to run")
    async with _opened_sink(job) as producer, _opened_sink(job) as reader:
        consumer = asyncio.create_task(_read_all(job, reader, settings), name="training consumer")
        try:
            reports = await _produce(job, producer, settings)
            return RunOutcome(read=await consumer, reports=reports)
        finally:
            # After a failure the consumer leaves by itself, with the same reason: the producer's
            # error is the one to show.
            consumer.cancel()
            await asyncio.gather(consumer, return_exceptions=True)


async def _produce(job: JobHandle, sink: BatchSink, settings: BatchSection) -> tuple[BatchReport, ...]:
    prompts = await asyncio.to_thread(load_prompts, job.resolved.file.parent / settings.prompts)
    runner = await job.batch_runner(sink)
    reports: list[BatchReport] = []
    for number in range(settings.batches):
        batch = BatchId(number)
        reports.append(await runner.run(batch, pick_prompts(prompts, batch, settings.prompts_per_batch)))
    return tuple(reports)


async def _read_all(job: JobHandle, sink: BatchSink, settings: BatchSection) -> dict[BatchId, Sequence[Row]]:
    read: dict[BatchId, Sequence[Row]] = {}
    wanted = [BatchId(number) for number in range(settings.batches)]
    async for committed in consume_async(job.coordinator, sink, wanted, timeout_s=settings.commit_timeout_s):
        read[committed.batch] = committed.rows
    return read


@asynccontextmanager
async def _opened_sink(job: JobHandle) -> AsyncGenerator[BatchSink]:
    sink = await job.open_sink()
    try:
        yield sink
    finally:
        await asyncio.to_thread(sink.close)
