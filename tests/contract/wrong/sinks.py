"""Batch sinks that break a promise, and one that breaks none."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from attrs import frozen

from rolecall.api import ROLECALL_API, Row, SinkContext, SinkError
from rolecall.testing import BatchSinkContract


@frozen(kw_only=True)
class Options:
    pass


class SoundSink:
    """A file a partition, in a folder a job."""

    name: ClassVar[str] = "sound_sink"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[Options]] = Options

    def __init__(self, options: Options, context: SinkContext) -> None:
        self.folder = context.base_dir / context.job

    def file(self, partition: str) -> Path:
        return self.folder / partition

    def open(self) -> None:
        self.folder.mkdir(exist_ok=True)

    def put(self, partition: str, rows: Sequence[Row]) -> None:
        try:
            stored = pickle.dumps([self.packed(row) for row in rows])
        except TypeError as error:
            raise SinkError(f"{partition} can't be stored: {error}") from error
        self.file(partition).write_bytes(stored)

    def packed(self, row: Row) -> Any:
        return dict(row)

    def read(self, partition: str) -> Sequence[Row]:
        try:
            return pickle.loads(self.file(partition).read_bytes())
        except OSError as error:
            raise SinkError(f"there is no {partition}") from error

    def clear(self, partition: str) -> None:
        self.file(partition).unlink(missing_ok=True)

    def close(self) -> None: ...


class TestSoundSink(BatchSinkContract):
    plugin = SoundSink
    fails: ClassVar = {}


class Appending(SoundSink):
    """Adds to what an earlier attempt has left."""

    name = "appending"

    def put(self, partition: str, rows: Sequence[Row]) -> None:
        earlier = super().read(partition) if self.file(partition).exists() else []
        super().put(partition, [*earlier, *rows])


class TestAppending(BatchSinkContract):
    plugin = Appending
    fails: ClassVar = {
        "test_putting_the_same_rows_again_changes_nothing": "assert 6 == 3",
        "test_another_put_replaces_all_rows": "assert 5 == 2",
    }


class Halfway(SoundSink):
    """Stores row after row, up to the one that it can't."""

    name = "halfway"

    def put(self, partition: str, rows: Sequence[Row]) -> None:
        for count in range(1, len(rows) + 1):
            super().put(partition, rows[:count])


class TestHalfway(BatchSinkContract):
    plugin = Halfway
    fails: ClassVar = {"test_rows_that_can_not_be_stored_leave_nothing": "DID NOT RAISE .*SinkError"}


class Lossy(SoundSink):
    """Drops the rows that it can't store."""

    name = "lossy"

    def put(self, partition: str, rows: Sequence[Row]) -> None:
        super().put(partition, [row for row in rows if "locked" not in row])


class TestLossy(BatchSinkContract):
    plugin = Lossy
    fails: ClassVar = {"test_rows_that_can_not_be_stored_leave_nothing": "DID NOT RAISE .*SinkError"}


class Raw(SoundSink):
    """Raises what its library raises."""

    name = "raw"

    def put(self, partition: str, rows: Sequence[Row]) -> None:
        self.file(partition).write_bytes(pickle.dumps([dict(row) for row in rows]))


class TestRaw(BatchSinkContract):
    plugin = Raw
    fails: ClassVar = {"test_rows_that_can_not_be_stored_leave_nothing": "this can't be pickled"}


class Empty(SoundSink):
    """A partition that is not there has no rows."""

    name = "empty"

    def read(self, partition: str) -> Sequence[Row]:
        return super().read(partition) if self.file(partition).exists() else []


class TestEmpty(BatchSinkContract):
    plugin = Empty
    fails: ClassVar = dict.fromkeys(
        (
            "test_a_missing_partition_can_not_be_read",
            "test_a_cleared_partition_is_gone",
            "test_rows_that_can_not_be_stored_leave_nothing",
            "test_another_job_does_not_get_the_rows",
        ),
        "DID NOT RAISE .*SinkError",
    )


class Sweeping(SoundSink):
    """Clears all partitions when it is asked for one."""

    name = "sweeping"

    def clear(self, partition: str) -> None:
        for file in self.folder.iterdir():
            file.unlink()


class TestSweeping(BatchSinkContract):
    plugin = Sweeping
    fails: ClassVar = {"test_a_cleared_partition_is_gone": "there is no train_1"}


class Keeping(SoundSink):
    """Clears nothing."""

    name = "keeping"

    def clear(self, partition: str) -> None: ...


class TestKeeping(BatchSinkContract):
    plugin = Keeping
    fails: ClassVar = {"test_a_cleared_partition_is_gone": "DID NOT RAISE .*SinkError"}


class Touchy(SoundSink):
    """Will not clear what is not there."""

    name = "touchy"

    def clear(self, partition: str) -> None:
        if not self.file(partition).exists() and partition.endswith("404"):
            raise SinkError(f"there is no {partition}")
        super().clear(partition)


class TestTouchy(BatchSinkContract):
    plugin = Touchy
    fails: ClassVar = {"test_clearing_what_is_not_there_is_no_error": "there is no train_404"}


class Mixing(SoundSink):
    """One place for all partitions."""

    name = "mixing"

    def file(self, partition: str) -> Path:
        return self.folder / ("all" if partition in ("train_0", "train_1") else partition)


