"""How long rolecall's short commands take as processes, beside the interpreter alone.

    python benchmarks/processes.py [--runs 15]

The commands are run by turns, with compiled code, as pip leaves it. Printed are, for each, the median and
the least time by the clock, the least processor time, and how many times that is what ``python -c pass``
takes: on a busy machine the clock shows mostly waiting. Targets: ``plugins list`` in less than 250 ms,
``plan`` in less than 400 ms. Files come from the page cache: a first run of each is not counted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart.toml"
ROLECALL = [sys.executable, "-m", "rolecall.cli"]

BARE = "python -c pass"
COMMANDS = {
    BARE: [sys.executable, "-c", "pass"],
    "import click, attrs": [sys.executable, "-c", "import click, attrs"],
    "rolecall plugins list": [*ROLECALL, "plugins", "list"],
    "rolecall plan FILE": [*ROLECALL, "plan", str(QUICKSTART)],
    "rolecall plan FILE --json": [*ROLECALL, "plan", str(QUICKSTART), "--json"],
}


def seconds(command: list[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Run a command and return its seconds by the clock and of the processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    elapsed = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(runs: int, compiled: str) -> dict[str, list[tuple[float, float]]]:
    """Return every run's seconds for each command; ``compiled`` is a folder for compiled code."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for command in COMMANDS.values():
        seconds(command, environment)
    taken = {name: list[tuple[float, float]]() for name in COMMANDS}
    for _ in range(runs):
        for name, command in COMMANDS.items():
            taken[name].append(seconds(command, environment))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    runs: int = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as compiled:
        taken = measure(runs, compiled)
    installed = len(list(importlib.metadata.distributions()))
    print(f"{installed} distributions installed, {runs} runs each, load {os.getloadavg()[0]:.1f}")
    bare = min(cpu for _, cpu in taken[BARE])
    for name, times in taken.items():
        clock, cpu = zip(*times, strict=True)
        print(
            f"{name:26} median {1000 * statistics.median(clock):4.0f} ms, least {1000 * min(clock):4.0f} ms, "
            f"processor {1000 * min(cpu):4.0f} ms ({min(cpu) / bare:.1f} times bare)"
        )


if __name__ == "__main__":
    main()
