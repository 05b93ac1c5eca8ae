"""The transferqueue sink keeps the contract of batch sinks, with the real TransferQueue on a real Ray."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator

import pytest

from rolecall.testing import BatchSinkContract
from rolecall_plugins.sinks.transferqueue.sink import TransferQueueSink

pytestmark = [
    pytest.mark.transferqueue,
    pytest.mark.ray,
    pytest.mark.skipif(
        importlib.util.find_spec("transfer_queue") is None,
        reason="TransferQueue is not installed (extra rolecall[transferqueue])",
    ),
]


@pytest.fixture(scope="module", autouse=True)
def queue_cluster() -> Iterator[None]:
    import ray

    with tempfile.TemporaryDirectory(prefix="rc-tq-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(num_cpus=4, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
        yield
        ray.shutdown()


class TestTransferQueueSink(BatchSinkContract):
    plugin = TransferQueueSink
