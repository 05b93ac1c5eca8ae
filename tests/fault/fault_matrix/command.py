"""Run the fault matrix: real Ray, real engines, real processes that are killed, stopped or cut off.

    python tests/fault [--subject NAME]... [--phase NAME]... [--fault NAME]... [--sink NAME] [--seconds N]
        [--results FILE]

Prints a line a cell and, at the end, the table; exits with 1 if an invariant did not hold. With ``--results``
the cells' results are kept in a file, and those that are there already are not run again.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from fault_matrix.cell_run import NO_CELL, Run
from fault_matrix.cells import Fault, Phase, Subject, cells
from fault_matrix.job import Job
from fault_matrix.table import append_result, read_results, render, summary


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/fault", description="Run the fault matrix.")
    parser.add_argument("--subject", action="append", choices=list(Subject), help="only this one; may repeat")
    parser.add_argument("--phase", action="append", choices=list(Phase), help="only this one; may repeat")
    parser.add_argument("--fault", action="append", choices=list(Fault), help="only this one; may repeat")
    parser.add_argument("--sink", default="jsonl", help="batch sink of the job (default: jsonl)")
    parser.add_argument("--seconds", type=float, help="begin no cell after so many seconds")
    parser.add_argument("--results", type=Path, help="keep results here, and run what is missing in it")
    chosen = parser.parse_args()
    results = [] if chosen.results is None else read_results(chosen.results)
    known = {result.cell for result in results}
    wanted = [
        cell
        for cell in cells()
        if cell.subject in (chosen.subject or Subject)
        and cell.phase in (chosen.phase or Phase)
        and cell.fault in (chosen.fault or Fault)
        and cell not in known
    ]
    # So that a run that is ended from outside, also by a time limit, ends its job.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    started = time.monotonic()
    job = Job(chosen.sink)
    run = Run(job)
    left: list[str] = []
    try:
        for number, cell in enumerate(wanted, start=1):
            if chosen.seconds is not None and time.monotonic() - started > chosen.seconds:
                print(f"no time for {len(wanted) - number + 1} cells", flush=True)
                break
            result = run.cell(cell)
            results.append(result)
            if chosen.results is not None and result.outcome != NO_CELL:
                append_result(chosen.results, result)
            print(f"{number}/{len(wanted)} {cell}: {result.outcome}, {result.seconds:.1f} s", flush=True)
            if result.detail:
                print(f"    {result.detail}", flush=True)
            for problem in result.problems:
                print(f"    WRONG: {problem}", flush=True)
        left = run.close()
        for problem in left:
            print(f"left at the end: {problem}", flush=True)
    finally:
        job.close()
    print(f"\n{render(results)}\n\n{summary(results, run.starts, time.monotonic() - started)}")
    return 1 if left or any(result.problems for result in results) else 0
