"""Progress and timeline, from events alone."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from rich.console import Console

from rolecall.cli.progress import RunProgress, live_view, plain_lines
from rolecall.cli.report import batch_spans, samples_table, timeline
from rolecall.events.event import Event


def event(time_s: float, kind: str, **fields: Any) -> Event:
    return Event(kind=kind, time_s=time_s, fields=fields)


def lease(time_s: float, role: str, to: str) -> Event:
    return event(
        time_s, "lease.state", **{"role": role, "from": "", "to": to, "reason": "", "token": 1, "batch": 0}
    )


RUN = [
    event(0.0, "batch.state", **{"batch": 0, "from": "", "to": "PENDING", "reason": ""}),
    lease(0.1, "policy", "ONLOADING"),
    lease(1.0, "policy", "ACTIVE"),
    event(1.0, "handover", batch=0, role="policy", direction="onload", seconds=0.9),
    event(1.0, "stage.state", batch=0, stage="generate", role="policy", state="started"),
    event(3.0, "stage.progress", batch=0, stage="generate", done=4, total=16, tokens=100),
]


def text(renderable: object) -> str:
    console = Console(file=io.StringIO(), width=140, color_system=None)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_running_stage_shows_done_rate_and_eta():
    progress = RunProgress(batches=2)
    for each in RUN:
        progress.apply(each)
    assert progress.holders == ["policy"]
    stage = progress.stages["generate"]
    assert stage.eta_s(3.0) == 6.0
    assert stage.tokens_per_s(3.0) == 50.0
    drawn = text(live_view(progress, 3.0))
    for part in ("batch 1/2", "policy active", "4/16", "50 tok/s", "ETA 6 s"):
        assert part in drawn


def test_a_new_batch_starts_with_no_stages_and_commits_are_counted():
    progress = RunProgress(batches=2)
    for each in RUN:
        progress.apply(each)
    progress.apply(event(9.0, "batch.state", **{"batch": 0, "from": "", "to": "COMMITTED", "reason": ""}))
    progress.apply(event(9.1, "batch.state", **{"batch": 1, "from": "", "to": "PENDING", "reason": ""}))
    assert progress.committed == 1
    assert progress.stages == {}
    assert "batch 2/2" in text(live_view(progress, 9.1))


def test_plain_lines_say_the_same_without_a_terminal():
    progress = RunProgress(batches=1)
    lines: list[str] = []
    for each in [*RUN, event(5.0, "stage.state", batch=0, stage="generate", role="policy", state="finished")]:
        progress.apply(each)
        lines += plain_lines(progress, each)
    assert any("policy → ACTIVE" in line for line in lines)
    assert any("generate" in line and "4/16" in line and "4.0 s" in line for line in lines)


def test_timeline_has_stages_and_handovers_in_order():
    events = [*RUN, event(5.0, "stage.state", batch=0, stage="generate", role="policy", state="finished")]
    spans = batch_spans(events, 0)
    assert [(span.kind, span.name) for span in spans] == [("handover", "wake"), ("stage", "generate")]
    assert spans[1].seconds == 4.0
    assert batch_spans(events, 1) == []
    drawn = text(timeline(events, 0))
    assert "generate" in drawn
    assert "4.00" in drawn


def test_samples_table_shows_rewards_and_log_prob_arrays():
    rows = [
        {
            "sample_id": "p/0",
            "prompt": "What is 2 + 2?",
            "response": "4",
            "answer": "4",
            "reward": {"judge": 0.5, "exact": 1.0},
            "teacher_log_probs": np.array([-1.0, -3.0], dtype=np.float32),
        }
    ]
    drawn = text(samples_table(rows, limit=5))
    for part in ("p/0", "exact 1.00", "judge 0.50", "[2] -2.00", "1 of 1"):
        assert part in drawn


SIDE_BY_SIDE = [
    *RUN[:1],
    event(2.0, "stage.state", batch=0, stage="left", role="left", state="started"),
    event(3.0, "stage.state", batch=0, stage="right", role="right", state="started"),
    event(4.0, "stage.progress", batch=0, stage="left", done=8, total=16, tokens=40),
    event(5.0, "stage.progress", batch=0, stage="right", done=4, total=16, tokens=20),
]


def test_stages_that_run_at_once_have_a_line_each():
    progress = RunProgress(batches=1)
    for each in SIDE_BY_SIDE:
        progress.apply(each)
    left, right = (
        next(line for line in text(live_view(progress, 6.0)).splitlines() if name in line)
        for name in ("left", "right")
    )
    assert all(part in left for part in ("▶", "8/16", "10 tok/s", "ETA 4 s"))
    assert all(part in right for part in ("▶", "4/16", "7 tok/s", "ETA 9 s"))


def test_a_failure_ends_every_stage_that_runs():
    progress = RunProgress(batches=1)
    failed = {"batch": 0, "from": "PENDING", "to": "FAILED", "reason": "right: no verdict"}
    for each in [*SIDE_BY_SIDE, event(7.0, "batch.state", **failed)]:
        progress.apply(each)
    assert progress.failure == "right: no verdict"
    drawn = text(live_view(progress, 100.0))
    assert drawn.count("✘") == 2
    assert "▶" not in drawn
    assert "ETA" not in drawn
    assert progress.stages["left"].elapsed_s(100.0) == 5.0


def test_bars_of_stages_that_ran_at_once_lie_over_one_another():
    ends = [
        event(8.0, "stage.state", batch=0, stage="right", role="right", state="finished"),
        event(10.0, "stage.state", batch=0, stage="left", role="left", state="finished"),
    ]
    assert [(s.name, s.start_s, s.end_s) for s in batch_spans([*SIDE_BY_SIDE, *ends], 0)] == [
        ("left", 2.0, 10.0),
        ("right", 3.0, 8.0),
    ]
    lines = text(timeline([*SIDE_BY_SIDE, *ends], 0)).splitlines()
    left, right = ({place for place, mark in enumerate(line) if mark == "█"} for line in lines if "█" in line)
    assert right < left
