"""What the admission guard costs: the same calls straight to an engine and through its door, in one run.

    python benchmarks/guard.py [--seconds 3] [--rounds 3]

Three processes: an engine that answers at once (2 KB, or a paced stream), a door before it, and this
one, which calls. Straight and through the door take turns; shown are medians over the rounds. Latencies
hold this process's own work, the same in both columns; CPU is the door's process alone.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from multiprocessing.connection import Connection
from statistics import median, quantiles

import psutil
from attrs import frozen

from rolecall.client.http1_transport import Http1Transport
from rolecall.client.transport import Outgoing
from rolecall.guard.door import Door

try:
    import uvloop
except ImportError:
    uvloop = None

ANSWER = b'{"text": "' + b"x" * 1_750 + b'", "meta_info": {"id": "r"}}'
REQUEST = b'{"rid": "r", "text": "2 + 2 =", "sampling_params": {"max_new_tokens": 8}}'
STREAM_REQUEST = b'{"rid": "r", "stream": true}'
EVENTS, PACE_S = 50, 0.02


class Engine(asyncio.Protocol):
    """Just enough HTTP to be asked by one caller a connection at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(body) < length:
            return
        self._received = b""
        if b'"stream"' in body:
            self._task = asyncio.ensure_future(self._stream())
            return
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER)
            + ANSWER
        )

    async def _stream(self) -> None:
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(EVENTS):
            await asyncio.sleep(PACE_S)
            event = b"data: %d\n\n" % time.monotonic_ns()
            self._transport.write(b"%x\r\n%s\r\n" % (len(event), event))
        self._transport.write(b"0\r\n\r\n")


def bound() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    return listener


def run_engine(told: Connection) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0, backlog=2048)
        told.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await server.serve_forever()

    serve(main)


def run_door(told: Connection, engine_url: str) -> None:
    async def main() -> None:
        door = Door(bound())
        await door.start(engine_url)
        door.open()
        told.send(door.url)
        await asyncio.Event().wait()

    serve(main)


def serve(main: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run in the event loop that a Ray worker has: uvloop's, where it is installed."""
    raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
        runner.run(main())


def raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@frozen(kw_only=True)
class Measured:
    """``calls`` are answers, or events of streams; ``latencies`` in µs."""

    calls: int
    seconds: float
    latencies: list[float]
    cpu_s: float


Begin = Callable[[], None]
"""Called when the measured part begins."""


async def ask(transport: Http1Transport, url: str, body: bytes) -> bytes:
    headers = [(b"content-type", b"application/json")]
    incoming = await transport.send(
        Outgoing(method="POST", url=f"{url}/generate", headers=headers, body=body)
    )
    answer = b"".join([chunk async for chunk in incoming.chunks()])
    await incoming.aclose()
    return answer


async def whole_answers(url: str, callers: int, seconds: float, begin: Begin) -> list[float]:
    transport = Http1Transport(max_concurrency=callers)
    latencies: list[float] = []

    async def call_on() -> None:
        while time.monotonic() < ends:
            began = time.perf_counter()
            await ask(transport, url, REQUEST)
            latencies.append((time.perf_counter() - began) * 1e6)

    ends = time.monotonic() + 0.5  # a warm-up that opens the connections
    await asyncio.gather(*(call_on() for _ in range(callers)))
    latencies.clear()
    begin()
    ends = time.monotonic() + seconds
    await asyncio.gather(*(call_on() for _ in range(callers)))
    await transport.aclose()
    return latencies


async def streams(url: str, callers: int, seconds: float, begin: Begin) -> list[float]:
    transport = Http1Transport(max_concurrency=callers)
    delays: list[float] = []

    async def read_on() -> None:
        headers = [(b"content-type", b"application/json")]
        request = Outgoing(method="POST", url=f"{url}/generate", headers=headers, body=STREAM_REQUEST)
        while time.monotonic() < ends:
            incoming = await transport.send(request)
            async for chunk in incoming.chunks():
                arrived = time.monotonic_ns()
                delays.extend((arrived - int(line[6:])) / 1e3 for line in chunk.split(b"\n\n") if line)
            await incoming.aclose()

    begin()
    ends = time.monotonic() + seconds
    await asyncio.gather(*(read_on() for _ in range(callers)))
    await transport.aclose()
    return delays


Load = Callable[[str, int, float, Begin], Awaitable[list[float]]]


def measure(load: Load, url: str, callers: int, seconds: float, door: psutil.Process) -> Measured:
    began: list[float] = []

    def reading() -> list[float]:
        used = door.cpu_times()
        return [used.user + used.system, time.monotonic()]

    latencies = asyncio.run(load(url, callers, seconds, lambda: began.extend(reading())))
    cpu_s, wall_s = (after - before for before, after in zip(began, reading(), strict=True))
    return Measured(calls=len(latencies), seconds=wall_s, latencies=latencies, cpu_s=cpu_s)


def line(name: str, straight: list[Measured], through: list[Measured]) -> str:
    def at(measured: list[Measured], percent: int) -> float:
        return median(quantiles(one.latencies, n=100)[percent - 1] for one in measured)

    cells = [
        name,
        *(f"{median(one.calls / one.seconds for one in side):,.0f}" for side in (straight, through)),
        *(f"{at(side, 50):,.0f} / {at(side, 99):,.0f}" for side in (straight, through)),
        f"{median(one.cpu_s / one.calls for one in through) * 1e6:,.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    raise_file_limit()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    engine = context.Process(target=run_engine, args=(there,), daemon=True)
    engine.start()
    engine_url: str = here.recv()
    door = context.Process(target=run_door, args=(there, engine_url), daemon=True)
    door.start()
    door_url: str = here.recv()
    watched = psutil.Process(door.pid)
    print(
        "| load | straight /s | through /s | straight p50 / p99 µs | through p50 / p99 µs | door's CPU µs |"
    )
    print("|---|---|---|---|---|---|")
    try:
        loads: list[tuple[str, Load, int]] = [
            ("answers of 2 KB, 1 caller", whole_answers, 1),
            ("answers of 2 KB, 64 callers", whole_answers, 64),
            ("answers of 2 KB, 512 callers", whole_answers, 512),
            (f"events, 128 streams, one each {PACE_S * 1000:.0f} ms", streams, 128),
        ]
        for name, load, callers in loads:
            straight: list[Measured] = []
            through: list[Measured] = []
            for _ in range(options.rounds):
                straight.append(measure(load, engine_url, callers, options.seconds, watched))
                through.append(measure(load, door_url, callers, options.seconds, watched))
            print(line(name, straight, through), flush=True)
    finally:
        for process in (door, engine):
            process.terminate()
            process.join()


if __name__ == "__main__":
    main()
