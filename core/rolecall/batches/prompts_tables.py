"""Prompts out of tables: Parquet files, and Hugging Face datasets saved on disk (``save_to_disk``).

A table is a ``.parquet`` file, a folder of such files (read in the order of their names), or a saved
dataset's folder. Its columns have types, so whole numbers stand for their text in ``id`` and ``answer``;
columns that are no field of a prompt are left alone. The libraries come with extras, are imported only here,
and are named with their extra where they are not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rolecall.batches.prompts_records import FIELDS, Problem, picked, whole
from rolecall.errors import ConfigError, ConfigProblem

_SUFFIX = ".parquet"
_SAVED = "state.json"
_SAVED_SPLITS = "dataset_dict.json"

_ROWS_AT_ONCE = 1024


def is_table(path: Path) -> bool:
    """Return whether prompts at this path come out of a table; what is none is JSON lines."""
    return path.suffix.lower() == _SUFFIX or path.is_dir()


def table_problem(path: Path) -> str | None:
    """Say why a table can't be read here, as far as a glance tells; None if nothing is known against it."""
    if not path.is_dir():
        return _missing("pyarrow", "parquet")
    if (path / _SAVED).is_file():
        return _missing("datasets", "datasets")
    if (path / _SAVED_SPLITS).is_file():
        splits = sorted(part.parent.name for part in path.glob(f"*/{_SAVED}"))
        named = ", ".join(splits) or "none there"
        return f"is a saved dataset of several splits; name the folder of one: {named}"
    if not any(path.glob(f"*{_SUFFIX}")):
        return f"is a folder, and neither a saved dataset ({_SAVED}) nor one of *{_SUFFIX} files"
    return _missing("pyarrow", "parquet")


def table_rows(path: Path, columns: Mapping[str, str] | None) -> Iterator[tuple[str, Any, Problem]]:
    """Yield (name of its place, record, problem) for each row.

    Raises:
        ConfigError: the table can't be read.
    """
    if (message := table_problem(path)) is not None:
        raise ConfigError([whole(path, message)])
    wanted = {name: name for name in FIELDS} if columns is None else columns
    try:
        rows = _saved(path, wanted) if (path / _SAVED).is_file() else _parquet(path, wanted)
        for number, row in enumerate(rows):

            def problem(message: str, key: str, number: int = number) -> ConfigProblem:
                return ConfigProblem(file=f"{path}, row {number}", key=key, message=message)

            yield f"row-{number}", _as_text(picked(row, wanted)), problem
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors and OSErrors
        raise ConfigError([whole(path, f"can't be read: {error}")]) from error


def _parquet(path: Path, columns: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    from pyarrow import parquet  # an extra's, and slow to import

    for file in sorted(path.glob(f"*{_SUFFIX}")) if path.is_dir() else [path]:
        with parquet.ParquetFile(file) as table:
            there = _there(table.schema_arrow.names, columns)
            for rows in table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=there):
                yield from rows.to_pylist()


def _saved(path: Path, columns: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    from datasets import Dataset  # an extra's, and slow to import

    dataset: Any = Dataset.load_from_disk(str(path))
    dataset = dataset.with_format("arrow").select_columns(_there(dataset.column_names, columns))
    for rows in dataset.iter(batch_size=_ROWS_AT_ONCE):
        yield from rows.to_pylist()


def _there(names: Iterable[str], columns: Mapping[str, str]) -> list[str]:
    """Return those columns of a table that are asked for, whole where a part of one is."""
    asked = {*columns.values(), *(column.partition(".")[0] for column in columns.values())}
    return [name for name in names if name in asked]


def _as_text(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: str(value) if name in ("id", "answer") and type(value) is int else value
        for name, value in fields.items()
    }


def _missing(module: str, extra: str) -> str | None:
    if find_spec(module) is not None:
        return None
    return f"needs the package {module}, which is not installed: pip install 'rolecall[{extra}]'"