class TestMixing(BatchSinkContract):
    plugin = Mixing
    fails: ClassVar = {
        "test_partitions_are_kept_apart": "assert 1 == 3",
        "test_a_cleared_partition_is_gone": "there is no train_1",
    }


class Common(SoundSink):
    """One place for all jobs."""

    name = "common"

    def __init__(self, options: Options, context: SinkContext) -> None:
        super().__init__(options, context)
        self.folder = context.base_dir / "jobs"


class TestCommon(BatchSinkContract):
    plugin = Common
    fails: ClassVar = {"test_another_job_does_not_get_the_rows": "DID NOT RAISE .*SinkError"}


class Private(SoundSink):
    """Keeps the rows to itself."""

    name = "private"

    def __init__(self, options: Options, context: SinkContext) -> None:
        super().__init__(options, context)
        self.folder = context.base_dir / f"{context.job}-{id(self)}"
        _ALIVE.append(self)


_ALIVE: list[Private] = []
"""So that no two of them have one id."""


class TestPrivate(BatchSinkContract):
    plugin = Private
    fails: ClassVar = {"test_another_process_reads_what_was_put": "there is no train_0"}


class Exclusive(SoundSink):
    """Can be opened once."""

    name = "exclusive"
    is_open = False

    def open(self) -> None:
        if self.is_open:
            raise SinkError("it is open")
        self.is_open = True
        super().open()


class TestExclusive(BatchSinkContract):
    plugin = Exclusive
    fails: ClassVar = {"test_open_and_close_may_be_repeated": "it is open"}


class Tidy(SoundSink):
    """Leaves nothing when it is closed."""

    name = "tidy"

    def close(self) -> None:
        for file in self.folder.iterdir():
            file.unlink()


class TestTidy(BatchSinkContract):
    plugin = Tidy
    fails: ClassVar = dict.fromkeys(
        ("test_another_process_reads_what_was_put", "test_open_and_close_may_be_repeated"),
        "there is no train_0",
    )


class Rounding(SoundSink):
    """Stores numbers with the precision that it finds sufficient."""

    name = "rounding"

    def packed(self, row: Row) -> Any:
        return {column: self.rounded(column, value) for column, value in row.items()}

    def rounded(self, column: str, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            return value.astype(np.float32)
        return round(value, 3) if column == "number" else value


class TestRounding(BatchSinkContract):
    plugin = Rounding
    fails: ClassVar = {
        "test_an_array_keeps_its_dtype": "array: float32 for float64",
        "test_extreme_numbers_come_back_exactly": "number",
    }


class Flattening(SoundSink):
    """Knows lists only."""

    name = "flattening"

    def packed(self, row: Row) -> Any:
        return {
            column: np.atleast_1d(value) if isinstance(value, np.ndarray) else value
            for column, value in row.items()
        }


class TestFlattening(BatchSinkContract):
    plugin = Flattening
    fails: ClassVar = {"test_an_array_without_dimensions_keeps_its_shape": "shapes"}


class Dense(SoundSink):
    """Makes one array of a column, when it can."""

    name = "dense"

    def put(self, partition: str, rows: Sequence[Row]) -> None:
        lengths = {len(row["response_ids"]) for row in rows if "response_ids" in row}
        if len(rows) > 1 and len(lengths) == 1:
            rows = [{**row, "response_ids": rows[0]["response_ids"][:1]} for row in rows]
        super().put(partition, rows)


class TestDense(BatchSinkContract):
    plugin = Dense
    fails: ClassVar = {
        "test_responses_of_one_length_come_back": "response_ids",
        "test_another_put_replaces_all_rows": "response_ids",
    }


class Choosy(SoundSink):
    """Has one type a column."""

    name = "choosy_sink"

    def put(self, partition: str, rows: Sequence[Row]) -> None:
        kinds = {type(row["value"]) for row in rows if "value" in row}
        super().put(
            partition, [{**row, "value": float(row["value"])} for row in rows] if len(kinds) > 1 else rows
        )


class TestChoosy(BatchSinkContract):
    plugin = Choosy
    fails: ClassVar = {
        "test_columns_of_different_types_in_a_partition_come_back": "value: .*float.* for .*int"
    }


class Short(SoundSink):
    """Has no place for an empty array."""

    name = "short"

    def packed(self, row: Row) -> Any:
        return {
            column: value if np.size(value) or not isinstance(value, np.ndarray) else None
            for column, value in row.items()
        }


class TestShort(BatchSinkContract):
    plugin = Short
    fails: ClassVar = dict.fromkeys(
        (
            "test_the_shortest_responses_come_back",
            "test_rows_come_back_as_they_were_put",
            "test_another_process_reads_what_was_put",
            "test_putting_the_same_rows_again_changes_nothing",
            "test_partitions_are_kept_apart",
            "test_a_cleared_partition_is_gone",
            "test_another_job_does_not_get_the_rows",
            "test_open_and_close_may_be_repeated",
        ),
        "response_ids: .*NoneType",
    )


class Lonely(SoundSink):
    """Has never seen a batch of one."""

    name = "lonely"

    def put(self, partition: str, rows: Sequence[Row]) -> None:
        if len(rows) == 1:
            raise SinkError("a batch has rows")
        super().put(partition, rows)


class TestLonely(BatchSinkContract):
    plugin = Lonely
    fails: ClassVar = dict.fromkeys(
        (
            "test_a_single_row_comes_back",
            "test_partitions_are_kept_apart",
        ),
        "a batch has rows",
    )
