"""The same job with one key changed: the real TransferQueue between scoring and training."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.transferqueue, pytest.mark.timeout(400)]


def test_both_batches_reach_the_consumer_through_transferqueue(command, small_job: Callable[..., str]):
    pytest.importorskip("transfer_queue", reason="the extra rolecall[transferqueue] is not installed")
    (command.folder / "job.toml").write_text(small_job("tq-job", sink="transferqueue"))
    result = command.run("run", "job.toml", timeout_s=390)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 of 2 batches committed, 8 samples read by the consumer" in result.stdout
    for column in ("teacher [", "teacher_topk [", "exact "):
        assert column in result.stdout
    command.wait_until_gone(timeout_s=10)
