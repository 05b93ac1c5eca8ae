"""``rolecall events`` and ``rolecall reconcile``, against a control socket that answers by script."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result

from rolecall.cli.events import event_line, events
from rolecall.cli.reconcile import reconcile
from rolecall.errors import JobError
from rolecall.events.event import Event
from rolecall.events.hub import event_to_json
from rolecall.job.control import Command, serve_control
from rolecall.job.paths import JobState, write_state
from rolecall.testing.sample_events import SAMPLE_EVENTS

RECORD = {
    "role": "judge",
    "by": "ada@login-1",
    "proof": "process-gone",
    "evidence": {"m/replica-0": "FAILED: no process with its mark is left"},
}


def told(*kinds: str) -> list[dict[str, Any]]:
    """The sample events of these kinds, as a job tells them."""
    return [event_to_json(event) for event in SAMPLE_EVENTS if event.kind in kinds]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Lets a job named demo run here that answers with the given commands."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def start(**commands: Command) -> None:
        asyncio.run_coroutine_threadsafe(serve_control(run_dir, commands), loop).result(5)
        write_state(
            JobState(
                name="demo",
                file="demo.toml",
                pid=os.getpid(),
                pid_started_s=psutil.Process().create_time(),
                run_dir=str(run_dir),
                namespace="rolecall-demo",
                ray_address="",
                gateway_url="",
            )
        )

    yield start
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def invoke(command: Any, *arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments), env={"COLUMNS": "200"})


# --- reconcile ------------------------------------------------------------------------------


def test_a_lifted_fence_is_told_with_its_evidence_and_who_is_on_record(job: Callable[..., None]) -> None:
    asked: list[dict[str, Any]] = []

    async def status() -> Any:
        return {"coordinator": {"timeout_s": 180.0}}

    async def answer(**arguments: str) -> Any:
        asked.append(arguments)
        return RECORD

    job(status=status, reconcile=answer)
    for _ in range(2):
        result = invoke(reconcile, "judge", "--proof", "process-gone", "--note", "ticket 7")
        assert result.exit_code == 0, result.output
        assert "judge is reconciled; on record for ada@login-1" in result.output
        assert "m/replica-0  FAILED: no process with its mark is left" in result.output
    first, second = asked
    assert (first["role"], first["proof"], first["note"]) == ("judge", "process-gone", "ticket 7")
    assert "@" in first["by"]
    assert first["operation"] != second["operation"], "asked again, it looks again"


def test_a_claim_that_is_not_found_true_is_an_error_that_says_what_is_missing(
    job: Callable[..., None],
) -> None:
    async def status() -> Any:
        return {"coordinator": {"timeout_s": 180.0}}

    async def answer(**arguments: str) -> Any:
        raise JobError("m/replica-0 is FAILED: process 4711 outlived SIGKILL")

    job(status=status, reconcile=answer)
    result = invoke(reconcile, "judge", "--job", "demo", "--proof", "node-gone")
    assert isinstance(result.exception, JobError)
    assert "process 4711 outlived" in str(result.exception)


@pytest.mark.parametrize("arguments", [["judge"], ["judge", "--proof", "i-looked"]])
def test_a_proof_is_asked_for_and_must_be_one(arguments: list[str]) -> None:
    result = invoke(reconcile, *arguments)
    assert result.exit_code == 2
    assert "--proof" in result.output


# --- events ---------------------------------------------------------------------------------


def test_events_of_a_running_job_are_lines_for_people_and_json_for_machines(job: Callable[..., None]) -> None:
    async def answer(since: int, wait_s: float) -> Any:
        assert (since, wait_s) == (0, 0.0)
        return {"next": 2, "events": told("lease.state", "batch.state")}

    job(events=answer)
    result = invoke(events, "demo")
    assert "lease.state" in result.output
    assert "role solver  SLEEPING → ONLOADING  token 7  activate" in result.output
    result = invoke(events, "demo", "--kind", "batch.state", "--json")
    assert [json.loads(line) for line in result.output.splitlines()] == told("batch.state")


def test_following_asks_for_the_next_ones_until_the_job_ends_and_tells_what_was_missed(
    job: Callable[..., None],
) -> None:
    answers = [
        {"next": 3, "events": told("lease.state")},
        {"next": 4, "events": told("batch.state")},
    ]

    async def answer(since: int, wait_s: float) -> Any:
        if not answers:
            asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)  # type: ignore[union-attr]
            await asyncio.sleep(5)
        assert (since > 0) == (wait_s > 0)
        return answers.pop(0)

    job(events=answer)
    result = invoke(events, "--follow", "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == "the job no longer remembers 2 events before these\n"
    assert [json.loads(line)["kind"] for line in result.stdout.splitlines()] == ["lease.state", "batch.state"]


def test_events_of_a_job_that_has_ended_come_from_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "job.toml"
    rest = """
        [placement]
        mode = "m"
        [roles.judge]
        routing_policy = "p"
        [sink]
        name = "s"
    """
    file.write_text('[job]\nname = "demo"\nevent_log = "log/events.jsonl"\n' + rest, encoding="utf-8")
    result = invoke(events, str(file))
    assert isinstance(result.exception, JobError)
    assert "is not there" in str(result.exception)
    log = tmp_path / "log" / "events.jsonl"
    log.parent.mkdir()
    lines = [json.dumps(event) + "\n" for event in told("lease.state", "batch.state")]
    log.write_text("".join(lines) + '{"kind": "torn', encoding="utf-8")
    for named in (file, log):
        assert invoke(events, str(named), "--json").output == "".join(lines)
    file.write_text('[job]\nname = "demo"\n' + rest, encoding="utf-8")
    result = invoke(events, str(file))
    assert isinstance(result.exception, JobError)
    assert "keeps no event log" in str(result.exception)


@pytest.mark.parametrize("event", SAMPLE_EVENTS, ids=[event.kind for event in SAMPLE_EVENTS])
def test_every_event_is_one_line_with_its_kind_and_its_reason(event: Event) -> None:
    line = event_line(event).plain
    assert event.kind in line
    if "to" in event.fields:
        assert f"→ {event.fields['to']}" in line
    if reason := event.fields.get("reason"):
        assert line.endswith(" ".join(reason.splitlines()))
    assert line.isprintable()


def test_what_engines_say_can_not_move_the_cursor() -> None:
    line = event_line(Event(kind="router.ended", time_s=0.0, fields={"reason": "[red]exit[/]\x1b[0m\rok"}))
    assert line.plain.endswith("[red]exit[/] [0m ok")
