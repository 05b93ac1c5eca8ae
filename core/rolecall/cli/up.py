"""``rolecall up``: bring a job up in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import click

from rolecall.errors import JobError
from rolecall.job.find import must_be_new
from rolecall.job.paths import JobState, log_path, read_state

POLL_S = 0.2
LOG_TAIL_LINES = 30


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--timeout-s", default=600.0, show_default=True, help="How long the job may take to be ready.")
def up(file: Path, timeout_s: float) -> None:
    """Bring a job up in the background: engines, coordinator, gateways.

    Prints the gateways' addresses once every role is up. `rolecall down` stops it.
    """
    from rolecall.job.prepare import prepare_job

    resolved, _ = prepare_job(file)
    name = resolved.config.job.name
    must_be_new(name)
    log = log_path(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "rolecall.job.background", str(file.resolve())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        state = _wait_until_up(name, process, log, timeout_s)
    except BaseException:
        # Not up, or no one waits any more: end it. Its own way down leaves nothing behind.
        process.terminate()
        process.wait()
        raise
    click.echo(f"{name} is up (process {state.pid})")
    for role in resolved.roles:
        click.echo(f"  {role:<12} {state.gateway_url}/{role}")
    click.echo(f"stop it with: rolecall down {name}")


def _wait_until_up(name: str, process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> JobState:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        state = read_state(name)
        if state is not None and state.pid == process.pid:
            return state
        try:
            code = process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            continue
        raise JobError(f"job {name!r} ended with code {code} before it was up:\n{_tail(log)}")
    raise JobError(f"job {name!r} was not up after {timeout_s:g} s and was ended:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:])
