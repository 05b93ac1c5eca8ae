"""The job process that ``rolecall up`` leaves in the background: up until told to end."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rolecall.errors import RolecallError
from rolecall.job.job import running_job
from rolecall.job.paths import log_path
from rolecall.job.prepare import prepare_job
from rolecall.job.signals import cancel_on_ending_signal, on_ending_signal


async def _run(file: Path) -> None:
    resolved, plan = prepare_job(file)
    told = asyncio.Event()
    # While it comes up, a signal cancels the steps; once it is up, it ends the wait.
    cancel_on_ending_signal()
    log = log_path(resolved.config.job.name)
    async with running_job(resolved, plan, print, log=log):
        on_ending_signal(told.set)
        await told.wait()
    log.unlink(missing_ok=True)


def main() -> int:
    """Run the job of the file named on the command line; 0 when it was told to end."""
    try:
        asyncio.run(_run(Path(sys.argv[1])))
    except RolecallError as error:
        print(f"rolecall: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
