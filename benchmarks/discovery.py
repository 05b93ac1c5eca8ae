"""How soon a thousand waiting clients see a change of a role's topology, and what that costs the gateway.

    python benchmarks/discovery.py [--clients 1000] [--replicas 64] [--changes 20] [--hop]

Two processes, each on a core of its own where there are two: a gateway as ``rolecall gateway`` serves it,
over a registry of its own, and this one, whose clients each keep a long poll of ``/engines`` open. A client
has seen a change when it has the whole new snapshot. Counted from just before the registry is told; both
processes read the machine's one monotonic clock. With ``--hop`` the gateway learns of it by a long poll of
another gateway, as a front of ``rolecall gateway`` does. The target is a median of 100 ms.

CPU is the gateway's process. A *read* is what a client does that doesn't wait: conditional, answered 304.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from statistics import median, quantiles
from typing import Any

import psutil
from uvicorn.loops.auto import auto_loop_factory

from rolecall.client.http1_transport import Http1Transport
from rolecall.client.snapshot_reader import HttpSnapshotReader
from rolecall.discovery.registry import Registry
from rolecall.discovery.snapshot import Snapshot
from rolecall.discovery.source import SnapshotSource
from rolecall.gateway.app import build_gateway
from rolecall.gateway.settings import GatewaySettings
from rolecall.listener import Listener, lifespan
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.snapshots import model_entry, snapshot_of

ROLE = PlainRole()
TARGET_MS = 100.0
AT_ONCE = 256
"""Connections opened at a time; more would fill the backlog."""
READS = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--hop", action="store_true", help="the gateway follows another gateway")
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    bound = socket.create_server(("127.0.0.1", 0), backlog=2048)
    gateway = multiprocessing.Process(
        target=run, args=(serve, bound, theirs, options.replicas, options.hop), daemon=True
    )
    gateway.start()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, cores[:1])
        os.sched_setaffinity(gateway.pid or 0, cores[1:2])
    try:
        run(measure, bound.getsockname()[1], ours, psutil.Process(gateway.pid), options)
    finally:
        gateway.terminate()
        gateway.join()


def run(work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    """Run it on the loop that ``rolecall gateway`` takes."""
    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(work(*arguments))


# --- the gateway --------------------------------------------------------------------------


def snapshot(replicas: int, revision: int) -> Snapshot:
    urls = [f"http://10.0.0.{number % 250}:{30_000 + number}" for number in range(replicas)]
    entry = model_entry("m", urls, generation=revision)
    return snapshot_of({"m": entry}, role=ROLE.name, policy=ROLE.policy.name, revision=revision)


async def serve(bound: socket.socket, told: Connection, replicas: int, hop: bool) -> None:
    """Publish a change whenever one is asked for, and answer with the time just before."""
    registry = Registry()
    registry.publish(ROLE.name, snapshot(replicas, 1).to_json())
    reader = registry.reader(ROLE.name)
    async with AsyncExitStack() as stack:
        if hop:
            first = socket.create_server(("127.0.0.1", 0))
            await start(stack, SnapshotSource(reader, role=ROLE.name), first)
            url = f"http://127.0.0.1:{first.getsockname()[1]}"
            reader = HttpSnapshotReader(Http1Transport(max_concurrency=2), url)
        await start(stack, SnapshotSource(reader, role=ROLE.name), bound)
        told.send("ready")
        asked = asyncio.Semaphore(0)
        asyncio.get_running_loop().add_reader(told.fileno(), lambda: (told.recv(), asked.release()))
        for revision in range(2, 10**9):
            await asked.acquire()
            text = snapshot(replicas, revision).to_json()
            began = time.monotonic()
            registry.publish(ROLE.name, text)
            told.send(began)


async def start(stack: AsyncExitStack, source: SnapshotSource, bound: socket.socket) -> None:
    gateway = build_gateway(ROLE, source, GatewaySettings())
    await stack.enter_async_context(lifespan(gateway))
    listener = Listener(gateway, bound)
    await listener.start()
    stack.push_async_callback(listener.stop)


# --- clients ------------------------------------------------------------------------------


class Client(asyncio.Protocol):
    """Keeps a long poll open: each answer that tells of a change is asked on from at once.

    ``seen`` is when the last change was there whole.
    """

    def __init__(self, answered: Callable[[Client, int], None]) -> None:
        self._answered = answered
        self._received = b""
        self.seen = 0.0
        self.etag = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.ask()

    def ask(self, wait_s: int = 30) -> None:
        since = b"&since=" + self.etag if self.etag else b""
        self._transport.write(b"GET /engines?wait_s=%d%b HTTP/1.1\r\nhost: gateway\r\n\r\n" % (wait_s, since))

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        status = int(head[9:12])
        if status == 200 and len(body) < int(fields[b"content-length"]):
            return
        self.seen = time.monotonic()
        self._received = b""
        if status not in (200, 304):
            raise RuntimeError(head.decode())
        self.etag = fields[b"etag"].strip(b'"')
        self._answered(self, status)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            raise exc


async def measure(
    port: int, gateway: Connection, process: psutil.Process, options: argparse.Namespace
) -> None:
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, gateway.recv)
    waiting: set[Client] = set()
    all_seen = asyncio.Event()

    def changed(client: Client, status: int) -> None:
        if status == 200:
            waiting.discard(client)
            if not waiting:
                all_seen.set()
        client.ask()

    clients: list[Client] = []
    for first in range(0, options.clients, AT_ONCE):
        waiting.update(new := [Client(changed) for _ in range(min(AT_ONCE, options.clients - first))])
        all_seen.clear()
        clients += new
        for client in new:
            await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
        await all_seen.wait()
    rounds: list[list[float]] = []
    cpu: list[float] = []
    for _ in range(options.changes):
        await asyncio.sleep(0.2)
        waiting.update(clients)
        all_seen.clear()
        before = cpu_ms(process)
        gateway.send("change")
        began = await loop.run_in_executor(None, gateway.recv)
        await all_seen.wait()
        rounds.append([(client.seen - began) * 1000 for client in clients])
        await asyncio.sleep(0.2)  # the next long polls are the change's cost too
        cpu.append(cpu_ms(process) - before)
    medians = [median(times) for times in rounds]
    print(f"{options.clients:,} clients, {options.replicas} replicas, {options.changes} changes")
    print(f"load average {os.getloadavg()[0]:.1f}\n")
    print("from publishing to the client, ms     median     p99    last")
    for name, pick in (("median of the changes", median), ("worst change", max)):
        p99 = pick([quantiles(times, n=100)[98] for times in rounds])
        print(f"{name:<34}{pick(medians):>10.1f}{p99:>8.1f}{pick([max(times) for times in rounds]):>8.1f}")
    each = median(cpu) / options.clients * 1000
    print(f"\nCPU of the gateway a change: {median(cpu):.0f} ms, a client: {each:.0f} µs")
    verdict = "reached" if median(medians) <= TARGET_MS else "MISSED"
    print(f"target, a median within {TARGET_MS:.0f} ms: {verdict}")
    await reads(port, process)


async def reads(port: int, process: psutil.Process) -> None:
    """One client that asks and asks again."""
    loop = asyncio.get_running_loop()
    left, ended = READS, asyncio.Event()

    def answered(client: Client, _: int) -> None:
        nonlocal left
        left -= 1
        client.ask(0) if left else ended.set()

    before, began = cpu_ms(process), time.monotonic()
    await loop.create_connection(lambda: Client(answered), "127.0.0.1", port)
    await ended.wait()
    took = (time.monotonic() - began) / READS * 1e6
    each = (cpu_ms(process) - before) / READS * 1000
    print(f"a read that is answered 304: {took:.0f} µs, {each:.0f} µs of CPU")


def cpu_ms(process: psutil.Process) -> float:
    times = process.cpu_times()
    return (times.user + times.system) * 1000


if __name__ == "__main__":
    main()
