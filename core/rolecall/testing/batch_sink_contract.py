"""Contract of batch sinks, as a test class to inherit.

    class TestMySink(BatchSinkContract):
        plugin = MySink
        options = {"compression": "zstd"}

Every call of ``make_sink`` with the same arguments stands for another process of the same job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolecall.errors import SinkError
from rolecall.interfaces.batch_sink import BatchSink, Row, SinkContext
from rolecall.plugins.kinds import PluginKind
from rolecall.testing.plugin_contract import PluginContract

PARTITION = "train_0"


def sample_row(index: int, length: int, **columns: Any) -> dict[str, Any]:
    """Return a row with every type of column that a batch has; ``length`` is the response's."""
    return {
        "sample_id": f"prompt-{index}/0",
        "prompt": 'two lines\nand "quotes", ünïcode 猫 \u2028 \\',
        "answer": None if index % 2 else "42",
        "prompt_ids": np.arange(index + 1, dtype=np.int32),
        "response_ids": np.arange(length, dtype=np.int32) * 3,
        "rollout_log_probs": np.linspace(-3.1, -0.1, length, dtype=np.float32),
        "reward": 0.1 * index,
        "graded": index,
        "rewards": {"judge": 1 / 3 + index, "exact": 0.0},
        "teacher_topk_ids": np.arange(length * 4, dtype=np.int32).reshape(length, 4),
        "teacher_topk_log_probs": -np.sqrt(np.arange(length * 4, dtype=np.float32)).reshape(length, 4),
        **columns,
    }


def assert_same_rows(found: Sequence[Row], expected: Sequence[Row]) -> None:
    """Fail unless the rows are equal, column order, types, dtypes and shapes included."""
    assert len(found) == len(expected)
    for found_row, expected_row in zip(found, expected, strict=True):
        assert list(found_row) == list(expected_row)
        for column, value in expected_row.items():
            read = found_row[column]
            assert type(read) is type(value), f"{column}: {type(read)} for {type(value)}"
            if isinstance(value, np.ndarray):
                assert read.dtype == value.dtype, f"{column}: {read.dtype} for {value.dtype}"
                np.testing.assert_array_equal(read, value, strict=True, err_msg=column)
            else:
                assert read == value, column


