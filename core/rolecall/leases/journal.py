"""The coordinator's journal: what it decided and learned, written before it counts.

A record is one JSON object. The ledger appends it *before* its state changes and before a command
leaves, so whoever reads the journal after a death knows at least what had happened. A record whose
``append`` has raised has not happened. ``durable`` ones survive a power cut when ``append`` returns,
the others the death of the process.

The file holds a JSON line a record: ``["checksum",{record}]``. Whatever a death left of the last line is
cut off when the file is opened; damage before the last line is refused, as nobody may guess what was there.
One process writes: it holds a lock on the file.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

from rolecall.durable_files import TEMPORARY_SUFFIX, flush_folder, remove_leftovers
from rolecall.errors import JournalError

Record = Mapping[str, Any]
"""JSON values; ``kind`` says what the others mean (see :mod:`rolecall.leases.history`)."""

LONG_BYTES = 4 * 2**20
"""A journal is rewritten when it is longer than this, and than four times what the last rewriting left."""


class Journal(Protocol):
    """Where the ledger writes. Used by one ledger at a time; synchronous, as a write takes 0.2 ms."""

    def records(self) -> tuple[Record, ...]:
        """Return all records, oldest first."""
        ...

    def append(self, record: Record, *, durable: bool) -> None:
        """Add a record; it counts once this returns.

        Raises:
            JournalError: it was not written and does not count. If the attempt could not be undone,
                nothing more is taken until :meth:`rewrite` has succeeded.
        """
        ...

    @property
    def wants_rewriting(self) -> bool:
        """Whether it has become long, or takes no more records."""
        ...

    def rewrite(self, records: Iterable[Record]) -> None:
        """Put ``records`` in the place of everything, in one step and durably.

        Raises:
            JournalError: everything is as it was.
        """
        ...


def encode(record: Record) -> bytes:
    """Return a record's line."""
    text = json.dumps(record, separators=(",", ":")).encode()
    return b'["%08x",%b]\n' % (zlib.crc32(text), text)


def decode(content: bytes) -> tuple[tuple[Record, ...], int]:
    """Return the records of a journal's content, and how many bytes of it are sound.

    What follows the sound bytes is a last line that was never finished.

    Raises:
        JournalError: sound lines follow a broken one.
    """
    records: list[Record] = []
    sound = 0
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines):
        record = _read(line)
        if record is None:
            if any(_read(later) is not None for later in lines[number + 1 :]):
                raise JournalError(
                    f"line {number + 1}, at byte {sound}, is damaged, and sound lines follow it"
                )
            break
        records.append(record)
        sound += len(line)
    return tuple(records), sound


def _read(line: bytes) -> Record | None:
    head, text, tail = line[:12], line[12:-2], line[-2:]
    if tail != b"]\n" or head != b'["%08x",' % zlib.crc32(text):
        return None
    found: object = json.loads(text)
    return cast(Record, found) if isinstance(found, dict) else None


def read_journal(path: Path) -> tuple[Record, ...]:
    """Return the records of a journal's file without touching it; none if there is no file.

    Raises:
        JournalError: it is damaged, or can't be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise JournalError(f"the journal {path} can't be read: {error}") from error
    return _decode_file(path, content)[0]


def set_aside(path: Path, to: Path | None) -> None:
    """Move a journal's file, in the place of what is there, or remove it; one that is not there is no error.

    Raises:
        JournalError: another process writes it, or it can't be moved.
    """
    try:
        if not path.exists():
            return
        descriptor = _open_locked(path)
        try:
            if to is None:
                path.unlink()
            else:
                path.rename(to)
            flush_folder(path.parent)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise JournalError(f"the journal {path} can't be moved away: {error}") from error


class FileJournal:
    """Implements :class:`Journal` in a file; made if it is not there, readable by its owner only.

    Raises:
        JournalError: another process has it open for writing, it is damaged, or the disk refuses.
    """

    def __init__(self, path: Path, *, long_bytes: int = LONG_BYTES) -> None:
        self._path = path
        self._broken: OSError | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(path.parent)
            self._descriptor = _open_locked(path)
            try:
                self._size = self._cut_torn_tail()
                flush_folder(path.parent)
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise JournalError(f"the journal {path} can't be opened: {error}") from error
        self._least_bytes = long_bytes
        self._long_bytes = max(long_bytes, 4 * self._size)

    def records(self) -> tuple[Record, ...]:
        """Return all records, oldest first."""
        return _decode_file(self._path, os.pread(self._descriptor, self._size, 0))[0]

    def append(self, record: Record, *, durable: bool) -> None:
        """Add a record; see the port."""
        if self._broken is not None:
            raise JournalError(
                f"the journal {self._path} takes no more: an earlier write failed and could not be undone: "
                f"{self._broken}"
            )
        line = encode(record)
        try:
            _write(self._descriptor, line, self._size)
        except OSError as error:
            self._undo(error)
            raise JournalError(f"the journal {self._path} could not be written: {error}") from error
        if durable:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                # Nobody knows which of the earlier bytes the disk has, and asking again would not tell.
                self._undo(error)
                self._broken = error
                raise JournalError(f"the journal {self._path} could not be flushed: {error}") from error
        self._size += len(line)

    @property
    def wants_rewriting(self) -> bool:
        """Whether it has become long, or takes no more records."""
        return self._broken is not None or self._size > self._long_bytes

    def rewrite(self, records: Iterable[Record]) -> None:
        """Put ``records`` in the place of everything; see the port."""
        content = b"".join(map(encode, records))
        try:
            descriptor, temporary = tempfile.mkstemp(
                dir=self._path.parent, prefix=f".{self._path.name}.", suffix=TEMPORARY_SUFFIX
            )
            try:
                # Locked before it has the name, so that nobody else ever opens it for writing.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                _write(descriptor, content, 0)
                os.fsync(descriptor)
                Path(temporary).rename(self._path)
            except BaseException:
                os.close(descriptor)
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            # A full disk takes no second copy, but may go on taking lines.
            self._long_bytes = max(self._long_bytes, 2 * self._size)
            raise JournalError(f"the journal {self._path} could not be rewritten: {error}") from error
        os.close(self._descriptor)
        self._descriptor, self._size, self._broken = descriptor, len(content), None
        self._long_bytes = max(self._least_bytes, 4 * self._size)
        try:
            flush_folder(self._path.parent)
        except OSError as error:
            # A power cut may bring the old file back, which lacks what is appended from now on.
            self._broken = error
            raise JournalError(f"the journal {self._path} could not be rewritten: {error}") from error

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _cut_torn_tail(self) -> int:
        length = os.fstat(self._descriptor).st_size
        _, sound = _decode_file(self._path, os.pread(self._descriptor, length, 0))
        if sound < length:
            os.ftruncate(self._descriptor, sound)
            os.fsync(self._descriptor)
        return sound

    def _undo(self, error: OSError) -> None:
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError:
            self._broken = error


def _decode_file(path: Path, content: bytes) -> tuple[tuple[Record, ...], int]:
    try:
        return decode(content)
    except JournalError as error:
        raise JournalError(
            f"{path}: {error}. Its batches can't be resumed from it; move it away to begin anew"
        ) from error


def _open_locked(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise JournalError(
                f"the journal {path} is open in another process; does the job still run?"
            ) from error
        with suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        # Between the opening and the lock its writer has put another file in its place.
        os.close(descriptor)


def _write(descriptor: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written
