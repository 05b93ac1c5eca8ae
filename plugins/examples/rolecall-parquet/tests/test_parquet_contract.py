from __future__ import annotations

from typing import ClassVar

from rolecall_parquet import ParquetSink

from rolecall.testing import BatchSinkContract


class TestParquet(BatchSinkContract):
    plugin = ParquetSink


class TestParquetInSmallRowGroups(BatchSinkContract):
    plugin = ParquetSink
    options: ClassVar = {"folder": "deep/er", "compression": "none", "row_group_rows": 1}
