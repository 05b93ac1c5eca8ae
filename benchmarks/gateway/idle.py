"""What thousands of idle connections cost a gateway, and whether anybody who asks notices them.

    python benchmarks/gateway/idle.py [--connections 10000]

One gateway as ``rolecall gateway`` serves it, before one worker. A caller asks it over one connection; then
every idle connection is opened, answered once (``GET /health``) and left alone, but for the last tenth, which
never send a byte; then the caller asks again. At the end all must still be open, and the gateway must give up
what it held of them once they are gone. Exits with 1 if a connection was lost, a request failed, or something
was not given up.

It needs as many open files (``ulimit -Hn``) as ``--connections`` and a few more.
"""

from __future__ import annotations

import argparse
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles

from attrs import frozen
from measure import Bench, Server, compile_programs, working
from processes import BenchmarkError, Cores, Processes, cpu_seconds, memory_mb, pinned
from proxies import PROXIES, Proxy, start
from works import GENERATE, ROLECALL, WORKS

ASKED = 500
AT_ONCE = 256
"""Connections that are opened at a time; more would fill the backlog."""
QUIET_S = 2.0
PATIENCE_S = 30.0

_HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
_BODY = b'{"text": "?"}'
_GENERATE = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)


@frozen(kw_only=True)
class Latency:
    """Of one caller's requests, in milliseconds."""

    p50: float
    p99: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--connections", type=int, default=10_000)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < options.connections + 200:
        sys.exit(f"{hard} open files are allowed (ulimit -Hn); {options.connections + 200} are needed")
    cores = Cores.chosen()
    with tempfile.TemporaryDirectory(prefix="rolecall-idle-") as name, pinned(cores.load):
        folder = Path(name)
        with Processes(folder) as processes:
            bench = Bench(folder=folder, processes=processes, cores=cores, seconds=QUIET_S, warm_s=0.0)
            compile_programs(bench)
            with working(bench, WORKS[0]) as worker_port:
                gateway = start(bench, _rolecall(), worker_port, GENERATE)
                try:
                    faults = run(gateway, options.connections)
                except BenchmarkError as error:
                    faults = [str(error)]
    for fault in faults:
        print(f"FAULT: {fault}")
    sys.exit(bool(faults))


def run(gateway: Server, connections: int) -> list[str]:
    """Measure, print, and return what went wrong."""
    assert gateway.process is not None
    pids = gateway.process.members()
    faults: list[str] = []
    with _connected(gateway.port) as caller:
        alone = asked(caller)
        files, memory = _files(pids), memory_mb(pids)
        began = time.monotonic()
        silent = connections // 10
        idle = opened(gateway.port, connections - silent, _HEALTH) + opened(gateway.port, silent, b"")
        opening_s = time.monotonic() - began
        held_kb = (memory_mb(pids) - memory) * 1024 / connections
        cpu = cpu_seconds(pids)
        time.sleep(QUIET_S)
        quiet = (cpu_seconds(pids) - cpu) / QUIET_S
        beside = asked(caller)
        lost = sum(1 for one in idle if _ended(one))
        if lost:
            faults.append(f"{lost} idle connections were closed")
        for one in idle:
            one.close()
        kept = _wait_for_files(pids, files)
        if kept:
            faults.append(f"{kept} connections are still held after their callers have gone")
    print(f"{connections:,} idle connections, opened in {opening_s:.1f} s, {silent:,} of them silent")
    print(f"memory of the gateway: {held_kb:.1f} KB a connection ({memory:.0f} MB before)")
    print(f"CPU while nobody asks: {quiet:.1%} of a core")
    for name, latency in (("alone", alone), ("beside them", beside)):
        print(f"one caller {name}: p50 {latency.p50:.2f} ms, p99 {latency.p99:.2f} ms")
    return faults


def opened(port: int, count: int, ask: bytes) -> list[socket.socket]:
    """Return connections that were answered once, or never used if there is nothing to ask."""
    found: list[socket.socket] = []
    while len(found) < count:
        some = [_connected(port) for _ in range(min(AT_ONCE, count - len(found)))]
        for one in some:
            one.sendall(ask)
        for one in some:
            if ask:
                _answer(one)
        found += some
    return found


def asked(caller: socket.socket) -> Latency:
    """Return how long a caller waits for its answers.

    Raises:
        BenchmarkError: one failed.
    """
    times: list[float] = []
    for _ in range(ASKED):
        began = time.perf_counter()
        caller.sendall(_GENERATE)
        _answer(caller)
        times.append((time.perf_counter() - began) * 1000)
    return Latency(p50=median(times), p99=quantiles(times, n=100)[98])


def _answer(connection: socket.socket) -> None:
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += _some(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise BenchmarkError(f"the gateway answered {answer[:200]!r}")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    left = int(lengths[0].partition(b":")[2]) - len(body)
    while left > 0:
        left -= len(_some(connection))


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(2**16)
    if not data:
        raise BenchmarkError("the gateway closed a connection instead of answering")
    return data


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def _ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    with suppress(BlockingIOError):
        return connection.recv(1) == b""
    return False


def _files(pids: Sequence[int]) -> int:
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)


def _wait_for_files(pids: Sequence[int], before: int) -> int:
    """Return how many files are open beyond those of before when that number has stopped to matter."""
    deadline = time.monotonic() + PATIENCE_S
    while (kept := _files(pids) - before) > 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    return max(0, kept)


def _rolecall() -> Proxy:
    return next(proxy for proxy in PROXIES if proxy.name == ROLECALL)


if __name__ == "__main__":
    main()
