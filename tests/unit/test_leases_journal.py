"""The journal: what survives which death, what is refused, and that it stays bounded."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolecall.errors import JournalError
from rolecall.leases.journal import FileJournal, Journal, Record, decode, encode, read_journal, set_aside
from rolecall.testing.memory_journal import MemoryDisk, MemoryJournal

RECORDS: list[Record] = [
    {"kind": "begun", "batch": 0, "reason": 'two\nlines and "quotes" ü'},
    {"kind": "committed", "batch": 0},
    {"kind": "begun", "batch": 1, "deep": {"a": [1, None]}},
]


@pytest.fixture(params=["file", "memory"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Journal]:
    """Opens the same journal again, as the next process would."""
    disk = MemoryDisk()
    opened: list[FileJournal] = []

    def reopen() -> Journal:
        if request.param == "memory":
            return MemoryJournal(disk, long_bytes=300)
        while opened:
            opened.pop().close()
        opened.append(FileJournal(tmp_path / "job.journal", long_bytes=300))
        return opened[-1]

    return reopen


def test_what_was_appended_is_there_for_the_next_process(reopen: Callable[[], Journal]) -> None:
    journal = reopen()
    assert journal.records() == ()
    for number, record in enumerate(RECORDS):
        journal.append(record, durable=bool(number % 2))
    assert list(journal.records()) == RECORDS
    assert list(reopen().records()) == RECORDS


def test_a_rewriting_takes_the_place_of_everything_and_appending_goes_on(
    reopen: Callable[[], Journal],
) -> None:
    journal = reopen()
    while not journal.wants_rewriting:
        journal.append(RECORDS[0], durable=False)
    journal.rewrite(RECORDS[1:2])
    assert not journal.wants_rewriting
    journal.append(RECORDS[2], durable=True)
    assert list(reopen().records()) == RECORDS[1:]


def test_every_torn_end_is_cut_off_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever byte a death stopped at: the whole lines count, and the next record follows them."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # hundreds of them, and no power cut to survive
    lines = [encode(record) for record in RECORDS]
    content = b"".join(lines)
    path = tmp_path / "job.journal"
    for kept in range(len(content) + 1):
        path.write_bytes(content[:kept])
        whole = sum(kept >= sum(map(len, lines[: number + 1])) for number in range(len(lines)))
        journal = FileJournal(path)
        assert list(journal.records()) == RECORDS[:whole]
        journal.append({"kind": "next"}, durable=True)
        journal.close()
        assert list(read_journal(path)) == [*RECORDS[:whole], {"kind": "next"}]


def test_a_last_line_of_garbage_is_a_torn_one() -> None:
    for garbage in (b"\0" * 50, b'["00000000",{"kind":"begun"}]\n', b"\xff\n"):
        assert decode(encode(RECORDS[0]) + garbage) == ((RECORDS[0],), len(encode(RECORDS[0])))


def test_damage_before_sound_lines_is_refused_not_guessed_at(tmp_path: Path) -> None:
    path = tmp_path / "job.journal"
    first, *others = [encode(record) for record in RECORDS]
    for at in range(len(first)):
        path.write_bytes(first[:at] + bytes([first[at] ^ 1]) + first[at + 1 :] + b"".join(others))
        with pytest.raises(JournalError, match="line 1, at byte 0, is damaged"):
            FileJournal(path)
        with pytest.raises(JournalError, match="move it away to begin anew"):
            read_journal(path)


def test_only_one_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "job.journal"
    journal = FileJournal(path)
    with pytest.raises(JournalError, match="open in another process"):
        FileJournal(path)
    with pytest.raises(JournalError, match="open in another process"):
        set_aside(path, tmp_path / "former")
    journal.append(RECORDS[0], durable=True)
    journal.rewrite(RECORDS)
    with pytest.raises(JournalError, match="open in another process"):
        FileJournal(path)
    assert list(read_journal(path)) == RECORDS, "reading needs no lock"
    journal.close()
    FileJournal(path).close()


def test_it_is_its_owners_alone_and_leaves_no_other_file(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "rolecall"
    journal = FileJournal(folder / "job.journal")
    journal.rewrite(RECORDS)
    assert [path.name for path in folder.iterdir()] == ["job.journal"]
    assert (folder / "job.journal").stat().st_mode & 0o777 == 0o600


def test_a_former_journal_is_kept_or_removed(tmp_path: Path) -> None:
    path, kept = tmp_path / "job.journal", tmp_path / "job.journal.former"
    set_aside(path, kept)
    assert not kept.exists()
    for record in RECORDS[:2]:
        path.write_bytes(encode(record))
        set_aside(path, kept)
    assert list(read_journal(kept)) == [RECORDS[1]]
    path.write_bytes(encode(RECORDS[2]))
    set_aside(path, None)
    assert not path.exists()
    assert list(read_journal(kept)) == [RECORDS[1]]


# --- a disk that refuses ------------------------------------------------------------------


def full(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_write_that_fails_half_way_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FileJournal(tmp_path / "job.journal")
    journal.append(RECORDS[0], durable=True)
    write = os.pwrite
    room = [5]

    def short(descriptor: int, content: bytes, offset: int) -> int:
        if not room:
            full()
        return write(descriptor, content[: room.pop()], offset)

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", short)
        with pytest.raises(JournalError, match="No space left"):
            journal.append(RECORDS[1], durable=True)
    assert not journal.wants_rewriting
    assert (tmp_path / "job.journal").read_bytes() == encode(RECORDS[0])
    journal.append(RECORDS[2], durable=True)
    assert list(journal.records()) == [RECORDS[0], RECORDS[2]]


@pytest.mark.parametrize("refused", [("pwrite", "ftruncate"), ("fsync",)])
def test_one_that_can_not_be_undone_refuses_everything_until_it_is_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: tuple[str, ...]
) -> None:
    journal = FileJournal(tmp_path / "job.journal")
    journal.append(RECORDS[0], durable=True)
    with monkeypatch.context() as broken:
        for name in refused:
            broken.setattr(os, name, full)
        with pytest.raises(JournalError):
            journal.append(RECORDS[1], durable=True)
        with pytest.raises(JournalError, match="could not be rewritten"):
            journal.rewrite(RECORDS[:1])
    assert journal.wants_rewriting
    with pytest.raises(JournalError, match="takes no more"):
        journal.append(RECORDS[1], durable=False)
    journal.rewrite(RECORDS[:1])
    journal.append(RECORDS[2], durable=True)
    assert list(read_journal(tmp_path / "job.journal")) == [RECORDS[0], RECORDS[2]]


def test_a_rewriting_that_fails_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = FileJournal(tmp_path / "job.journal", long_bytes=10)
    journal.append(RECORDS[0], durable=True)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(JournalError):
            journal.rewrite(RECORDS[1:])
    assert not journal.wants_rewriting, "the next attempt comes when it has grown"
    journal.append(RECORDS[1], durable=True)
    assert list(read_journal(tmp_path / "job.journal")) == RECORDS[:2]
    assert [path.name for path in tmp_path.iterdir()] == ["job.journal"]


def test_what_is_durable_is_flushed_and_the_rest_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = FileJournal(tmp_path / "job.journal")
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    journal.append(RECORDS[0], durable=False)
    assert not flushed
    journal.append(RECORDS[1], durable=True)
    assert len(flushed) == 1


def test_a_folder_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="can't be opened"):
        FileJournal(tmp_path / "file" / "job.journal")
    with pytest.raises(JournalError, match="can't be read"):
        read_journal(tmp_path)
    assert read_journal(tmp_path / "none") == ()
