"""Find a running job by what the user typed: its name, its file, or nothing."""

from __future__ import annotations

import difflib
from pathlib import Path

import psutil

from rolecall.config.loader import load_config
from rolecall.errors import JobError
from rolecall.job.paths import JobState, known_jobs, read_state, state_path


def is_alive(state: JobState) -> bool:
    """Return whether the job process still runs; a recycled pid doesn't count."""
    try:
        process = psutil.Process(state.pid)
        return process.create_time() == state.pid_started_s and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def must_be_new(name: str) -> None:
    """Refuse to start a job while something of one with that name is here.

    Raises:
        JobError: it runs, or it ended without cleaning up; says what to do.
    """
    if (other := read_state(name)) is None:
        return
    if is_alive(other):
        raise JobError(
            f"job {name!r} is already running (process {other.pid}, {state_path(name)}); end it with "
            f"`rolecall down {name}`, or give this one another name"
        )
    raise JobError(_left_behind(other))


def _left_behind(state: JobState) -> str:
    return (
        f"job {state.name!r} (process {state.pid}, {state_path(state.name)}) ended without cleaning up; "
        f"`rolecall down {state.name}` removes what it left"
    )


def find_job(wanted: str | None) -> JobState:
    """Return the state of the job that ``wanted`` names.

    Raises:
        JobError: there is no such job, or several and none was named, or its process is gone.
    """
    name = job_name(wanted)
    state = read_state(name)
    if state is None:
        known = known_jobs()
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise JobError(f"no job {name!r} is running here{hint} Running: {', '.join(known) or 'none'}")
    if not is_alive(state):
        raise JobError(_left_behind(state))
    return state


def job_name(wanted: str | None) -> str:
    """Return the job's name for what the user typed.

    Raises:
        JobError: nothing was typed and not exactly one job is running.
    """
    if wanted is None:
        known = known_jobs()
        if len(known) != 1:
            raise JobError(
                f"name a job: {', '.join(known)}"
                if known
                else "no job is running here; start one with `rolecall up FILE`"
            )
        return known[0]
    if wanted.endswith(".toml") or Path(wanted).is_file():
        return load_config(Path(wanted)).job.name
    return wanted
