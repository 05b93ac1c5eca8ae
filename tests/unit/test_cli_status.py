"""What ``rolecall status`` prints, and what it says when there is nothing to ask."""

from __future__ import annotations

import io

import pytest
from click.testing import CliRunner
from rich.console import Console

from rolecall.cli.down import down
from rolecall.cli.status import show_status, status
from rolecall.errors import JobError

ANSWER = {
    "job": "demo",
    "gateway_url": "http://127.0.0.1:8000",
    "ray_address": "127.0.0.1:6379",
    "coordinator": {
        "failure": {"batch": 1, "reason": "judge: no verdict"},
        "leases": {
            "judge": {"state": "BLOCKED", "reason": "offload had no answer within 180 s [sic]"},
            "rules": {"state": "ACTIVE"},
            "actor": {"state": "SLEEPING"},
        },
        "batches": [
            {"batch": 0, "state": "COMMITTED", "reason": None},
            {"batch": 1, "state": "FAILED", "reason": "judge: no verdict"},
        ],
    },
    "roles": {
        "judge": {
            "replicas": [
                {
                    "engine": "m/replica-0",
                    "state": "READY",
                    "permits": 3,
                    "generation": 2,
                    "base_url": "http://127.0.0.1:9",
                },
                {
                    "engine": "m/replica-1",
                    "state": "FAILED",
                    "generation": 1,
                    "base_url": None,
                    "fence": "process 4711 outlived SIGKILL",
                },
            ],
            "routers": [
                {"model": "m", "url": "http://127.0.0.1:8", "engines": ["m/replica-0"], "problem": None},
                {"model": "n", "url": None, "engines": [], "problem": "ended [exit code 1]"},
            ],
        },
        "rules": {"replicas": [], "routers": []},
    },
}


def test_leases_replicas_batches_and_the_failure_are_shown():
    console = Console(file=io.StringIO(), width=120, color_system=None)
    show_status(console, ANSWER)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for part in (
        "run failed in batch 1: judge: no verdict",
        "judge  BLOCKED   m/replica-0    READY   3          2           http://127.0.0.1:9",
        "fence judge is BLOCKED: offload had no answer within 180 s [sic]",
        "rolecall reconcile judge --job demo --proof process-gone",
        "fence judge m/replica-1: process 4711 outlived SIGKILL",
        "m/replica-1    FAILED             1",
        "rules  ACTIVE    none",
        "actor  SLEEPING  the trainer's",
        "router of judge m  http://127.0.0.1:8  m/replica-0",
        "router of judge n  no router  no engine  ended [exit code 1]",
        "batch 0  COMMITTED",
    ):
        assert part in shown, shown


def test_a_role_whose_service_is_gone_does_not_hide_the_others():
    gone = {"replicas": [], "routers": [], "problem": "judge's status failed, the actor is gone"}
    console = Console(file=io.StringIO(), width=120, color_system=None)
    show_status(console, {**ANSWER, "roles": {**ANSWER["roles"], "judge": gone}})
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for part in (
        "judge  BLOCKED   unknown",
        "no word of judge: judge's status failed, the actor is gone",
        "rules  ACTIVE    none",
        "fence judge is BLOCKED",
    ):
        assert part in shown


def test_a_job_that_is_not_running_is_an_error_for_status_and_none_for_down(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    asked = CliRunner().invoke(status, ["demo"])
    assert isinstance(asked.exception, JobError)
    stopped = CliRunner().invoke(down, ["demo"])
    assert stopped.exit_code == 0
    assert "demo is not running" in stopped.output
