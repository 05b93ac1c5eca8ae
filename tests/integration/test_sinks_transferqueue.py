"""The transferqueue sink across processes, jobs and Ray sessions, with the real TransferQueue."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolecall.api import SinkContext, SinkError
from rolecall.ids import BatchId
from rolecall.leases.coordinator import LeaseCoordinator
from rolecall.testing.batch_sink_contract import assert_same_rows, sample_row
from rolecall.train import consume
from rolecall_plugins.sinks.transferqueue.sink import TransferQueueOptions, TransferQueueSink

pytestmark = [
    pytest.mark.transferqueue,
    pytest.mark.ray,
    pytest.mark.skipif(
        importlib.util.find_spec("transfer_queue") is None,
        reason="TransferQueue is not installed (extra rolecall[transferqueue])",
    ),
]

ROWS = [sample_row(index, length) for index, length in enumerate((3, 0, 5))]


def make_sink(job: str = "job") -> TransferQueueSink:
    return TransferQueueSink(TransferQueueOptions(), SinkContext(job=job, base_dir=Path()))


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A private Ray; gives its address."""
    import ray

    with tempfile.TemporaryDirectory(prefix="rc-tq-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        context = ray.init(num_cpus=4, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
        yield context.address_info["address"]
        ray.shutdown()


@pytest.fixture
def sink(cluster: str) -> Iterator[TransferQueueSink]:
    sink = make_sink()
    sink.open()
    yield sink
    sink.clear("train_0")
    sink.close()


READER = """
import sys
from pathlib import Path
import ray
from rolecall.api import SinkContext
from rolecall.testing.batch_sink_contract import assert_same_rows, sample_row
from rolecall_plugins.sinks.transferqueue.sink import TransferQueueOptions, TransferQueueSink

ray.init(address=sys.argv[1], log_to_driver=False)
sink = TransferQueueSink(TransferQueueOptions(), SinkContext(job="job", base_dir=Path()))
sink.open()
rows = [sample_row(index, length) for index, length in enumerate((3, 0, 5))]
assert_same_rows(sink.read("train_0"), rows)
sink.close()
print("SAME ROWS")
"""


def test_another_process_reads_the_rows_and_leaves_the_queue_alive(
    sink: TransferQueueSink, cluster: str
) -> None:
    sink.put("train_0", ROWS)
    done = subprocess.run(
        [sys.executable, "-c", READER, cluster], capture_output=True, text=True, timeout=280, check=False
    )
    assert "SAME ROWS" in done.stdout, done.stderr
    assert_same_rows(sink.read("train_0"), ROWS)


def test_a_partition_of_another_job_is_neither_replaced_nor_cleared(sink: TransferQueueSink) -> None:
    sink.put("train_0", ROWS)
    other = make_sink("other")
    other.open()
    for call in (lambda: other.put("train_0", ROWS[:1]), lambda: other.clear("train_0")):
        with pytest.raises(SinkError, match='belongs to job "job"; run job "other" on a cluster of its own'):
            call()
    assert_same_rows(sink.read("train_0"), ROWS)


def test_a_cleared_partition_is_gone_from_the_queue_itself(sink: TransferQueueSink) -> None:
    import transfer_queue

    sink.put("train_0", ROWS)
    assert "train_0" in transfer_queue.get_client().get_partition_list()
    sink.clear("train_0")
    assert "train_0" not in transfer_queue.get_client().get_partition_list()


def test_a_trainer_that_knows_only_transferqueue_finds_tensors(sink: TransferQueueSink) -> None:
    import torch
    import transfer_queue

    sink.put("train_0", ROWS)
    client = transfer_queue.get_client()
    meta = client.get_meta(
        data_fields=["response_ids", "reward", "prompt"],
        batch_size=3,
        partition_id="train_0",
        mode="fetch",
        task_name="trainer",
    )
    data = client.get_data(meta)
    ids = [part.tolist() for part in data.get("response_ids").unbind()]
    assert sorted(ids, key=len) == sorted((row["response_ids"].tolist() for row in ROWS), key=len)
    assert data.get("reward").dtype == torch.float64


def test_rows_with_different_columns_are_refused(sink: TransferQueueSink) -> None:
    with pytest.raises(SinkError, match='row 1: column "extra" is not in every row'):
        sink.put("train_0", [ROWS[0], {**ROWS[1], "extra": 1}])
    with pytest.raises(SinkError, match="without rows"):
        sink.put("train_0", [])


def test_training_consumes_committed_batches(sink: TransferQueueSink) -> None:
    async def committed() -> LeaseCoordinator:
        coordinator = LeaseCoordinator({}, conflicts={}, opening={})
        await coordinator.begin_batch(BatchId(0))
        await coordinator.commit_batch(BatchId(0), acknowledged=True)
        return coordinator

    sink.put("train_0", ROWS)
    for batch in consume(asyncio.run(committed()), sink, [0], timeout_s=60.0):
        assert_same_rows(batch.rows, ROWS)
        batch.clear()
    with pytest.raises(SinkError, match="there is no partition train_0"):
        sink.read("train_0")


def test_a_closed_sink_says_so(sink: TransferQueueSink) -> None:
    other = make_sink()
    with pytest.raises(SinkError, match="not open"):
        other.read("train_0")


WITHOUT_RAY = """
from pathlib import Path
from rolecall.api import SinkContext, SinkError
from rolecall_plugins.sinks.transferqueue import TransferQueueSink
from rolecall_plugins.sinks.transferqueue.sink import TransferQueueOptions
import sys

assert not {"torch", "ray", "transfer_queue", "tensordict"} & sys.modules.keys()
sink = TransferQueueSink(TransferQueueOptions(), SinkContext(job="j", base_dir=Path()))
assert not {"torch", "ray", "transfer_queue", "tensordict"} & sys.modules.keys()
try:
    sink.open()
except SinkError as error:
    assert "join the job's cluster first" in str(error), error
    print("REFUSED")
"""


def test_without_ray_it_says_what_to_do_and_nothing_heavy_was_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY], capture_output=True, text=True, timeout=120, check=False
    )
    assert "REFUSED" in done.stdout, done.stderr


RESTART = """
import sys, tempfile
from pathlib import Path
import ray
from rolecall.api import SinkContext, SinkError
from rolecall_plugins.sinks.transferqueue.sink import TransferQueueOptions, TransferQueueSink

for turn in range(2):
    with tempfile.TemporaryDirectory(prefix="rc-tq-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(num_cpus=4, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
        sink = TransferQueueSink(TransferQueueOptions(), SinkContext(job="j", base_dir=Path()))
        sink.open()
        try:
            sink.read("train_0")
        except SinkError as error:
            assert "there is no partition" in str(error), error
        sink.put("train_0", [{"turn": turn}])
        assert list(sink.read("train_0")) == [{"turn": turn}]
        sink.close()
        ray.shutdown()
print("CLEAN TWICE")
"""


def test_a_second_ray_of_one_process_gets_a_queue_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RESTART], capture_output=True, text=True, timeout=290, check=False
    )
    assert "CLEAN TWICE" in done.stdout, done.stderr
