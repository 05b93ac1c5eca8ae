"""The matrix as a table, one line a subject and fault, one column a phase; and its results in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import cattrs
from attrs import asdict
from fault_matrix.cell_run import Result
from fault_matrix.cells import Fault, Phase, Subject


def append_result(path: Path, result: Result) -> None:
    """Add a cell's result to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def read_results(path: Path) -> list[Result]:
    """Return a file's results; none if it is not there."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [cattrs.structure(json.loads(line), Result) for line in lines]


def render(results: Sequence[Result]) -> str:
    """Return a Markdown table of outcomes and seconds; cells that were not run are empty."""
    by_cell = {(r.cell.subject, r.cell.fault, r.cell.phase): r for r in results}
    lines = [
        f"| subject | fault | {' | '.join(Phase)} |",
        f"|---|---|{'---|' * len(Phase)}",
    ]
    for subject in Subject:
        for fault in Fault:
            row = [by_cell.get((subject, fault, phase)) for phase in Phase]
            if any(row):
                lines.append(f"| {subject} | {fault} | {' | '.join(map(_cell, row))} |")
    return "\n".join(lines)


def summary(results: Sequence[Result], starts: int, seconds: float) -> str:
    """Return one line of totals."""
    outcomes: dict[str, int] = {}
    for result in results:
        outcomes[result.outcome] = outcomes.get(result.outcome, 0) + 1
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    wrong = sum(bool(result.problems) for result in results)
    return f"{len(results)} cells in {seconds:.0f} s, {starts} jobs: {told}; {wrong} with problems"


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    return f"{'**WRONG** ' if result.problems else ''}{result.outcome}, {result.seconds:.0f} s"
