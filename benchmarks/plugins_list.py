"""How long ``rolecall plugins list`` takes as a process, beside the interpreter alone.

    python benchmarks/plugins_list.py [--runs 15]

The commands are run by turns. Printed are, for each, the median and the least time by the clock, the least
processor time, and how many times that is what ``python -c pass`` takes: on a busy machine the clock shows
mostly waiting. Target: the whole process in less than 250 ms. Files come from the page cache: a first run of
each is not counted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import resource
import statistics
import subprocess
import sys
import time

BARE = "python -c pass"
COMMANDS = {
    BARE: [sys.executable, "-c", "pass"],
    "import click, attrs": [sys.executable, "-c", "import click, attrs"],
    "rolecall plugins list": [sys.executable, "-m", "rolecall.cli", "plugins", "list"],
}


def seconds(command: list[str]) -> tuple[float, float]:
    """Run a command and return its seconds by the clock and of the processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    elapsed = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    runs: int = parser.parse_args().runs
    for command in COMMANDS.values():
        seconds(command)
    taken = {name: list[tuple[float, float]]() for name in COMMANDS}
    for _ in range(runs):
        for name, command in COMMANDS.items():
            taken[name].append(seconds(command))
    installed = len(list(importlib.metadata.distributions()))
    print(f"{installed} distributions installed, {runs} runs each, load {os.getloadavg()[0]:.1f}")
    bare = min(cpu for _, cpu in taken[BARE])
    for name, times in taken.items():
        clock, cpu = zip(*times, strict=True)
        print(
            f"{name:24} median {1000 * statistics.median(clock):4.0f} ms, least {1000 * min(clock):4.0f} ms, "
            f"processor {1000 * min(cpu):4.0f} ms ({min(cpu) / bare:.1f} times bare)"
        )


if __name__ == "__main__":
    main()
