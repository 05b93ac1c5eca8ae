"""``transferqueue``: TransferQueue's data plane. Needs ``pip install rolecall[transferqueue]``."""

from rolecall.api import BatchSink, hookimpl

from .sink import TransferQueueSink


@hookimpl
def rolecall_batch_sink() -> type[BatchSink]:
    return TransferQueueSink
