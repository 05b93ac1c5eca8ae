"""Find a running job by what the user typed: its name, its file, or nothing."""

from __future__ import annotations

import difflib
from pathlib import Path

import psutil

from rolecall.config.loader import load_config
from rolecall.errors import JobError
from rolecall.job.paths import JobState, known_jobs, read_state


def is_alive(state: JobState) -> bool:
    """Return whether the job process still runs; a recycled pid doesn't count."""
    try:
        process = psutil.Process(state.pid)
        return process.create_time() == state.pid_started_s and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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
        raise JobError(
            f"job {name!r} (process {state.pid}) ended without cleaning up; `rolecall down {name}` removes "
            "what it left"
        )
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
