"""``rolecall events``: what happened in a job, from the job itself or from its event log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from rolecall.config.loader import load_config
from rolecall.errors import JobError
from rolecall.events.event import Event
from rolecall.events.hub import event_from_json, event_to_json, read_event_log
from rolecall.job.control import JobGoneError, command_job
from rolecall.job.find import find_job, is_alive, job_name
from rolecall.job.paths import read_state

WAIT_S = 10.0
"""How long the job may hold a question for the next event."""

BAD_STATES = frozenset({"BLOCKED", "FAILED"})


@click.command()
@click.argument("job", required=False)
@click.option("--follow", is_flag=True, help="Go on with what happens, until the job ends or Ctrl-C.")
@click.option("--kind", "kinds", multiple=True, help="Show only this kind, such as lease.state. Repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def events(job: str | None, follow: bool, kinds: tuple[str, ...], as_json: bool) -> None:
    """Show what happened in a job.

    JOB is a job's name or its file; it may be left out while exactly one job is running. Of a job that
    has ended the events are in its event log, if its file names one in [job].event_log: give the job's
    file, or the log.
    """
    console = Console(highlight=False, soft_wrap=True)
    try:
        asyncio.run(_show(console, job, follow=follow, kinds=kinds, as_json=as_json))
    except KeyboardInterrupt:
        if not follow:
            raise


async def _show(
    console: Console, job: str | None, *, follow: bool, kinds: Sequence[str], as_json: bool
) -> None:
    log = _event_log(job)
    async with aclosing(_of_log(log) if log is not None else _of_job(job, follow=follow)) as stream:
        async for event in stream:
            if kinds and event.kind not in kinds:
                continue
            if as_json:
                click.echo(json.dumps(event_to_json(event)))
            else:
                console.print(event_line(event))


def _event_log(job: str | None) -> Path | None:
    """Return the log to read, None if the job runs and is asked itself.

    Raises:
        JobError: the job has ended and left no log.
    """
    if job is None:
        return None
    path = Path(job)
    if path.is_file() and path.suffix != ".toml":
        return path
    state = read_state(job_name(job))
    if state is not None and is_alive(state):
        return None
    if path.suffix != ".toml":
        return None  # the search for a running job says what is wrong
    log = load_config(path).job.event_log
    if log is None:
        raise JobError(f"{path}: the job is not running, and it keeps no event log ([job].event_log)")
    found = path.parent / log
    if not found.is_file():
        raise JobError(f"{path}: the job is not running, and its event log {found} is not there")
    return found


async def _of_log(path: Path) -> AsyncGenerator[Event]:
    for event in read_event_log(path):
        yield event


async def _of_job(job: str | None, *, follow: bool) -> AsyncGenerator[Event]:
    run_dir = Path(find_job(job).run_dir)
    since = 0
    while True:
        try:
            answer = await command_job(run_dir, "events", since=since, wait_s=WAIT_S if since else 0.0)
        except JobGoneError:
            if not since:
                raise
            return  # it ended while it was followed
        if missed := answer["next"] - since - len(answer["events"]):
            click.echo(f"the job no longer remembers {missed} events before these", err=True)
        for event in map(event_from_json, answer["events"]):
            yield event
        since = answer["next"]
        if not follow:
            return


def event_line(event: Event) -> Text:
    """Return an event as a line for people: time, kind, and the fields in their order.

    A change of state is shown as one, and a reason comes last.
    """
    at = datetime.fromtimestamp(event.time_s).astimezone()
    line = Text(f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}  ", style="dim")
    line.append(f"{event.kind:<16} ", style="not dim bold")
    for number, part in enumerate(_parts(event)):
        line.append("" if number == 0 else "  ")
        line.append_text(part)
    return line


def _parts(event: Event) -> Iterator[Text]:
    fields = dict(event.fields)
    reason = fields.pop("reason", None)
    for name, value in fields.items():
        if name == "to" and "from" in fields:
            before = "" if fields["from"] is None else f"{fields['from']} "
            bad = "bold red" if value in BAD_STATES else "bold"
            yield Text.assemble((before, "not dim"), ("→ ", "dim"), (str(value), f"not dim {bad}"))
        elif name != "from" and value not in (None, "", [], {}):
            said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield Text(f"{name} {_one_line(said)}", style="not dim")
    if reason:
        yield Text(_one_line(str(reason)), style="italic not dim")


def _one_line(text: str) -> str:
    """Engines' words are among the reasons: whatever could move the cursor is left out."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
