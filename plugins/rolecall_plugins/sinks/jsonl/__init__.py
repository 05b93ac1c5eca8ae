"""``jsonl``: one JSON-lines file a partition. Durable, atomic, readable with any tool."""

from rolecall.api import BatchSink, hookimpl

from .sink import JsonlSink


@hookimpl
def rolecall_batch_sink() -> type[BatchSink]:
    return JsonlSink
