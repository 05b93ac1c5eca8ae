"""slime's weights for a rolecall job: slime's --custom-update-weight-post-write-path.

    --update-weight-transport disk --update-weight-disk-dir DIR --update-weight-disk-keep-files
    --custom-update-weight-post-write-path publish.hook

slime calls the hook on each rank of the trainer once a whole checkpoint is written, and waits for it. Its
process has joined slime's own Ray, so the job is reached by a program of its own. DIR has to be readable on
the job's nodes, and this file importable by slime.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch.distributed

from rolecall.api import FromDisk
from rolecall.job.connect import connect


def hook(args: Any, version_dir: str, rollout_engines: Any) -> None:
    """Update the job's policy from a checkpoint that slime has written; raises if an engine refused."""
    del rollout_engines
    if torch.distributed.get_rank() == 0:
        subprocess.run([sys.executable, __file__, args.rolecall_job, version_dir], check=True)


def main(name: str, folder: str) -> None:
    """Publish a folder of weights under its own name."""
    with connect(name) as job:
        asyncio.run(job.update_weights("rollout", FromDisk(path=Path(folder)), Path(folder).name))


if __name__ == "__main__":
    main(*sys.argv[1:])
