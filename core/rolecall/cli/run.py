"""``rolecall run``: a whole job in the foreground, from its file to committed batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.live import Live

from rolecall.cli.progress import RunProgress, live_view, plain_lines
from rolecall.cli.report import samples_table, timeline
from rolecall.errors import JobError
from rolecall.placement.pictures.legend import plan_sheet
from rolecall.placement.pictures.terminal_map import render_map

if TYPE_CHECKING:
    from rolecall.config.resolve import ResolvedJob
    from rolecall.job.handle import JobHandle
    from rolecall.job.run_batches import RunOutcome
    from rolecall.placement.plan import PlacementPlan

SAMPLES_SHOWN = 8
REFRESHES_PER_S = 4


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--resume", is_flag=True, help="Go on after the last committed batch of the run before.")
def run(file: Path, resume: bool) -> None:
    """Bring a job up, run its batches, show them, leave nothing behind.

    A training consumer waits at the commit gate beside the run and reads every batch back from
    the sink; what it read is what is shown at the end.
    """
    # Imported here: they bring Ray, which a wrong file need not wait for.
    from rolecall.job.prepare import prepare_job

    resolved, plan = prepare_job(file)
    if resolved.config.batch is None:
        raise JobError(f"{file} has no [batch] table, so there is nothing to run; `rolecall up` serves it")
    try:
        asyncio.run(_run(resolved, plan, resolved.config.batch.batches, resume, Console(highlight=False)))
    except asyncio.CancelledError:
        raise click.Abort from None


async def _run(
    resolved: ResolvedJob, plan: PlacementPlan, batches: int, resume: bool, console: Console
) -> None:
    from rolecall.job.job import running_job
    from rolecall.job.run_batches import FIRST_BATCH, run_batches
    from rolecall.job.signals import cancel_on_ending_signal

    started_s = time.monotonic()

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - started_s:6.1f} s[/]  {line}")

    cancel_on_ending_signal()
    console.print(render_map(plan_sheet(plan)))
    async with running_job(resolved, plan, say, resume=resume) as job:
        cancel_on_ending_signal()
        say(f"up: {', '.join(resolved.roles)} at {job.state.gateway_url}/<role>")
        first = await job.handle.resume() if resume else FIRST_BATCH
        if resume:
            say(f"resuming with batch {first}, {first} of {batches} are committed")
        async with _watched(console, RunProgress(batches=batches, committed=first), job.handle):
            outcome = await run_batches(job.handle, first=first)
        events = await job.handle.past_events()
        for batch in outcome.read:
            console.print(timeline(events, batch))
    _show_samples(console, outcome)
    console.print(
        f"[bold]{first + len(outcome.read)} of {batches} batches committed[/], "
        f"{sum(len(rows) for rows in outcome.read.values())} samples read by the consumer, "
        f"{time.monotonic() - started_s:.0f} s in all"
    )


def _show_samples(console: Console, outcome: RunOutcome) -> None:
    for batch, rows in outcome.read.items():
        console.print(f"\nbatch {batch}, as the training consumer read it")
        console.print(samples_table(rows, limit=SAMPLES_SHOWN))
    for report in outcome.reports:
        for sample, stage in report.dropped.items():
            console.print(f"batch {report.batch}: sample {sample} was dropped by {stage}", style="yellow")


@asynccontextmanager
async def _watched(console: Console, progress: RunProgress, job: JobHandle) -> AsyncGenerator[None]:
    """Show the run's progress for the length of a block: live in a terminal, else line by line."""
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    async def follow() -> None:
        async for event in job.events():
            progress.apply(event)
            for line in plain_lines(progress, event):
                if live is None or event.kind in {"batch.state", "observer.raised"}:
                    console.print(line)

    async def redraw(view: Live) -> None:
        while True:
            view.update(live_view(progress, time.time()), refresh=True)
            await asyncio.sleep(1 / REFRESHES_PER_S)

    tasks = [asyncio.create_task(follow())]
    if live is not None:
        live.start()
        tasks.append(asyncio.create_task(redraw(live)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(end, asyncio.CancelledError):
                console.print(f"progress was not shown to the end: {end!r}", style="yellow")
        if live is not None:
            live.stop()
