"""Leave nothing behind: end what is left of a job and remove its files.

Called by the job process when it ends, and by its guardian when it could not. Every step may
run twice. Processes are found by the run folder in their environment, never by name: what the
job did not start is not touched.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

from rolecall.job.paths import read_state, state_path
from rolecall.processes.marks import RUN_DIR_VARIABLE


def job_processes(run_dir: Path, *, spare: frozenset[int] = frozenset()) -> list[psutil.Process]:
    """Return the living processes that carry the run folder in their environment."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        if process.pid in spare:
            continue
        try:
            if process.environ().get(RUN_DIR_VARIABLE) == str(run_dir) and (
                process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # gone, or another user's: in both cases not ours to end
    return found


def end_processes(run_dir: Path, *, grace_s: float, spare: frozenset[int] = frozenset()) -> list[int]:
    """Wait ``grace_s`` for the job's processes to end by themselves, then kill them.

    Returns the pids that outlived even that.
    """
    processes = job_processes(run_dir, spare=spare)
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    # Twice: a process may start another between the look and the kill.
    for _ in range(2):
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(alive, timeout=10)
        alive = job_processes(run_dir, spare=spare)
        if not alive:
            return []
    return [process.pid for process in alive]


def remove_files(job: str, run_dir: Path) -> None:
    """Remove the run folder, and the state file if it still speaks of this run.

    Raises:
        OSError: something could not be removed; a folder that is already gone is no error.
    """
    state = read_state(job)
    if state is not None and state.run_dir == str(run_dir):
        state_path(job).unlink(missing_ok=True)
    if run_dir.exists():
        shutil.rmtree(run_dir)
