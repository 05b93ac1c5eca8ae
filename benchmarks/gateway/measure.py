"""One measurement: the load generator asks a server for a while, and the server's use is read around it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from attrs import frozen
from processes import BenchmarkError, Cores, Processes, Started, cpu_seconds, memory_mb, reset_peaks
from works import CHAT, LITELLM, Round, Work

HERE = Path(__file__).parent
MOST_BURST_S = 60.0
STREAM_S = 2.0
"""How long the worker's streams last. They begin so far apart that they end evenly over this time."""


@frozen(kw_only=True)
class Bench:
    """What all measurements share; ``folder`` is temporary."""

    folder: Path
    processes: Processes
    cores: Cores
    seconds: float
    warm_s: float


def compile_programs(bench: Bench) -> None:
    """Compile the worker and the load generator into the folder.

    Raises:
        BenchmarkError: there is no compiler, or it failed.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise BenchmarkError("there is no C compiler: cc is not on PATH")
    for name in ("worker", "load"):
        command = [compiler, "-O2", "-Wall", "-o", str(bench.folder / name), str(HERE / f"{name}.c")]
        compiling = bench.processes.start(command, core=bench.cores.load)
        if compiling.process.wait():
            raise BenchmarkError(f"{name}.c does not compile:\n{compiling.log.read_text()}")


@contextmanager
def working(bench: Bench, work: Work) -> Generator[int]:
    """Run a worker for the block, and yield its port."""
    command = [
        str(bench.folder / "worker"),
        "--size",
        str(work.answer_bytes),
        "--delay-ms",
        str(work.delay_ms),
    ]
    worker = bench.processes.start(command, core=bench.cores.load, piped=True)
    try:
        yield int(worker.line().removeprefix("port "))
    finally:
        worker.end()


# --- proxies and no proxy -----------------------------------------------------------------


@frozen(kw_only=True)
class Server:
    """What is asked: a proxy that runs, or (without a process) the worker itself."""

    name: str
    port: int
    process: Started | None = None
    idle_mb: float = 0.0


def measure(bench: Bench, work: Work, server: Server, worker_port: int) -> Round:
    """Return one round. What went wrong is told in it, not raised."""
    body = bench.folder / f"{work.name}.json"
    body.write_bytes(work.body())
    pids = server.process.members() if server.process else []
    try:
        reset_peaks(pids)
        served = counters(worker_port)
        load = bench.processes.start(
            _load_command(bench, work, server, body), core=bench.cores.load, piped=True
        )
        try:
            load.line()
            cpu_before = cpu_seconds(pids)
            result: dict[str, Any] = json.loads(load.line())
            cpu_s = cpu_seconds(pids) - cpu_before
            peak_mb = memory_mb(pids, peak=True)
        finally:
            load.end()
        figures = _figures(work, server, result, cpu_s=cpu_s, peak_mb=peak_mb)
        return Round(
            figures=figures, fault=_fault(work, server, result, _rise(served, counters(worker_port)))
        )
    except (BenchmarkError, OSError, HTTPException) as error:
        ended = server.process is not None and not server.process.alive
        said = f"; it ended: {server.process.last_words()}" if server.process and ended else ""
        return Round(fault=f"{error}{said}")


def _load_command(bench: Bench, work: Work, server: Server, body: Path) -> list[str]:
    seconds = MOST_BURST_S if work.once else bench.seconds
    options = {
        "port": server.port,
        "body": body,
        "path": work.path,
        "connections": work.callers,
        "stream": int(work.stream),
        "once": int(work.once),
        "warm-ms": int((STREAM_S if work.stream else bench.warm_s) * 1000),
        "for-ms": int(seconds * 1000),
    }
    words = (word for name, value in options.items() for word in (f"--{name}", str(value)))
    return [str(bench.folder / "load"), *words]


def _figures(
    work: Work, server: Server, result: dict[str, Any], *, cpu_s: float, peak_mb: float
) -> dict[str, float]:
    ended = result["events"] if work.stream else result["succeeded"]
    seconds = result["seconds"]
    figures: dict[str, float] = {
        "failed": result["failed"],
        "seconds": seconds,
        "per_second": ended / seconds,
        "callers": result["callers"],
    }
    names = ["event_p50_us", "event_p99_us", "gap_p99_us"] if work.stream else ["p50_us", "p99_us"]
    figures |= {name: result[name] for name in names if ended}
    if server.process is not None:
        figures |= {"idle_mb": server.idle_mb, "peak_mb": peak_mb}
        if ended:
            figures["cpu_us"] = cpu_s / ended * 1e6
        if work.once:
            figures["kb_a_call"] = (peak_mb - server.idle_mb) * 1024 / work.callers
    return figures


def _fault(work: Work, server: Server, result: dict[str, Any], served: dict[str, int]) -> str:
    if result["failed"]:
        return f"{result['failed']} calls failed, the first: {result['first_fault']}"
    if not work.once and result["callers"] < work.callers:
        return f"{result['callers']} of {work.callers} callers had been answered after 15 s"
    whole = result["succeeded"] * work.answer_bytes
    # LiteLLM writes its answers anew.
    if not work.stream and server.name != LITELLM and result["body_bytes"] < whole:
        return f"{result['succeeded']} answers had {result['body_bytes']} bytes, not {whole}"
    if served["streams" if work.stream else "answered"] < result["succeeded"]:
        return f"{result['succeeded']} answers, of which the worker gave {served}"
    return ""


# --- asking once --------------------------------------------------------------------------


def counters(worker_port: int) -> dict[str, int]:
    """Return the worker's counters."""
    status, body = _ask(worker_port, "GET", "/stats", b"", 10.0)
    if status != 200:
        raise BenchmarkError(f"the worker answered {status} when asked for its counters")
    return json.loads(body)


def _rise(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in ("answered", "streams", "events")}


def wait_for_answers(port: int, path: str, process: Started, patience_s: float) -> None:
    """Return once a server has answered a request through ``path`` with 200.

    Raises:
        BenchmarkError: it ended, or did not within the time.
    """
    asked = {"messages": [{"role": "user", "content": "?"}]} if path == CHAT else {"text": "?"}
    body = json.dumps({"model": "m", **asked}).encode()
    deadline = time.monotonic() + patience_s
    found = "nothing"
    while time.monotonic() < deadline:
        if not process.alive:
            raise BenchmarkError(f"it ended: {process.last_words()}")
        try:
            status, answer = _ask(port, "POST", path, body, patience_s)
        except (OSError, HTTPException) as error:
            found = str(error)
        else:
            if status == 200:
                return
            found = f"{status} {answer[:200].decode(errors='replace')}"
        time.sleep(0.05)
    raise BenchmarkError(f"no answer within {patience_s:g} s, last {found}; it said: {process.last_words()}")


def _ask(port: int, method: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def idle_memory_mb(process: Started) -> float:
    """Return what a process that has nothing to do holds."""
    return memory_mb(process.members())
