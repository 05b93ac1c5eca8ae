"""Where a running job keeps its things on this machine.

*Run folder*: Ray's session, engine logs, the control socket; removed when the job ends.
*State file*: one small JSON file a job, by which ``status``, ``down`` and training loops find
it; written when the job is up, removed when it ends.
*Journal*: what the job's coordinator decided; stays when the job ends, so that it can be resumed.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cattrs
from attrs import asdict, frozen

from rolecall.config.specs import JobConfig
from rolecall.errors import JobError
from rolecall.job.training_devices import TrainingDevice

MAX_TEMP_PATH = 30
"""107 bytes of a socket's path, less ``/rc-12345678`` and what Ray appends to it with long pids."""


@frozen(kw_only=True)
class JobState:
    """What is known about a running job.

    pid, pid_started_s: the job process and its start time, so that a recycled pid is noticed.
    ray_address: address of the Ray cluster's control store.
    log: file with the job process's output; None when it runs in a terminal.
    block: the job's block list of plugins, also what its command line added.
    training: the devices of the trainer's processes.
    """

    name: str
    file: str
    pid: int
    pid_started_s: float
    run_dir: str
    namespace: str
    ray_address: str
    gateway_url: str
    log: str | None = None
    block: tuple[str, ...] = ()
    training: tuple[TrainingDevice, ...] = ()


def make_run_dir() -> Path:
    """Make a fresh run folder.

    Raises:
        JobError: the folder for temporary files is so deep that Ray's sockets would not fit.
    """
    parent = tempfile.gettempdir()
    if len(parent) > MAX_TEMP_PATH:
        raise JobError(
            f"the folder for temporary files, {parent}, has {len(parent)} characters; Ray puts sockets "
            f"below it whose paths may have 107, which leaves {MAX_TEMP_PATH}. Set TMPDIR to a shorter one"
        )
    return Path(tempfile.mkdtemp(prefix="rc-", dir=parent))


def state_path(job: str) -> Path:
    """Return the path of a job's state file."""
    root = os.environ.get("XDG_STATE_HOME")
    base = Path(root) if root else Path.home() / ".local" / "state"
    return base / "rolecall" / f"{job}.json"


def log_path(job: str) -> Path:
    """Return the log of a job in the background; it stays only after a failure."""
    return state_path(job).with_suffix(".log")


def journal_path(config: JobConfig, file: Path) -> Path:
    """Return where the job's coordinator keeps its journal."""
    if config.job.journal is not None:
        return file.parent / config.job.journal
    return state_path(config.job.name).with_suffix(".journal")


def former_journal_path(journal: Path) -> Path:
    """Return where the journal of the run before is kept, one generation."""
    return journal.with_name(f"{journal.name}.former")


def write_state(state: JobState) -> None:
    """Write the state file in one step, readable by its owner only."""
    path = state_path(state.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    scratch.touch(mode=0o600)
    scratch.write_text(json.dumps(asdict(state), indent=2), encoding="utf-8")
    scratch.replace(path)


def read_state(job: str) -> JobState | None:
    """Return the job's state, None if no such job is known here.

    Raises:
        JobError: the file is there but can't be understood; says which one to remove.
    """
    path = state_path(job)
    try:
        raw: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cattrs.structure(raw, JobState)
    except FileNotFoundError:
        return None
    except (ValueError, cattrs.BaseValidationError) as error:
        raise JobError(f"{path} is not a job state file; remove it if no job {job!r} is running") from error


def known_jobs() -> tuple[str, ...]:
    """Return the names of all jobs with a state file here."""
    return tuple(sorted(path.stem for path in state_path("x").parent.glob("*.json")))
