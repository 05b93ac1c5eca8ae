"""Reading files ahead: into the page cache of a node, before an engine wants them.

It changes nothing but what the kernel keeps of files in memory that nobody else uses, so it can be left
out, repeated and broken off at any place. What is there already costs a look.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import Event

import psutil
from attrs import frozen

from rolecall.engines.deadline import Deadline

_PIECE_BYTES = 4 * 2**20
_SHARE_OF_MEMORY = 0.5
"""Files that would take more of the memory that is free than this are left alone: reading the end of them
would push out their beginning."""


@frozen(kw_only=True)
class ReadAhead:
    """What came of it.

    bytes: of all the files; read_bytes: of those, what was not in memory yet.
    skipped: why files were left alone; empty if none was.
    """

    bytes: int = 0
    read_bytes: int = 0
    seconds: float = 0.0
    skipped: str = ""


class FilesAhead:
    """Reads files ahead in threads, and ends that when it is told to. Owned by an engine host."""

    def __init__(self) -> None:
        self._under_way: set[Event] = set()

    async def read(self, paths: Sequence[Path], deadline: Deadline) -> ReadAhead:
        """As :func:`read_ahead`; it ends soon after the deadline, a cancellation or :meth:`stop`, too."""
        if not paths:
            return ReadAhead()
        stop = Event()
        self._under_way.add(stop)
        try:
            return await deadline.bound(asyncio.to_thread(read_ahead, paths, stop), "reading files ahead")
        finally:
            stop.set()
            self._under_way.discard(stop)

    def stop(self) -> None:
        """End whatever is under way; what was read stays read."""
        for stop in self._under_way:
            stop.set()


def read_ahead(paths: Iterable[Path], stop: Event) -> ReadAhead:
    """Read files, and the files right in folders, until ``stop`` is set. Blocks: made for a thread.

    Raises:
        OSError: a file is not there or can't be read.
    """
    began_s = time.monotonic()
    files = list(dict.fromkeys(file for path in paths for file in _files(path)))
    size = sum(file.stat().st_size for file in files)
    available = psutil.virtual_memory().available
    if size > available * _SHARE_OF_MEMORY:
        return ReadAhead(
            bytes=size, skipped=f"{_gib(size)} in files, and {_gib(available)} of the node's memory is free"
        )
    buffer = bytearray(_PIECE_BYTES)
    read_bytes = 0
    for file in files:
        read_bytes += _read(file, buffer, stop)
    return ReadAhead(bytes=size, read_bytes=read_bytes, seconds=time.monotonic() - began_s)


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(file for file in path.iterdir() if file.is_file())
    else:
        yield path


def _read(file: Path, buffer: bytearray, stop: Event) -> int:
    """Read what of a file is not in memory; returns how many bytes that were."""
    read_bytes = 0
    with file.open("rb", buffering=0) as opened:
        descriptor = opened.fileno()
        # Otherwise the kernel reads beyond each piece, and the next one looks as if it were there.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        size = os.fstat(descriptor).st_size
        for offset in range(0, size, len(buffer)):
            if stop.is_set():
                break
            ends = (offset, min(offset + len(buffer), size) - 1)
            if not all(_is_in_memory(descriptor, end) for end in ends):
                read_bytes += os.preadv(descriptor, [buffer], offset)
    return read_bytes


def _is_in_memory(descriptor: int, offset: int) -> bool:
    """Whether the byte at ``offset`` is in the page cache."""
    try:
        return bool(os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT))
    except OSError:  # not without waiting for it; or the file system can't say
        return False


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
