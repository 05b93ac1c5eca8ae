"""The listener on real sockets: a burst of callers, and an end that fails nobody."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from rolecall.errors import RolecallError
from rolecall.listener import Listener, lifespan

BURST = 100
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


class App:
    """Answers once it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.asked = asyncio.Semaphore(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.release()
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def of(cls, listener: Listening) -> Caller:
        return cls(*await asyncio.open_connection(*listener.address))

    def ask(self) -> None:
        self._writer.write(REQUEST)

    async def answer(self) -> bytes:
        async with asyncio.timeout(10):
            return await self._reader.readuntil(b"\r\n\r\n") + await self._reader.readexactly(2)

    async def closed(self) -> bool:
        async with asyncio.timeout(10):
            return await self._reader.read() == b""


class Listening:
    def __init__(self) -> None:
        self.app = App()
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=BURST + 1)
        self.address = self.socket.getsockname()
        self.listener = Listener(self.app, self.socket)


@pytest.fixture
async def listening() -> AsyncIterator[Listening]:
    made = Listening()
    await made.listener.start()
    yield made
    await made.listener.stop()


def uvloop_loop() -> asyncio.AbstractEventLoop:
    return pytest.importorskip("uvloop").new_event_loop()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop_loop])
def test_a_burst_is_accepted_in_a_few_turns_of_the_loop(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def turns() -> int:
        listening = Listening()
        listening.app.may_answer.set()
        callers = [socket.create_connection(listening.address) for _ in range(BURST)]
        for caller in callers:
            caller.sendall(REQUEST)
        await listening.listener.start()
        turns = 0
        for _ in range(BURST):
            while listening.app.asked.locked():
                turns += 1
                await asyncio.sleep(0)
            await listening.app.asked.acquire()
        for caller in callers:
            caller.close()
        await listening.listener.stop()
        return turns

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        # One connection a turn would be a hundred.
        assert runner.run(turns()) < BURST / 4


async def test_draining_answers_who_waits_and_takes_nobody_new(listening: Listening) -> None:
    caller = await Caller.of(listening)
    caller.ask()
    await listening.app.asked.acquire()
    # This one is in the backlog: the loop has had no turn to accept it.
    waiting = socket.create_connection(listening.address)
    waiting.sendall(REQUEST)
    draining = asyncio.create_task(listening.listener.drain(quiet_s=5, timeout_s=10))
    await listening.app.asked.acquire()
    with pytest.raises(ConnectionRefusedError):
        await Caller.of(listening)
    listening.app.may_answer.set()
    assert b"connection: close" in await caller.answer()
    assert await caller.closed()
    late = Caller(*await asyncio.open_connection(sock=waiting))
    assert (await late.answer()).endswith(b"ok")
    assert await late.closed()
    await asyncio.wait_for(draining, 4)


async def test_a_connection_that_was_kept_may_be_used_once_more(listening: Listening) -> None:
    listening.app.may_answer.set()
    caller, idle = await Caller.of(listening), await Caller.of(listening)
    for each in (caller, idle):
        each.ask()
        assert b"connection: close" not in await each.answer()
    draining = asyncio.create_task(listening.listener.drain(quiet_s=0.2, timeout_s=10))
    await asyncio.sleep(0)
    caller.ask()
    assert b"connection: close" in await caller.answer()
    assert await caller.closed()
    assert await idle.closed()
    await draining


async def test_a_drain_has_its_limit_and_what_is_left_is_cut(listening: Listening) -> None:
    caller = await Caller.of(listening)
    caller.ask()
    await listening.app.asked.acquire()
    await asyncio.wait_for(listening.listener.drain(quiet_s=0, timeout_s=0.1), 5)
    await listening.listener.stop()
    with suppress(ConnectionResetError):
        assert await caller.closed()


async def test_without_a_free_file_the_caller_waits_and_is_served_later(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolecall.listener._NO_ROOM_PAUSE_S", 0.05)
    listening.app.may_answer.set()
    caller = socket.socket()
    taken: list[socket.socket] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(socket.socket())
        caller.connect(listening.address)
        caller.sendall(REQUEST)
        await asyncio.sleep(0.02)
        assert listening.app.asked.locked()
        taken.pop().close()
        await asyncio.wait_for(listening.app.asked.acquire(), 10)
    finally:
        for each in (*taken, caller):
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_an_app_that_does_not_start_is_an_error() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("no")

    with pytest.raises(RolecallError, match="did not start"):
        async with lifespan(broken):
            pass
