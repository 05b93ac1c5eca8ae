"""A scripted engine on a real socket, with a thread of its own: for tests with and without an event loop.

    with engine_server() as server:
        server.behaviour.stuck = True
        ...
        server.die(Death.RESET)

The port stays the server's until the block ends, also while it is dead: nobody else can answer there.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, TypeVar

from rolecall.listener import Listener
from rolecall.testing.scripted_engine import Behaviour, Received, ScriptedEngine

T = TypeVar("T")

_HOST = "127.0.0.1"
_PATIENCE_S = 30.0
_BEGUN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Death(StrEnum):
    """How a dead engine's connections behave.

    REFUSED: nothing listens. RESET: the connection is reset once something was sent. HALF_CLOSED: an answer
    is begun, and the server's side closed in the middle of it. HUNG: connections are taken, nothing is ever
    answered, as by a stopped process.
    """

    REFUSED = "refused"
    RESET = "reset"
    HALF_CLOSED = "half_closed"
    HUNG = "hung"


class EngineServer:
    """The server; made by :func:`engine_server`.

    engine: what answers. Its attributes may be read and, like ``behaviour``, changed from the test's
        thread; its coroutines belong to the server's, use the methods here instead.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = ScriptedEngine()
        self._loop = loop
        self._port = 0
        self._serving: Listener | asyncio.Server | socket.socket | None = None

    @property
    def base_url(self) -> str:
        return f"http://{_HOST}:{self._port}"

    @property
    def behaviour(self) -> Behaviour:
        return self.engine.behaviour

    @property
    def received(self) -> list[Received]:
        return self.engine.received

    def until_running(self, count: int, timeout_s: float = _PATIENCE_S) -> None:
        """Block until that many requests are at work (0: until none is).

        Raises:
            TimeoutError: that did not come.
        """
        self._do(self.engine.until_running(count), timeout_s)

    def until_aborted(self, count: int = 1, timeout_s: float = _PATIENCE_S) -> None:
        """Block until that many aborts have come.

        Raises:
            TimeoutError: they did not come.
        """
        self._do(self.engine.until_aborted(count), timeout_s)

    def hold(self) -> None:
        """Stop all streams after their first event, until :meth:`let_go`."""
        self.behaviour.gate = asyncio.Event()

    def let_go(self) -> None:
        """Let streams go on to their ends."""
        if self.behaviour.gate is not None:
            self._loop.call_soon_threadsafe(self.behaviour.gate.set)

    def die(self, death: Death) -> None:
        """Cut all connections; from now on behave like ``death``."""
        self._do(self._die(death))

    def live(self) -> None:
        """Serve again, at the same address. Serving already, do nothing."""
        self._do(self._live())

    async def _live(self) -> None:
        if isinstance(self._serving, Listener):
            return
        await self._close()
        listener = Listener(self.engine.app, self._bound())
        await listener.start()
        self._serving = listener

    async def _die(self, death: Death) -> None:
        await self._close()
        bound = self._bound()
        if death is Death.REFUSED:
            self._serving = bound  # bound and not listening
        elif death is Death.HUNG:
            bound.listen()
            self._serving = bound
        else:
            answer = _reset if death is Death.RESET else _close_in_mid_answer
            self._serving = await asyncio.start_server(answer, sock=bound)

    async def _close(self) -> None:
        match self._serving:
            case Listener() as listener:
                await listener.stop()
            case socket.socket() as bound:
                bound.close()
            case asyncio.Server() as server:
                server.close()
            case None:
                pass
        self._serving = None

    def _bound(self) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((_HOST, self._port))
        self._port = bound.getsockname()[1]
        return bound

    def _do(self, work: Coroutine[Any, Any, T], timeout_s: float = _PATIENCE_S) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(timeout_s):
                return await work

        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result()

    async def _end(self) -> None:
        await self._close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def engine_server() -> Generator[EngineServer]:
    """Serve a scripted engine on a free loopback port for the length of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="scripted engine", daemon=True)
    thread.start()
    server = EngineServer(loop)
    try:
        server.live()
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server._end(), loop).result()  # pyright: ignore[reportPrivateUsage]
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.close()


async def _close_in_mid_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(_BEGUN)
    writer.write_eof()
    while await reader.read(2**16):
        pass
    writer.close()
