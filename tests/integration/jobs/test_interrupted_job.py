"""A run that ends early, politely or not, leaves nothing behind and commits nothing half."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(300)]


@pytest.fixture
def generating(command, small_job: Callable[..., str], until: Callable[..., None]):
    """A run in the middle of its first stage."""
    (command.folder / "job.toml").write_text(small_job("interrupted", max_new_tokens=256))
    (command.folder / "events.jsonl").unlink(missing_ok=True)
    process = command.start("run", "job.toml")

    def stage_started() -> bool:
        assert process.poll() is None, command.output()
        return any(event["kind"] == "stage.state" for event in command.events())

    until(stage_started, 120, command.output)
    return process


def no_batch_committed(command) -> bool:
    return not any(e["kind"] == "batch.state" and e["to"] == "COMMITTED" for e in command.events())


def test_ctrl_c_ends_the_run_and_leaves_nothing(generating, command):
    generating.send_signal(signal.SIGINT)
    assert generating.wait(90) == 130, command.output()
    command.wait_until_gone(timeout_s=5)
    assert no_batch_committed(command)
    assert "interrupted" in command.output()


def test_a_killed_command_line_leaves_nothing(generating, command):
    generating.kill()
    generating.wait()
    command.wait_until_gone(timeout_s=60)
    assert no_batch_committed(command)
