"""Traces of plugins that a job's actors write, shown on the standard error of the job's own process.

Ray passes on all that actors write, to both streams. Only lines of the trace are wanted, on standard
error: what scripts read on standard output stays as it is.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from rolecall.plugins.trace import PREFIX

_RAYS_HANDLER = "ray_print_logs"


def show_traces_of_actors() -> None:
    """Put a filter in the place of what prints actors' lines. Call it after joining Ray with those on."""
    # Ray has no public way to choose among the lines.
    dispatcher: Any = importlib.import_module("ray._private.ray_logging").global_worker_stdstream_dispatcher
    dispatcher.remove_handler(_RAYS_HANDLER)
    dispatcher.add_handler(_RAYS_HANDLER, _show)


def _show(batch: dict[str, Any]) -> None:
    who = f"{batch.get('actor_name') or 'worker'} on {batch.get('ip')}, "
    for line in batch["lines"]:
        if line.startswith(PREFIX):
            print(line.replace(PREFIX, f"{PREFIX}{who}", 1), file=sys.stderr, flush=True)
