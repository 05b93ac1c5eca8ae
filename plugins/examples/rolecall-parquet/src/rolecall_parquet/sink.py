"""The sink: partitions as files ``<base>/<folder>/<job>/<partition>.parquet``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from attrs import field, frozen, validators

from rolecall.api import (
    Row,
    SinkContext,
    SinkError,
    flush_folder,
    remove_durably,
    remove_leftovers,
    write_durably,
)

from .columns import ColumnError, decode, encode

_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ROWS = b"rolecall.rows"
"""Key of the file's metadata: how many rows it has, which a file without columns would not tell."""


@frozen(kw_only=True)
class ParquetOptions:
    """``[sink.options]`` of ``parquet``.

    folder: where the files go, relative to the job file; each job has a folder of its own in it.
    compression: how columns are compressed.
    row_group_rows: rows that are written together; a reader that streams holds as many.
    """

    folder: str = field(default="batches", validator=validators.min_len(1))
    compression: Literal["zstd", "snappy", "gzip", "none"] = "zstd"
    row_group_rows: int = field(default=4096, validator=validators.gt(0))


class ParquetSink:
    """Any number of instances in any number of processes; the last put of a partition wins."""

    name: ClassVar[str] = "parquet"
    api_version: ClassVar[int] = 1
    options: ClassVar[type[ParquetOptions]] = ParquetOptions

    def __init__(self, options: ParquetOptions, context: SinkContext) -> None:
        self._options = options
        self._folder = context.base_dir / options.folder / context.job

    def open(self) -> None:
        """Create the folder and remove what writers that died have left."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            flush_folder(self._folder.parent)
            remove_leftovers(self._folder)
        except OSError as error:
            raise SinkError(f"folder {self._folder} can't be used: {error}") from error

    def put(self, partition: str, rows: Sequence[Row]) -> None:
        path = self._path(partition)
        content = self._encoded(partition, rows)
        try:
            if path.exists() and path.read_bytes() == content:
                flush_folder(path.parent)  # an earlier put may have died between rename and flush
                return
            write_durably(path, content)
        except OSError as error:
            raise SinkError(f"partition {partition} was not stored at {path}: {error}") from error

    def read(self, partition: str) -> Sequence[Row]:
        path = self._path(partition)
        try:
            with path.open("rb") as file:
                table: Any = pq.ParquetFile(file).read()
        except FileNotFoundError as error:
            raise SinkError(f"there is no partition {partition}: {path} does not exist") from error
        except (OSError, pa.ArrowException) as error:
            raise SinkError(f"partition {partition} can't be read from {path}: {error}") from error
        try:
            return _rows(table)
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            raise SinkError(f"{path} is damaged or was not written by this sink: {error}") from error

    def clear(self, partition: str) -> None:
        path = self._path(partition)
        try:
            remove_durably(path)
        except OSError as error:
            raise SinkError(f"partition {partition} could not be removed at {path}: {error}") from error

    def close(self) -> None:
        """Nothing is held open between calls."""

    def _encoded(self, partition: str, rows: Sequence[Row]) -> bytes:
        """Return the whole file. All rows have the columns of the first, in its order."""
        names = list(rows[0]) if rows else []
        for number, row in enumerate(rows):
            if row.keys() != rows[0].keys():
                other = ", ".join(sorted(row.keys() ^ rows[0].keys()))
                raise SinkError(f"partition {partition}: row {number} differs from row 0 in having {other}")
        columns: list[Any] = []
        for name in names:
            try:
                columns.append(encode(name, [row[name] for row in rows]))
            except ColumnError as error:
                raise SinkError(f'partition {partition}: column "{name}": {error}') from error
        schema = pa.schema([column.field for column in columns], metadata={_ROWS: str(len(rows))})
        table = pa.Table.from_arrays([column.array for column in columns], schema=schema)
        buffer = pa.BufferOutputStream()
        pq.write_table(
            table,
            buffer,
            compression=self._options.compression,
            row_group_size=self._options.row_group_rows,
        )
        return buffer.getvalue().to_pybytes()

    def _path(self, partition: str) -> Path:
        if not _PARTITION.fullmatch(partition):
            raise SinkError(
                f"partition {partition!r} can't name a file: letters, digits, '_', '.' and '-' are allowed, "
                "the first a letter, digit or '_'"
            )
        return self._folder / f"{partition}.parquet"


def _rows(table: Any) -> list[Row]:
    count = int(table.schema.metadata[_ROWS])
    columns = {
        name: decode(table.schema.field(index), table.column(index).combine_chunks())
        for index, name in enumerate(table.column_names)
    }
    if any(len(values) != count for values in columns.values()):
        raise ValueError(f"it should have {count} rows")
    return [{name: values[row] for name, values in columns.items()} for row in range(count)]
