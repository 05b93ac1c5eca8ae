"""What was found, as tables in Markdown and as one JSON object."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen
from works import ROUTER, Round, Rounds, Verdict, Work, middle, middle_ratio

DASH = "–"


@frozen(kw_only=True)
class Machine:
    """Where and when it was measured."""

    processor: str
    cores: int
    kernel: str
    python: str
    date: str
    load_before: float

    @classmethod
    def here(cls) -> Machine:
        cpu_info = Path("/proc/cpuinfo").read_text()
        names = (line.partition(":")[2].strip() for line in cpu_info.splitlines() if "model name" in line)
        return cls(
            processor=next(names, platform.machine()),
            cores=len(os.sched_getaffinity(0)),
            kernel=platform.release(),
            python=platform.python_version(),
            date=time.strftime("%Y-%m-%d %H:%M"),
            load_before=round(os.getloadavg()[0], 2),
        )

    def line(self) -> str:
        return (
            f"{self.date}, {self.cores} cores ({self.processor}), Linux {self.kernel}, Python {self.python}, "
            f"load average before {self.load_before}"
        )


def installed(versions: Mapping[str, str | None]) -> str:
    """One line: who took part, in which version, and who is not installed."""
    return "; ".join(f"{name} {found or 'not installed'}" for name, found in versions.items())


_COLUMNS = {
    "cpu_us": "CPU µs",
    "per_second": "a second",
    "p50_us": "p50 µs",
    "p99_us": "p99 µs",
    "added_p50_us": "added p50 µs",
    "event_p50_us": "delay p50 µs",
    "event_p99_us": "delay p99 µs",
    "gap_p99_us": "gap p99 µs",
    "seconds": "seconds",
    "kb_a_call": "KB a call",
    "idle_mb": "idle MB",
    "peak_mb": "peak MB",
    "failed": "failed",
}
"""The figures of a table, in order. Seconds are told only where they are the work's own."""


def work_table(work: Work, rounds: Rounds) -> str:
    """Return the table of one work: medians over its rounds, and faults below it."""
    found = {figure for measured in rounds.values() for one in measured for figure in one.figures}
    shown = [figure for figure in _COLUMNS if figure in found and (figure != "seconds" or work.once)]
    router = rounds.get(ROUTER)
    head = [work.title, *(_COLUMNS[figure] for figure in shown)]
    if router:
        head.insert(2 if "cpu_us" in shown else 1, f"× {ROUTER}")
    rows: list[list[str]] = []
    for subject, measured in rounds.items():
        row = [subject, *(number(middle(measured, figure)) for figure in shown)]
        if router:
            figure = "cpu_us" if "cpu_us" in shown else "per_second"
            row.insert(
                2 if "cpu_us" in shown else 1, number(middle_ratio(rounds, figure, subject, ROUTER), digits=2)
            )
        rows.append(row)
    return "\n".join([table(head, rows), *_faults(rounds)])


def _faults(rounds: Rounds) -> list[str]:
    faults = {subject: [one.fault for one in measured if one.fault] for subject, measured in rounds.items()}
    lines = [
        f"* {subject}: {len(found)} of {len(rounds[subject])} rounds went wrong; the first: {found[0]}"
        for subject, found in faults.items()
        if found
    ]
    return ["", *lines] if lines else []


def verdict_table(verdicts: Iterable[Verdict], titles: Mapping[str, str]) -> str:
    """Return the table of targets."""
    rows: list[list[str]] = []
    for verdict in verdicts:
        target = verdict.target
        sign = "≥" if target.at_least else "≤"
        times = f" × {target.against}" if target.against else ""
        word = {True: "reached", False: "missed", None: "not measured"}[verdict.reached]
        rows.append(
            [
                titles[target.work],
                target.what,
                target.subject,
                f"{sign} {number(target.limit)}{times}",
                number(verdict.value, digits=2 if target.against else None),
                word,
            ]
        )
    return table(["work", "what", "of", "target", "found", ""], rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, its columns as wide as they must be for a terminal."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    texts = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    texts.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(texts)


def number(value: float | None, *, digits: int | None = None) -> str:
    """Return a number as a person reads it: three digits or so, or as many decimals as asked."""
    if value is None:
        return DASH
    if digits is None:
        digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def as_json(
    machine: Machine,
    versions: Mapping[str, str | None],
    options: Mapping[str, Any],
    found: Mapping[str, Mapping[str, Sequence[Round]]],
    verdicts: Iterable[Verdict],
) -> dict[str, Any]:
    """Return everything, every round included."""
    from attrs import asdict

    return {
        "machine": asdict(machine),
        "versions": dict(versions),
        "options": dict(options),
        "works": {
            work: {
                subject: [{"figures": dict(one.figures), "fault": one.fault} for one in measured]
                for subject, measured in rounds.items()
            }
            for work, rounds in found.items()
        },
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
