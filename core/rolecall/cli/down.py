"""``rolecall down``: stop a running job and everything it started."""

from __future__ import annotations

import signal
from pathlib import Path

import click
import psutil

from rolecall.errors import JobError
from rolecall.job.find import is_alive, job_name
from rolecall.job.paths import read_state
from rolecall.job.sweep import end_processes, remove_files


@click.command()
@click.argument("job", required=False)
@click.option("--timeout-s", default=120.0, show_default=True, help="How long the job may take to end.")
def down(job: str | None, timeout_s: float) -> None:
    """Stop a running job: engines, gateways, placement groups, its Ray, its files.

    JOB is a job's name or its file; it may be left out while exactly one job is running. A job
    that is already gone is no error.
    """
    name = job_name(job)
    state = read_state(name)
    if state is None:
        click.echo(f"{name} is not running")
        return
    if is_alive(state):
        process = psutil.Process(state.pid)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout_s)
        except psutil.TimeoutExpired as error:
            raise JobError(
                f"job {name!r} (process {state.pid}) has not ended after {timeout_s:g} s; its log is "
                f"{state.log or 'the terminal it runs in'}. Wait, or kill it: its guardian cleans up then"
            ) from error
    run_dir = Path(state.run_dir)
    left = end_processes(run_dir, grace_s=0.0)
    if left:
        raise JobError(f"processes {left} of job {name!r} could not be ended; end them, then repeat")
    remove_files(name, run_dir)
    click.echo(f"{name} is down")
