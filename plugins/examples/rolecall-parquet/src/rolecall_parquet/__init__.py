"""Batch sink ``parquet``: one Parquet file a partition, with typed columns."""

from __future__ import annotations

from rolecall.api import BatchSink, hookimpl

from .sink import ParquetOptions, ParquetSink

__all__ = ["ParquetOptions", "ParquetSink", "rolecall_batch_sink"]


@hookimpl
def rolecall_batch_sink() -> type[BatchSink]:
    """Return the sink's class."""
    return ParquetSink
