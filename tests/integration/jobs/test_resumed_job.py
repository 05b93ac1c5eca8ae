"""A run whose process is killed in the middle of a batch leaves nothing, and goes on where it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(700)]


def test_a_killed_run_leaves_nothing_and_goes_on_after_its_last_committed_batch(
    command, small_job: Callable[..., str], until: Callable[..., None]
):
    (command.folder / "job.toml").write_text(small_job("resumed", batches=2))

    def seen(kind: str, batch: int, **fields: str) -> int:
        return sum(
            event["kind"] == kind
            and event["batch"] == batch
            and all(event[name] == value for name, value in fields.items())
            for event in command.events()
        )

    process = command.start("run", "job.toml")

    def second_batch_has_begun() -> bool:
        assert process.poll() is None, command.output()
        return seen("stage.state", 1) > 0

    until(second_batch_has_begun, 300, command.output)
    process.kill()
    process.wait()
    command.wait_until_gone(timeout_s=60)
    assert not seen("batch.state", 1, to="COMMITTED")

    resumed = command.run("run", "job.toml", "--resume", timeout_s=300)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "resuming with batch 1, 1 of 2 are committed" in resumed.stdout
    assert "2 of 2 batches committed" in resumed.stdout
    assert [seen("batch.state", batch, to="COMMITTED") for batch in (0, 1)] == [1, 1], (
        "none lost, none repeated"
    )
    assert "batch 0, as the training consumer read it" not in resumed.stdout
    command.wait_until_gone(timeout_s=10)

    over = command.run("run", "job.toml", "--resume")
    assert over.returncode != 0
    assert "all 2 batches are committed" in over.stderr
