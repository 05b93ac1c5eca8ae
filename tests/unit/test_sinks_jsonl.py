"""The jsonl sink beside its contract: durable, whole or not at all, no leftovers, readable."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolecall.api import SinkContext, SinkError
from rolecall.durable_files import TEMPORARY_SUFFIX
from rolecall_plugins.sinks.jsonl.sink import JsonlOptions, JsonlSink

ROWS: list[dict[str, Any]] = [{"id": "a", "ids": np.array([1, 2], dtype=np.int32)}, {"id": "b", "ids": None}]


@pytest.fixture
def sink(tmp_path: Path) -> JsonlSink:
    sink = JsonlSink(JsonlOptions(folder="out/rows"), SinkContext(job="j", base_dir=tmp_path))
    sink.open()
    return sink


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out" / "rows" / "j"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_partition_is_one_file_of_json_lines(sink: JsonlSink, folder: Path) -> None:
    sink.put("train_0", ROWS)
    assert names(folder) == ["train_0.jsonl"]
    lines = [json.loads(line) for line in (folder / "train_0.jsonl").read_text().splitlines()]
    assert lines == [
        {"id": "a", "ids": {"dtype": "int32", "shape": [2], "values": [1, 2]}},
        {"id": "b", "ids": None},
    ]


def test_data_is_flushed_before_the_rename_and_the_folder_after_it(
    sink: JsonlSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def spy_fsync(descriptor: int) -> None:
        steps.append("flush " + os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(f"{folder}"))
        fsync(descriptor)

    def spy_rename(path: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(Path, "rename", spy_rename)
    sink.put("train_0", ROWS)
    assert [step.split(".")[0] for step in steps] == ["flush /", "rename", "flush "]
    steps.clear()
    sink.clear("train_0")
    assert steps == ["flush "]


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_put_that_fails_keeps_what_was_there(
    sink: JsonlSink, folder: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    sink.put("train_0", ROWS)
    before = (folder / "train_0.jsonl").read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if step == "fsync" else (Path, "rename")), full)
    with pytest.raises(SinkError, match=r"partition train_0 was not stored at .*No space left"):
        sink.put("train_0", ROWS[:1])
    assert names(folder) == ["train_0.jsonl"]
    assert (folder / "train_0.jsonl").read_bytes() == before


def test_the_same_rows_again_are_not_written_again(sink: JsonlSink, folder: Path) -> None:
    sink.put("train_0", ROWS)
    inode = (folder / "train_0.jsonl").stat().st_ino
    sink.put("train_0", ROWS)
    assert (folder / "train_0.jsonl").stat().st_ino == inode
    sink.put("train_0", ROWS[:1])
    assert (folder / "train_0.jsonl").stat().st_ino != inode


CRASHING_WRITER = """
import os, sys
from pathlib import Path
from rolecall.api import SinkContext
from rolecall_plugins.sinks.jsonl.sink import JsonlOptions, JsonlSink

sink = JsonlSink(JsonlOptions(folder="out/rows"), SinkContext(job="j", base_dir=Path(sys.argv[1])))
sink.open()
os.fsync = lambda descriptor: os.kill(os.getpid(), 9)
sink.put("train_0", [{"id": "a"}])
"""


def test_a_writer_that_is_killed_leaves_no_partition_and_the_next_open_cleans_up(
    sink: JsonlSink, folder: Path, tmp_path: Path
) -> None:
    # fsync runs on the folder first, in open, so the kill comes in the middle of put.
    killed = subprocess.run([sys.executable, "-c", CRASHING_WRITER, str(tmp_path)], check=False, timeout=60)
    assert killed.returncode == -9
    (leftover,) = names(folder)
    assert leftover.startswith(".train_0.jsonl.")
    with pytest.raises(SinkError, match="there is no partition train_0"):
        sink.read("train_0")
    sink.open()
    assert names(folder) == []


def test_open_leaves_the_temporary_file_of_a_living_writer_alone(sink: JsonlSink, folder: Path) -> None:
    living, dead = folder / f".train_0.jsonl.a{TEMPORARY_SUFFIX}", folder / ".train_0.jsonl.b.writing"
    dead.write_text("half a li")
    with living.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        sink.open()
        assert names(folder) == [living.name]


def test_a_damaged_file_is_named(sink: JsonlSink, folder: Path) -> None:
    sink.put("train_0", ROWS)
    path = folder / "train_0.jsonl"
    path.write_text(path.read_text()[:-5])
    with pytest.raises(SinkError, match=r"train_0\.jsonl is damaged"):
        sink.read("train_0")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "nan is not finite"),
        (np.array([np.inf]), "values that are not finite"),
        (np.array(["a"]), "an array of <U1 can't be stored"),
        (np.array([1 + 1j]), "an array of complex128 can't be stored"),
        ([1], "a list can't be stored"),
        ({"dtype": 1, "shape": 2, "values": 3}, "would read as an array"),
        ({"x": float("inf")}, "inf is not finite"),
    ],
)
def test_what_json_can_not_keep_is_refused_by_column(sink: JsonlSink, value: Any, message: str) -> None:
    with pytest.raises(SinkError, match=f'column "c": .*{message}'):
        sink.put("train_0", [{"c": value}])


@pytest.mark.parametrize("partition", ["", ".", "../x", "a/b", ".hidden", "a b"])
def test_a_partition_can_not_leave_the_folder(sink: JsonlSink, partition: str) -> None:
    for call in (sink.read, sink.clear, lambda name: sink.put(name, ROWS)):
        with pytest.raises(SinkError, match="can't name a file"):
            call(partition)


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "batches").write_text("a file")
    sink = JsonlSink(JsonlOptions(), SinkContext(job="j", base_dir=tmp_path))
    with pytest.raises(SinkError, match="batches/j can't be used"):
        sink.open()
