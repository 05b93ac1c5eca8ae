from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rolecall_parquet import ParquetOptions, ParquetSink

from rolecall.api import SinkContext, SinkError


def sink_in(folder: Path, **options: Any) -> ParquetSink:
    sink = ParquetSink(ParquetOptions(**options), SinkContext(job="job", base_dir=folder))
    sink.open()
    return sink


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return (
            isinstance(found, np.ndarray)
            and (found.dtype, found.shape) == (expected.dtype, expected.shape)
            and np.array_equal(found, expected)
        )
    return type(found) is type(expected) and found == expected


def there_and_back(folder: Path, values: list[Any]) -> None:
    sink = sink_in(folder)
    sink.put("p", [{"column": value} for value in values])
    found = [row["column"] for row in sink.read("p")]
    assert len(found) == len(values)
    assert all(same(one, other) for one, other in zip(found, values, strict=True)), found


ROWS: list[dict[str, Any]] = [
    {
        "sample_id": f"p/{number}",
        "answer": None if number else "42",
        "reward": {"judge": 0.5 * number, "exact": 1.0},
        "response_ids": np.arange(number, dtype=np.int32),
        "teacher_topk_log_probs": np.ones((number, 4), dtype=np.float32),
        "verifier_share": 1.0,
        "passed": True,
        "tries": number,
    }
    for number in range(3)
]


# --- for other readers --------------------------------------------------------------------


def test_any_reader_finds_typed_columns(tmp_path: Path) -> None:
    sink_in(tmp_path).put("train_0", ROWS)
    table = pq.read_table(tmp_path / "batches" / "job" / "train_0.parquet")
    assert table.schema.remove_metadata() == pa.schema(
        {
            "sample_id": pa.string(),
            "answer": pa.string(),
            "reward": pa.struct({"judge": pa.float64(), "exact": pa.float64()}),
            "response_ids": pa.large_list(pa.int32()),
            "teacher_topk_log_probs": pa.large_list(pa.list_(pa.float32(), 4)),
            "verifier_share": pa.float64(),
            "passed": pa.bool_(),
            "tries": pa.int64(),
        }
    )
    assert table.column("reward").to_pylist()[1] == {"judge": 0.5, "exact": 1.0}
    assert table.column("teacher_topk_log_probs").to_pylist() == [[], [[1.0] * 4], [[1.0] * 4] * 2]


@pytest.mark.parametrize(("compression", "codec"), [("zstd", "ZSTD"), ("none", "UNCOMPRESSED")])
def test_compression_and_row_groups_are_as_asked(tmp_path: Path, compression: Any, codec: str) -> None:
    sink_in(tmp_path, compression=compression, row_group_rows=2).put("train_0", ROWS)
    metadata = pq.read_metadata(tmp_path / "batches" / "job" / "train_0.parquet")
    assert metadata.num_row_groups == 2
    assert metadata.row_group(0).column(0).compression == codec


# --- exactly what was put -----------------------------------------------------------------

F32 = np.float32


@pytest.mark.parametrize(
    "values",
    [
        [None, None],
        [True, None, False],
        [1, 2.0, None, True, "text", {"a": 1}, np.zeros(2), np.array(7), np.ones((2, 2), F32)],
        [{"a": 1, "b": 2.5}, {"b": 3}, {}, None],
        [{}, {}, None],
        [np.zeros((2, 3, 4), F32), np.ones((0, 3, 4), F32), None],
        [np.zeros((2, 3), F32), np.ones((2, 4), F32), None, np.ones(5, F32)],
        [np.zeros((3, 0), F32), np.zeros((0, 0), F32)],
        [np.array(1.5, F32), None],
        [np.array([True, False]), np.array([], dtype=bool)],
        [np.arange(10)[::2], np.ones((4, 4), F32).T[1:]],
        [-(2**63), 2**63 - 1, 2**53 + 1, 0.1],
        ["", "\x00", "line\nend"],
    ],
    ids=str,
)
def test_every_value_comes_back(tmp_path: Path, values: list[Any]) -> None:
    there_and_back(tmp_path, values)


