"""A journal without a file: for tests and simulations of what a coordinator's death leaves.

    disk = MemoryDisk()
    ledger = Ledger(..., journal=MemoryJournal(disk), run="1")
    disk.lose(keep=3)                                             # a power cut, in the middle of a line
    ledger = Ledger(..., journal=MemoryJournal(disk), run="1")    # what the next coordinator does

Lines are written and read as the file's are.
"""

from __future__ import annotations

from collections.abc import Iterable

from rolecall.errors import JournalError
from rolecall.leases.journal import LONG_BYTES, Record, decode, encode


class MemoryDisk:
    """What outlives a coordinator.

    content: the journal as the next process would read it.
    flushed: how many of its bytes survive a power cut.
    full: no write is taken; the attempt leaves nothing.
    stuck: no write is taken, and half of what was tried stays: it can't be undone.
    """

    def __init__(self) -> None:
        self.content = b""
        self.flushed = 0
        self.full = False
        self.stuck = False

    def lose(self, keep: int = 0) -> None:
        """Cut the power: of what was not flushed only the first ``keep`` bytes are left."""
        self.content = self.content[: self.flushed + keep]
        self.flushed = len(self.content)


class MemoryJournal:
    """Implements :class:`~rolecall.leases.journal.Journal` on a :class:`MemoryDisk`."""

    def __init__(self, disk: MemoryDisk, *, long_bytes: int = LONG_BYTES) -> None:
        self._disk = disk
        self._long_bytes = long_bytes
        self._broken = False
        _, sound = decode(disk.content)
        disk.content = disk.content[:sound]
        disk.flushed = min(disk.flushed, sound)

    def records(self) -> tuple[Record, ...]:
        """Return all records, oldest first."""
        return decode(self._disk.content)[0]

    def append(self, record: Record, *, durable: bool) -> None:
        """Add a record; see the port."""
        if self._broken:
            raise JournalError("the journal takes no more: an earlier write could not be undone")
        line = encode(record)
        if self._disk.stuck:
            self._broken = True
            self._disk.content += line[: len(line) // 2]
        if self._disk.stuck or self._disk.full:
            raise JournalError("the journal could not be written: the disk is full")
        self._disk.content += line
        if durable:
            self._disk.flushed = len(self._disk.content)

    @property
    def wants_rewriting(self) -> bool:
        """Whether it has become long, or takes no more records."""
        return self._broken or len(self._disk.content) > self._long_bytes

    def rewrite(self, records: Iterable[Record]) -> None:
        """Put ``records`` in the place of everything; see the port."""
        if self._disk.stuck or self._disk.full:
            raise JournalError("the journal could not be rewritten: the disk is full")
        self._disk.content = b"".join(map(encode, records))
        self._disk.flushed = len(self._disk.content)
        self._long_bytes = max(self._long_bytes, 4 * self._disk.flushed)
        self._broken = False