class BatchSinkContract(PluginContract):
    """What every sink must do."""

    kind = PluginKind.BATCH_SINK

    def make_sink(self, base_dir: Path, job: str = "job") -> BatchSink:
        """Return a new, unopened sink."""
        return self.plugin(self.made_options(), SinkContext(job=job, base_dir=base_dir))

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Iterator[BatchSink]:
        """An opened sink, cleared at the end."""
        sink = self.make_sink(tmp_path)
        sink.open()
        yield sink
        for partition in (PARTITION, "train_1"):
            sink.clear(partition)
        sink.close()

    @pytest.fixture
    def rows(self) -> list[dict[str, Any]]:
        """Three rows with responses of different lengths, one of them empty."""
        return [sample_row(index, length) for index, length in enumerate((5, 0, 2))]

    def test_rows_come_back_as_they_were_put(self, sink: BatchSink, rows: list[dict[str, Any]]) -> None:
        sink.put(PARTITION, rows)
        assert_same_rows(sink.read(PARTITION), rows)

    def test_a_single_row_comes_back(self, sink: BatchSink) -> None:
        rows = [sample_row(0, 3)]
        sink.put(PARTITION, rows)
        assert_same_rows(sink.read(PARTITION), rows)

    def test_responses_of_one_length_come_back(self, sink: BatchSink) -> None:
        rows = [sample_row(index, 4) for index in range(4)]
        sink.put(PARTITION, rows)
        assert_same_rows(sink.read(PARTITION), rows)

    @pytest.mark.parametrize("length", [0, 1])
    def test_the_shortest_responses_come_back(self, sink: BatchSink, length: int) -> None:
        rows = [sample_row(index, length) for index in range(2)]
        sink.put(PARTITION, rows)
        assert_same_rows(sink.read(PARTITION), rows)

    @pytest.mark.parametrize(
        "dtype",
        ["bool", "uint8", "int8", "int16", "int64", "uint16", "uint32", "uint64", "float16", "float64"],
    )
    def test_an_array_keeps_its_dtype(self, sink: BatchSink, dtype: str) -> None:
        rows = [{"array": np.array([0, 1, 1], dtype=dtype)}, {"array": np.array([[1]], dtype=dtype)}]
        sink.put(PARTITION, rows)
        assert_same_rows(sink.read(PARTITION), rows)

    def test_an_array_without_dimensions_keeps_its_shape(self, sink: BatchSink) -> None:
        rows = [{"array": np.array(1.5, dtype=np.float32)}, {"array": np.array(2.5, dtype=np.float32)}]
        sink.put(PARTITION, rows)
        assert_same_rows(sink.read(PARTITION), rows)

    def test_extreme_numbers_come_back_exactly(self, sink: BatchSink) -> None:
        small, large = np.finfo(np.float32).tiny, np.finfo(np.float32).max
        rows = [
            {
                "number": 0.1 + 0.2,
                "big": 2**62 + 1,
                "array": np.array([small, -large, 1 / 3], dtype=np.float32),
            },
            {"number": -5e-324, "big": -(2**63), "array": np.array([0.0, -0.0, 1e-45], dtype=np.float32)},
        ]
        sink.put(PARTITION, rows)
        assert_same_rows(sink.read(PARTITION), rows)

    def test_columns_of_different_types_in_a_partition_come_back(self, sink: BatchSink) -> None:
        rows: list[dict[str, Any]] = [{"value": 1, "flag": True}, {"value": 1.5, "flag": None}]
        sink.put(PARTITION, rows)
        assert_same_rows(sink.read(PARTITION), rows)

    def test_another_process_reads_what_was_put(
        self, sink: BatchSink, rows: list[dict[str, Any]], tmp_path: Path
    ) -> None:
        sink.put(PARTITION, rows)
        consumer = self.make_sink(tmp_path)
        consumer.open()
        assert_same_rows(consumer.read(PARTITION), rows)
        consumer.close()
        assert_same_rows(sink.read(PARTITION), rows)

    def test_putting_the_same_rows_again_changes_nothing(
        self, sink: BatchSink, rows: list[dict[str, Any]]
    ) -> None:
        sink.put(PARTITION, rows)
        sink.put(PARTITION, rows)
        assert_same_rows(sink.read(PARTITION), rows)

    def test_another_put_replaces_all_rows(self, sink: BatchSink, rows: list[dict[str, Any]]) -> None:
        sink.put(PARTITION, rows)
        retried = [sample_row(index, 2) for index in (7, 8)]
        sink.put(PARTITION, retried)
        assert_same_rows(sink.read(PARTITION), retried)

    def test_partitions_are_kept_apart(self, sink: BatchSink, rows: list[dict[str, Any]]) -> None:
        sink.put(PARTITION, rows)
        sink.put("train_1", rows[:1])
        assert_same_rows(sink.read(PARTITION), rows)
        assert_same_rows(sink.read("train_1"), rows[:1])

    def test_a_missing_partition_can_not_be_read(self, sink: BatchSink) -> None:
        with pytest.raises(SinkError, match="train_404"):
            sink.read("train_404")

    def test_a_cleared_partition_is_gone(self, sink: BatchSink, rows: list[dict[str, Any]]) -> None:
        sink.put(PARTITION, rows)
        sink.put("train_1", rows)
        sink.clear(PARTITION)
        with pytest.raises(SinkError, match=PARTITION):
            sink.read(PARTITION)
        assert_same_rows(sink.read("train_1"), rows)

    def test_clearing_what_is_not_there_is_no_error(self, sink: BatchSink) -> None:
        sink.clear("train_404")
        sink.clear("train_404")

    def test_rows_that_can_not_be_stored_leave_nothing(self, sink: BatchSink) -> None:
        rows = self.rows_that_can_not_be_stored()
        with pytest.raises(SinkError):
            sink.put(PARTITION, rows)
        with pytest.raises(SinkError, match=PARTITION):
            sink.read(PARTITION)

    def rows_that_can_not_be_stored(self) -> list[dict[str, Any]]:
        """Rows that ``put`` must refuse; override if the sink can store these."""
        return [sample_row(0, 1), sample_row(1, 1, locked=_Unstorable())]

    def test_another_job_does_not_get_the_rows(
        self, sink: BatchSink, rows: list[dict[str, Any]], tmp_path: Path
    ) -> None:
        sink.put(PARTITION, rows)
        other = self.make_sink(tmp_path, job="other")
        other.open()
        with pytest.raises(SinkError, match=PARTITION):
            other.read(PARTITION)
        other.close()
        assert_same_rows(sink.read(PARTITION), rows)

    def test_open_and_close_may_be_repeated(
        self, sink: BatchSink, rows: list[dict[str, Any]], tmp_path: Path
    ) -> None:
        sink.put(PARTITION, rows)
        other = self.make_sink(tmp_path)
        other.open()
        other.open()
        other.close()
        other.close()
        assert_same_rows(sink.read(PARTITION), rows)


class _Unstorable:
    """Something that can neither be written down nor be sent to another process."""

    def __reduce__(self) -> str:
        raise TypeError("this can't be pickled")