def test_arrays_of_any_shapes_come_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    for _ in range(30):
        dtype = rng.choice(["int8", "uint64", "float16", "float64", "bool"])
        there_and_back(
            tmp_path,
            [
                None
                if rng.random() < 0.2
                else np.asarray(rng.random(tuple(rng.integers(0, 3, dims))) * 9).astype(dtype)
                for dims in rng.integers(0, 4, rng.integers(1, 6))
            ],
        )


def test_an_array_that_was_read_is_the_reader_s_own(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    sink.put("train_0", ROWS)
    first = sink.read("train_0")[2]["response_ids"]
    first[:] = 9
    assert not np.array_equal(sink.read("train_0")[2]["response_ids"], first)


def test_a_partition_without_rows_is_one(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    sink.put("train_0", [])
    assert sink.read("train_0") == []
    sink.put("train_1", [{}, {}])
    assert sink.read("train_1") == [{}, {}]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (object(), "a object can't be kept"),
        ([1], "a list can't be kept"),
        (2**63, "does not fit 64 bits"),
        ("\ud800", "surrogates"),
        (np.array(["a"]), r"arrays of <U1 can't be kept"),
        (np.array([1], dtype=">i4"), r"arrays of >i4 can't be kept"),
        (np.array([1], dtype=np.complex64), r"arrays of <c8 can't be kept"),
        ({"a": "b"}, "'a': 'b' is not a name with a number"),
        ({"a": None}, "'a': None is not a name with a number"),
        ({1: 2}, "1: 2 is not a name with a number"),
    ],
)
def test_what_can_not_be_kept_is_named_and_nothing_is_stored(
    tmp_path: Path, value: Any, problem: str
) -> None:
    sink = sink_in(tmp_path)
    with pytest.raises(SinkError, match=rf'column "odd": .*{problem}'):
        sink.put("train_0", [{"odd": value}])
    assert list((tmp_path / "batches" / "job").iterdir()) == []


def test_rows_with_other_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="row 1 differs from row 0 in having b"):
        sink_in(tmp_path).put("train_0", [{"a": 1}, {"a": 1, "b": 2}])


# --- files --------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from rolecall.api import SinkContext
from rolecall_parquet import ParquetOptions, ParquetSink

sink = ParquetSink(ParquetOptions(), SinkContext(job="job", base_dir=Path(sys.argv[1])))
sink.open()
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
sink.put("train_0", [{"value": 2}])
"""


def test_a_writer_that_is_killed_leaves_what_was_there(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    sink.put("train_0", [{"value": 1}])
    # open() flushes the folder as well; only the put is to be cut off.
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert sink.read("train_0") == [{"value": 1}]
    folder = tmp_path / "batches" / "job"
    assert len(list(folder.iterdir())) == 2
    sink.open()
    assert [file.name for file in folder.iterdir()] == ["train_0.parquet"]


def test_a_living_writer_s_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sink_in(tmp_path)
    flush = os.fsync

    def open_meanwhile(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", flush)
        sink_in(tmp_path)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", open_meanwhile)
    sink.put("train_0", [{"value": 1}])
    assert sink.read("train_0") == [{"value": 1}]


def test_a_put_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sink_in(tmp_path)
    sink.put("train_0", [{"value": 1}])

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SinkError, match=r"train_0 was not stored at .*No space left"):
        sink.put("train_0", [{"value": 2}])
    assert sink.read("train_0") == [{"value": 1}]
    assert len(list((tmp_path / "batches" / "job").iterdir())) == 1


def test_the_same_rows_again_write_nothing(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    sink.put("train_0", ROWS)
    before = (tmp_path / "batches" / "job" / "train_0.parquet").stat()
    sink.put("train_0", ROWS)
    after = (tmp_path / "batches" / "job" / "train_0.parquet").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_file_that_is_damaged_or_somebody_else_s_is_told_so(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    sink.put("train_0", ROWS)
    file = tmp_path / "batches" / "job" / "train_0.parquet"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(SinkError, match="train_0 can't be read from"):
        sink.read("train_0")
    pq.write_table(pa.table({"a": [1]}), file)
    with pytest.raises(SinkError, match="was not written by this sink"):
        sink.read("train_0")


@pytest.mark.parametrize("partition", ["", "../other", "a/b", ".hidden", "-x"])
def test_a_partition_is_a_file_s_name(tmp_path: Path, partition: str) -> None:
    with pytest.raises(SinkError, match="can't name a file"):
        sink_in(tmp_path).put(partition, ROWS)
