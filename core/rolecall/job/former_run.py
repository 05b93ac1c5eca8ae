"""The run of a job that came before, as its journal tells: set aside by a fresh run, or resumed.

A run is named by its run folder. To resume it nothing of it may be left: its engines are ended, with proof,
on every node, before the first new one starts.
"""

from __future__ import annotations

from pathlib import Path

from rolecall.config.resolve import ResolvedJob
from rolecall.engines.deadline import Deadline, LoopClock
from rolecall.engines.reaper_task import reap_run
from rolecall.errors import JobError, JournalError
from rolecall.job.paths import former_journal_path, journal_path
from rolecall.job.sweep import end_processes
from rolecall.leases.history import History, replay
from rolecall.leases.journal import read_journal, set_aside

REAP_S = 60.0
"""How long one node may take to end what is left there, and to say so."""

END_GRACE_S = 15.0
"""How long processes of a former run may take to end by themselves."""


def begin_anew(resolved: ResolvedJob) -> str | None:
    """Put the journal of the run before aside; return what to say of it, None if it had finished.

    Raises:
        JobError: the journal is in use, or can't be moved.
    """
    path = journal_path(resolved.config, resolved.file)
    kept = former_journal_path(path)
    try:
        history = replay(read_journal(path))
        unfinished = _unfinished(resolved, history)
        if not history.batches:
            kept = None  # it never came to a batch; what is kept may be of use
    except JournalError as error:
        unfinished = f"its journal is damaged ({error})"
    try:
        set_aside(path, kept)
    except JournalError as error:
        raise JobError(f"job {resolved.config.job.name!r} can't begin: {error}") from error
    return unfinished and f"the run before had not finished: {unfinished}; its journal is now {kept}"


def resumable(resolved: ResolvedJob) -> History:
    """Return what the journal tells of the run to resume.

    Raises:
        JobError: there is none, or nothing is left to do.
    """
    path = journal_path(resolved.config, resolved.file)
    history = replay(read_journal(path))
    if history.run is None:
        raise JobError(
            f"{resolved.file}: there is no run to resume, {path} tells of none. `rolecall run` begins one"
        )
    batch = resolved.config.batch
    if batch is not None and history.next_batch >= batch.batches:
        raise JobError(
            f"{resolved.file}: there is nothing to resume, all {batch.batches} batches are committed. "
            "`rolecall run` begins anew; with a higher batch.batches this one goes on"
        )
    return history


async def prove_gone(run: str) -> None:
    """End what is left of a former run, here and on every node of the joined Ray; returns when nothing is.

    Raises:
        JobError, EngineError: something is left, or could not be looked for.
    """
    if left := end_processes(Path(run), grace_s=END_GRACE_S):
        raise JobError(f"processes {left} of the former run {run} outlived SIGKILL and may hold devices")
    await reap_run(run, Deadline.after(LoopClock(), REAP_S))


def _unfinished(resolved: ResolvedJob, history: History) -> str | None:
    if history.failure is not None:
        return f"batch {history.failure.batch} failed: {history.failure.reason}"
    batch = resolved.config.batch
    if history.unfinished or (batch is not None and 0 < history.next_batch < batch.batches):
        return f"batch {history.next_batch} is not committed"
    return None
