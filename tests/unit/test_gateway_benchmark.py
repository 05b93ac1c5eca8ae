"""The gateway benchmark's own arithmetic, and its worker and load generator held against each other."""

from __future__ import annotations

import importlib
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

GATEWAY = Path(__file__).parents[2] / "benchmarks" / "gateway"


@pytest.fixture(scope="module")
def works() -> Iterator[ModuleType]:
    yield from _module("works")


@pytest.fixture(scope="module")
def processes() -> Iterator[ModuleType]:
    yield from _module("processes")


def _module(name: str) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(GATEWAY))
        yield importlib.import_module(name)


def test_every_target_has_its_work_and_everybody_it_needs(works: ModuleType) -> None:
    by_name = {work.name: work for work in works.WORKS}
    assert len(by_name) == len(works.WORKS)
    for target in works.TARGETS:
        assert by_name[target.work].takes(target.subject), target
        assert target.against is None or by_name[target.work].takes(target.against), target


def test_a_request_of_16k_ids_is_the_size_that_was_agreed(works: ModuleType) -> None:
    body = next(work for work in works.WORKS if work.name == "ids-16k").body()
    assert len(json.loads(body)["input_ids"]) == 16_384
    assert 95_000 < len(body) < 110_000


def test_ratios_are_taken_within_a_round(works: ModuleType) -> None:
    def rounds(*values: float) -> list[object]:
        return [works.Round(figures={"cpu_us": value}) for value in values]

    # The machine slowed down: by medians rolecall would be at 1.0, and it is at half in each round.
    found = {"rolecall": rounds(10, 50, 100), "sglang-router": rounds(20, 100, 200)}
    target = works.Target(work="unary-2k-64", what="CPU", figure="cpu_us", limit=0.5)
    verdict = works.judge(target, found)
    assert (verdict.value, verdict.reached) == (0.5, True)


def test_a_round_that_went_wrong_is_a_miss(works: ModuleType) -> None:
    fine = works.Round(figures={"per_second": 100.0})
    wrong = works.Round(figures={"per_second": 100.0}, fault="3 calls failed")
    target = works.Target(
        work="unary-2k-64",
        what="rate",
        figure="per_second",
        limit=20,
        against="starlette-httpx",
        at_least=True,
    )
    slow = [works.Round(figures={"per_second": 5.0})] * 2
    assert works.judge(target, {"rolecall": [fine, fine], "starlette-httpx": slow}).reached is True
    assert works.judge(target, {"rolecall": [fine, wrong], "starlette-httpx": slow}).reached is False
    assert works.judge(target, {"rolecall": [fine, fine]}).reached is None


def test_one_failed_call_in_one_round_is_one_too_many(works: ModuleType) -> None:
    target = works.Target(work="burst-2000", what="failed", figure="failed", limit=0, against=None)
    rounds = [works.Round(figures={"failed": failed}) for failed in (0, 0, 1)]
    assert works.judge(target, {"rolecall": rounds}).reached is False


def test_added_latency_is_what_the_worker_alone_does_not_take(works: ModuleType) -> None:
    turn = {
        name: works.Round(figures={"p50_us": value}) for name, value in (("direct", 22.0), ("nginx", 173.0))
    }
    added = works.with_added_latency(turn)
    assert added["nginx"].get("added_p50_us") == 151.0
    assert added["direct"].get("added_p50_us") is None


def test_processor_time_of_a_process_with_a_strange_name(processes: ModuleType) -> None:
    stat = "7 (a) b (c)) S 1 7 7 0 -1 4194304 101 0 0 0 300 40 5 1 20 0 1 0 5350865 3133440 385"
    assert processes._cpu_ticks(stat) == 346


def test_what_was_started_ends_with_all_it_started(processes: ModuleType, tmp_path: Path) -> None:
    core = processes.Cores.chosen().load
    with processes.Processes(tmp_path) as started:
        shell = started.start(["sh", "-c", "sleep 60 & echo up; wait"], core=core, piped=True)
        assert shell.line() == "up"
        members = shell.members()
        assert len(members) == 2
    assert all(processes._is_dead(pid) for pid in members)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_load_and_worker_agree(processes: ModuleType, tmp_path: Path) -> None:
    for name in ("worker", "load"):
        subprocess.run(["cc", "-O1", "-o", tmp_path / name, GATEWAY / f"{name}.c"], check=True)
    whole, stream = tmp_path / "whole.json", tmp_path / "stream.json"
    whole.write_text('{"text": "?"}')
    stream.write_text('{"text": "?", "stream": true}')
    core = processes.Cores.chosen().load
    with processes.Processes(tmp_path) as started:
        command = [str(tmp_path / "worker"), "--size", "3000", "--events", "7", "--pace-us", "1000"]
        port = int(started.start(command, core=core, piped=True).line().removeprefix("port "))

        def load(*words: str) -> dict[str, float]:
            command = [str(tmp_path / "load"), "--port", str(port), "--once", "1", *words]
            asked = started.start(command, core=core, piped=True)
            assert asked.line() == "begin"
            return json.loads(asked.line())

        answered = load("--body", str(whole), "--connections", "50")
        assert (answered["succeeded"], answered["failed"]) == (50, 0)
        assert answered["body_bytes"] == 50 * 3000
        streamed = load("--body", str(stream), "--connections", "20", "--stream", "1")
        assert (streamed["succeeded"], streamed["events"]) == (20, 140)
        assert streamed["p50_us"] > 6_000  # seven events a millisecond apart
        lost = load("--body", str(whole), "--connections", "3", "--path", "/nowhere")
        assert (lost["succeeded"], lost["failed"]) == (0, 3)
        assert "404" in str(lost["first_fault"])
        # A router asks in HTTP/2 whether a worker speaks it: this one hangs up, and lives on.
        assert _answer_to(port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == b""
        chunked = (
            b'POST /generate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n2\r\n1}\r\n0\r\n\r\n'
        )
        assert _answer_to(port, chunked).startswith(b"HTTP/1.1 200 OK\r\n")
        counted = json.loads(_answer_to(port, b"GET /stats HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")[2])
        assert (counted["answered"], counted["streams"], counted["refused"]) == (51, 20, 1)


def _answer_to(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        return connection.recv(65_536)
