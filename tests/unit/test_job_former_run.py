"""The run before: set aside by a fresh one, told of if it had not finished, or resumed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rolecall.config.specs import BatchSection, JobSection
from rolecall.errors import JobError, SinkError
from rolecall.ids import BatchId
from rolecall.job.former_run import begin_anew, resumable
from rolecall.job.paths import former_journal_path, journal_path
from rolecall.job.run_batches import (
    _open_prompts,  # pyright: ignore[reportPrivateUsage]
    _require_kept,  # pyright: ignore[reportPrivateUsage]
)
from rolecall.leases.journal import FileJournal, Record

STARTED: Record = {"kind": "started", "run": "/tmp/rc-1", "leases": {}}


class Job:
    """A resolved job with two batches, and its journal."""

    def __init__(self, folder: Path) -> None:
        self.resolved: Any = SimpleNamespace(
            config=SimpleNamespace(
                job=JobSection(name="job", journal="job.journal"), batch=SimpleNamespace(batches=2)
            ),
            file=folder / "job.toml",
        )
        self.journal = journal_path(self.resolved.config, self.resolved.file)
        self.former = former_journal_path(self.journal)

    def write(self, *records: Record) -> None:
        journal = FileJournal(self.journal)
        for record in (STARTED, *records):
            journal.append(record, durable=False)
        journal.close()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def begun(batch: int) -> Record:
    return {"kind": "begun", "batch": batch, "attempt": 1}


def committed(batch: int) -> Record:
    return {"kind": "committed", "batch": batch, "reason": "acknowledged"}


def test_a_journal_is_beside_the_state_file_unless_the_job_file_says_otherwise(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert job.journal == tmp_path / "job.journal"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config: Any = SimpleNamespace(job=JobSection(name="job"))
    assert journal_path(config, job.resolved.file) == tmp_path / "state" / "rolecall" / "job.journal"


def test_a_finished_run_is_set_aside_in_silence(job: Job) -> None:
    assert begin_anew(job.resolved) is None
    job.write(begun(0), committed(0), begun(1), committed(1))
    assert begin_anew(job.resolved) is None
    assert job.former.exists()
    assert not job.journal.exists()


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([begun(0)], "batch 0 is not committed"),
        ([begun(0), committed(0)], "batch 1 is not committed"),
        ([begun(0), {"kind": "failed", "batch": 0, "reason": "disk full"}], "batch 0 failed: disk full"),
    ],
)
def test_a_run_that_had_not_finished_is_told_of_and_kept(job: Job, records: list[Record], said: str) -> None:
    job.write(*records)
    told = begin_anew(job.resolved)
    assert told is not None
    assert said in told
    assert str(job.former) in told


def test_a_run_that_never_came_to_a_batch_does_not_take_the_place_of_one_that_did(job: Job) -> None:
    job.write(begun(0))
    begin_anew(job.resolved)
    kept = job.former.read_bytes()
    job.write()
    assert begin_anew(job.resolved) is None
    assert job.former.read_bytes() == kept
    assert not job.journal.exists()


def test_a_damaged_journal_does_not_keep_a_fresh_run_from_beginning(job: Job) -> None:
    job.write(begun(0))
    job.journal.write_bytes(b"x" + job.journal.read_bytes())
    told = begin_anew(job.resolved)
    assert told is not None
    assert "damaged" in told


def test_a_journal_in_use_does(job: Job) -> None:
    journal = FileJournal(job.journal)
    with pytest.raises(JobError, match="open in another process"):
        begin_anew(job.resolved)
    journal.close()


def test_what_can_be_resumed_says_where_it_was(job: Job) -> None:
    with pytest.raises(JobError, match="there is no run to resume"):
        resumable(job.resolved)
    job.write(begun(0), committed(0), begun(1))
    history = resumable(job.resolved)
    assert (history.run, history.next_batch) == ("/tmp/rc-1", 1)
    job.write(committed(1))
    with pytest.raises(JobError, match="all 2 batches are committed"):
        resumable(job.resolved)
    job.resolved.config.batch.batches = 3
    assert resumable(job.resolved).next_batch == 2


class Sink:
    name = "brief"
    outlives_job = False

    def __init__(self, *partitions: str) -> None:
        self.partitions = partitions

    def read(self, partition: str) -> list[Any]:
        if partition not in self.partitions:
            raise SinkError(f"there is no partition {partition}")
        return []


def test_a_run_is_not_resumed_whose_committed_rows_ended_with_the_job() -> None:
    lasting: Any = SimpleNamespace()
    brief: Any = Sink("train_0")
    _require_kept(lasting, BatchId(5))
    _require_kept(brief, BatchId(0))
    _require_kept(brief, BatchId(1))
    with pytest.raises(
        SinkError, match=r"batches 0 to 1 are committed, but sink 'brief' does not have train_1"
    ):
        _require_kept(brief, BatchId(2))


def test_a_run_notes_its_prompts_and_goes_on_with_no_others(job: Job, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}', encoding="utf-8")
    settings = BatchSection(prompts=prompts.name, prompts_per_batch=2, shuffle_seed=1)
    handle: Any = job
    began = _open_prompts(handle, settings, BatchId(0))
    resumed = _open_prompts(handle, settings, BatchId(1))
    assert resumed.of_batch(BatchId(1)) == began.of_batch(BatchId(1))
    prompts.write_text('{"prompt": "a"}\n{"prompt": "b"}', encoding="utf-8")
    with pytest.raises(JobError, match=r"the number of prompts \(3 → 2\)"):
        _open_prompts(handle, settings, BatchId(1))
    assert len(_open_prompts(handle, settings, BatchId(0)).prompts) == 2, (
        "a run that begins takes what is there"
    )
    assert len(_open_prompts(handle, settings, BatchId(1)).prompts) == 2
