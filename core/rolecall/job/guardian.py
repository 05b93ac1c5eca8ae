"""The guardian: cleans up after a job process that could not do it itself.

A small process of its own that waits for the end of its standard input, which the job process
holds open. When the job process is gone, for whatever reason, the guardian lets Ray's own
fate-sharing take the job's actors and placement groups, removes the Serve apps if the Ray
cluster lives on, ends what is left of the job's processes and removes its files. Started in a
session of its own, so that Ctrl-C in a terminal doesn't reach it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import cattrs
from attrs import asdict, frozen

from rolecall.job.sweep import end_processes, remove_files
from rolecall.processes.marks import RUN_DIR_VARIABLE

GRACE_S = 15.0
"""How long the job's processes may take to end by themselves once the job process is gone."""


@frozen(kw_only=True)
class Charge:
    """What the guardian looks after.

    joined_address: address of a Ray cluster that outlives the job; None for a local one.
    apps: Serve apps to delete there.
    owns_serve: Serve was started by this job, so it is shut down with it.
    """

    job: str
    run_dir: str
    joined_address: str | None = None
    apps: tuple[str, ...] = ()
    owns_serve: bool = False


class Guardian:
    """The job process's hold on its guardian."""

    def __init__(self, charge: Charge) -> None:
        environment = {key: value for key, value in os.environ.items() if key != RUN_DIR_VARIABLE}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rolecall.job.guardian"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            cwd="/",
        )
        self.charge(charge)

    def charge(self, charge: Charge) -> None:
        """Tell the guardian what to look after from now on; the latest word counts."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(charge)).encode() + b"\n")
        self._process.stdin.flush()

    def dismiss(self, timeout_s: float = 60.0) -> None:
        """Let the guardian do its last round and wait for its end. Repeats do nothing."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout_s)


def clean_up(charge: Charge) -> None:
    """Remove everything the charge names. Each step may find its work done already."""
    run_dir = Path(charge.run_dir)
    if charge.joined_address is not None and charge.apps:
        # Imported here: a guardian waits for hours, and Ray would cost it 100 MB.
        from rolecall.gateway.serve import remove_apps_of

        remove_apps_of(charge.joined_address, charge.apps, owns_serve=charge.owns_serve)
    end_processes(run_dir, grace_s=GRACE_S, spare=frozenset({os.getpid()}))
    remove_files(charge.job, run_dir)


def main() -> None:
    """Wait for the job process's end, then clean up by its last word."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    last: Charge | None = None
    for line in sys.stdin.buffer:
        if line.endswith(b"\n"):  # a torn line is the job process's death in mid-sentence
            last = cattrs.structure(json.loads(line), Charge)
    if last is not None:
        clean_up(last)


if __name__ == "__main__":
    main()
