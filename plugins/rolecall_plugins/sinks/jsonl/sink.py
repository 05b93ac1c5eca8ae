"""The sink: partitions as files ``<base>/<folder>/<job>/<partition>.jsonl``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from attrs import field, frozen, validators

from rolecall.api import (
    ROLECALL_API,
    Row,
    SinkContext,
    SinkError,
    flush_folder,
    remove_durably,
    remove_leftovers,
    write_durably,
)

_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@frozen(kw_only=True)
class JsonlOptions:
    """``[sink.options]`` of ``jsonl``.

    folder: where the files go, relative to the job file; each job has a folder of its own in it.
    """

    folder: str = field(default="batches", validator=validators.min_len(1))


class JsonlSink:
    """Any number of instances in any number of processes; the last put of a partition wins."""

    name: ClassVar[str] = "jsonl"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[JsonlOptions]] = JsonlOptions

    def __init__(self, options: JsonlOptions, context: SinkContext) -> None:
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
        from .codec import encode_row  # NumPy: planning looks at the options only, and must be quick

        path = self._path(partition)
        content = "".join(f"{encode_row(row)}\n" for row in rows).encode()
        try:
            if path.exists() and path.read_bytes() == content:
                flush_folder(path.parent)  # an earlier put may have died between rename and flush
                return
            write_durably(path, content)
        except OSError as error:
            raise SinkError(f"partition {partition} was not stored at {path}: {error}") from error

    def read(self, partition: str) -> Sequence[Row]:
        from .codec import decode_row

        path = self._path(partition)
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except FileNotFoundError as error:
            raise SinkError(f"there is no partition {partition}: {path} does not exist") from error
        except (OSError, UnicodeDecodeError) as error:
            raise SinkError(f"partition {partition} can't be read from {path}: {error}") from error
        try:
            return [decode_row(line) for line in lines if line]
        except (ValueError, TypeError, KeyError) as error:
            raise SinkError(f"{path} is damaged or was not written by this sink: {error}") from error

    def clear(self, partition: str) -> None:
        path = self._path(partition)
        try:
            remove_durably(path)
        except OSError as error:
            raise SinkError(f"partition {partition} could not be removed at {path}: {error}") from error

    def close(self) -> None:
        """Nothing is held open between calls."""

    def _path(self, partition: str) -> Path:
        if not _PARTITION.fullmatch(partition):
            raise SinkError(
                f"partition {partition!r} can't name a file: letters, digits, '_', '.' and '-' are allowed, "
                "the first a letter, digit or '_'"
            )
        return self._folder / f"{partition}.jsonl"
