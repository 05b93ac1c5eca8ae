"""The jsonl sink keeps the contract of batch sinks."""

from __future__ import annotations

from rolecall.testing import BatchSinkContract
from rolecall_plugins.sinks.jsonl.sink import JsonlSink


class TestJsonlSink(BatchSinkContract):
    plugin = JsonlSink
