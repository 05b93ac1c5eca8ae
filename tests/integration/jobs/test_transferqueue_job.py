"""The same job with one key changed: the real TransferQueue between scoring and training."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.transferqueue, pytest.mark.timeout(400)]


def test_both_batches_reach_the_consumer_through_transferqueue(command, small_job: Callable[..., str]):
    pytest.importorskip("transfer_queue", reason="the extra rolecall[transferqueue] is not installed")
    (command.folder / "job.toml").write_text(small_job("tq-job", sink="transferqueue"))
    result = command.run("run", "job.toml", timeout_s=390)
    assert result.returncode == 0, result.stdout + result.stderr
    read = re.search(r"2 of 2 batches committed, (\d) samples read by the consumer", result.stdout)
    assert read is not None, result.stdout
    assert int(read[1]) + result.stdout.count("was dropped by") == 8
    for column in ("teacher [", "teacher_topk [", "exact "):
        assert column in result.stdout
    command.wait_until_gone(timeout_s=10)
