"""What a run shows at its end: the timeline of each batch and a table of samples.

Everything comes from the job's events and from the rows that the training consumer read, so
what is printed is what really reached training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen
from rich.table import Table
from rich.text import Text

from rolecall.events.event import Event

BAR_WIDTH = 48
LOG_PROBS = "log_probs"


@frozen(kw_only=True)
class Span:
    """One stretch of a batch's time, Unix seconds; ``kind`` is ``stage`` or ``handover``."""

    kind: str
    name: str
    role: str | None
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def batch_spans(events: Iterable[Event], batch: int) -> list[Span]:
    """Return a batch's stages and hand-overs in the order they began."""
    spans: list[Span] = []
    started: dict[str, Event] = {}
    for event in events:
        fields = event.fields
        if fields.get("batch") != batch:
            continue
        if event.kind == "stage.state" and fields["state"] == "started":
            started[fields["stage"]] = event
        elif event.kind == "stage.state":
            begin = started.pop(fields["stage"])
            spans.append(
                Span(
                    kind="stage",
                    name=fields["stage"],
                    role=fields["role"],
                    start_s=begin.time_s,
                    end_s=event.time_s,
                )
            )
        elif event.kind == "handover":
            spans.append(
                Span(
                    kind="handover",
                    name="wake" if fields["direction"] == "onload" else "sleep",
                    role=fields["role"],
                    start_s=event.time_s - fields["seconds"],
                    end_s=event.time_s,
                )
            )
    return sorted(spans, key=lambda span: span.start_s)


def timeline(events: Sequence[Event], batch: int) -> Table:
    """Draw a batch's spans as bars on one time axis."""
    spans = batch_spans(events, batch)
    table = Table(title=f"batch {batch}", title_justify="left", box=None, pad_edge=False)
    table.add_column("role")
    table.add_column("step")
    if not spans:
        return table
    origin = spans[0].start_s
    length = max(max(span.end_s for span in spans) - origin, 1e-6)
    table.add_column(Text(f"0 s{length:>{BAR_WIDTH - 5}.1f} s"), no_wrap=True)
    table.add_column("seconds", justify="right")
    for span in spans:
        first = round((span.start_s - origin) / length * (BAR_WIDTH - 1))
        last = max(round((span.end_s - origin) / length * BAR_WIDTH), first + 1)
        filled = ("█" if span.kind == "stage" else "▒") * (last - first)
        table.add_row(
            span.role or "cpu",
            span.name,
            Text(" " * first + filled, style="bold cyan" if span.kind == "stage" else "dim"),
            f"{span.seconds:.2f}",
        )
    return table


def samples_table(rows: Sequence[Mapping[str, Any]], *, limit: int) -> Table:
    """Show prompts, answers, rewards and every scored log-probability column of some rows.

    Array columns whose name ends in ``log_probs`` are shown by their shape and mean, whichever
    stage wrote them.
    """
    shown = rows[:limit]
    # Expanded, the text column gives way to the others; otherwise Rich cuts all of them.
    title = f"samples ({len(shown)} of {len(rows)})"
    table = Table(title=title, title_justify="left", show_lines=True, expand=True)
    table.add_column("sample", no_wrap=True)
    table.add_column("prompt, response, wanted", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("reward", no_wrap=True)
    table.add_column(Text("log-probs: [shape] mean"), no_wrap=True)
    for row in shown:
        wanted = row.get("answer")
        lines = [_one_line(row["prompt"]), _one_line(row["response"])]
        arrays = [
            f"{_short(name)} {_array(value)}"
            for name, value in sorted(row.items())
            if _is_log_probs(name, value)
        ]
        table.add_row(
            str(row["sample_id"]),
            "\n".join(lines if wanted is None else [*lines, f"wanted: {_one_line(wanted)}"]),
            _reward(row["reward"]) if "reward" in row else "",
            "\n".join(arrays),
        )
    return table


def _is_log_probs(name: str, value: Any) -> bool:
    return name.endswith(LOG_PROBS) and isinstance(value, np.ndarray)


def _short(name: str) -> str:
    return name.removesuffix(LOG_PROBS).rstrip("_")


def _one_line(text: str, width: int = 72) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def _reward(reward: Any) -> str:
    if isinstance(reward, Mapping):
        return "\n".join(f"{name} {value:.2f}" for name, value in sorted(reward.items()))
    return f"{reward:.2f}"


def _array(value: np.ndarray[Any, Any]) -> str:
    shape = "×".join(str(size) for size in value.shape)
    return f"[{shape}] {float(value.mean()):.2f}" if value.size else f"[{shape}]"
