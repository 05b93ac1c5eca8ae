"""The jsonl sink keeps the contract of batch sinks."""

from __future__ import annotations

from pathlib import Path

from rolecall.api import BatchSink, SinkContext
from rolecall.testing.batch_sink_contract import BatchSinkContract
from rolecall_plugins.sinks.jsonl.sink import JsonlOptions, JsonlSink


class TestJsonlSink(BatchSinkContract):
    def make_sink(self, base_dir: Path, job: str = "job") -> BatchSink:
        return JsonlSink(JsonlOptions(), SinkContext(job=job, base_dir=base_dir))
