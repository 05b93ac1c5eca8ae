"""A trace of what becomes of each plugin, a line a step on standard error.

Off unless ``rolecall --trace-plugins`` or ``plugins.trace`` asks for it; then every process of the job
tells its own steps. Standard output is never touched: what scripts read stays as it is.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

TRACE_VARIABLE = "ROLECALL_TRACE_PLUGINS"
"""Environment variable that turns the trace on, whatever its value; ``rolecall --trace-plugins`` sets it."""

PREFIX = "plugins["
"""Start of every line, which goes on with the number of the process."""


def traced_by_environment() -> bool:
    """Whether :data:`TRACE_VARIABLE` is set."""
    return bool(os.environ.get(TRACE_VARIABLE))


class Trace:
    """Tells steps, or nothing where it is off."""

    def __init__(self, *, on: bool) -> None:
        self._on = on

    def tell(self, text: str) -> None:
        """Write a line that names this process."""
        if self._on:
            print(f"{PREFIX}{os.getpid()}]: {text}", file=sys.stderr, flush=True)

    @contextmanager
    def step(self, text: str) -> Generator[None]:
        """Tell a step with its time once it is done, also when it raised."""
        started = time.perf_counter()
        try:
            yield
        except BaseException as error:
            self.tell(f"{text}: raised {type(error).__name__} after {_milliseconds(started)}")
            raise
        self.tell(f"{text}: {_milliseconds(started)}")


def _milliseconds(started: float) -> str:
    return f"{1000 * (time.perf_counter() - started):.1f} ms"
