"""Files that are there whole or not at all, also after a crash or a power cut.

A file is written under a temporary name, locked while it is written, flushed to the disk and then
renamed; the folder is flushed after every rename and removal. A temporary file that nobody has
locked was left by a writer that died.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

TEMPORARY_SUFFIX = ".writing"


def write_durably(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path``, replacing what is there, in one step that survives a crash.

    Raises:
        OSError: nothing has changed at ``path``.
    """
    descriptor, temporary = _create_locked(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def _create_locked(path: Path) -> tuple[int, Path]:
    while True:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=TEMPORARY_SUFFIX)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, Path(name)
        # Between creation and lock somebody took it for a leftover.
        os.close(descriptor)


def remove_durably(path: Path) -> None:
    """Remove a file; one that isn't there is no error."""
    try:
        path.unlink(missing_ok=True)
        flush_folder(path.parent)
    except FileNotFoundError:
        return  # not even the folder is there


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of writers that died; those of living writers stay."""
    for temporary in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        try:
            with temporary.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                temporary.unlink(missing_ok=True)
        except (FileNotFoundError, BlockingIOError):
            # Finished in this very moment, or its writer is alive.
            continue


def flush_folder(folder: Path) -> None:
    """Make renames and removals in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
