"""How long ``rolecall plugins list`` takes as a process, beside the interpreter alone.

    python benchmarks/plugins_list.py [--runs 15]

The two are run by turns; printed are the medians and their difference. Target: the whole process in less
than 250 ms. Files come from the page cache: the first run is not counted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import click, attrs": [sys.executable, "-c", "import click, attrs"],
    "rolecall plugins list": [sys.executable, "-m", "rolecall.cli", "plugins", "list"],
}


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    runs: int = parser.parse_args().runs
    for command in COMMANDS.values():
        seconds(command)
    taken = {name: list[float]() for name in COMMANDS}
    for _ in range(runs):
        for name, command in COMMANDS.items():
            taken[name].append(seconds(command))
    print(f"{len(list(importlib.metadata.distributions()))} distributions installed, {runs} runs each")
    for name, times in taken.items():
        print(
            f"{name:24} median {1000 * statistics.median(times):5.0f} ms, least {1000 * min(times):5.0f} ms"
        )


if __name__ == "__main__":
    main()
