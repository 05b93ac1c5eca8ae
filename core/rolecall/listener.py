"""Serves an ASGI app on a socket that is bound already, in the running event loop.

Connections are :mod:`rolecall.serving.protocol`'s. The server is not uvicorn's: that one takes over signal
handlers, polls for its start and end, and can't be told to cut at once. It ends in one of two ways:
:meth:`Listener.stop` cuts, as a guard must whose engine is gone; :meth:`Listener.drain` fails nobody who can
still be answered.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from uvicorn.lifespan.on import LifespanOn
from uvicorn.server import ServerState

from rolecall.errors import RolecallError
from rolecall.serving.protocol import Http1Protocol

_log = logging.getLogger(__name__)

_BACKLOG = 2048

_ACCEPTED_A_TURN = 256
"""uvloop accepts one connection in each turn of its loop (libuv/libuv#3696), and under load turns are long:
of 512 new callers the last waited for seconds. So connections are accepted here, whatever the loop."""

_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_NO_ROOM_PAUSE_S = 0.5

_POLL_S = 0.02


class Listener:
    """Owns the socket from its making on. ``options`` are uvicorn's, e.g. ``timeout_keep_alive``."""

    def __init__(self, app: Any, bound: socket.socket, **options: Any) -> None:
        self._socket = bound
        self._state = ServerState()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._accepting: set[asyncio.Task[Any]] = set()
        self._resume: asyncio.TimerHandle | None = None
        # Date and Server headers are the engine's to set, and what a proxy claims of callers is nobody's.
        self._config = uvicorn.Config(
            app,
            interface="asgi3",
            http=Http1Protocol,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            **options,
        )

    async def start(self) -> None:
        """Accept connections."""
        self._config.load()
        # Accepted connections inherit it. asyncio sets it only on sockets that name their protocol, and a
        # socket that was bound early may not: head and body of an answer were then 40 ms apart.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._socket.listen(_BACKLOG)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._accept)

    async def drain(self, *, quiet_s: float, timeout_s: float) -> None:
        """Accept who waits, then nobody; return when all are answered and gone. :meth:`stop` is still due.

        For ``quiet_s`` callers may send on connections that they have open, and are told to open none here
        again: a connection that is closed while a request is on its way fails that request. ``timeout_s``,
        from the beginning, bounds the whole.
        """
        assert self._loop is not None, "only a listener that was started can be drained"
        deadline_s = self._loop.time() + timeout_s
        while self._accept() == _ACCEPTED_A_TURN:
            pass
        self._close()
        if self._accepting:
            await asyncio.wait(self._accepting)
        # In every answer from now on.
        self._state.default_headers = [(b"connection", b"close")]
        for connection in self._state.connections:
            connection.answer_last()  # pyright: ignore[reportAttributeAccessIssue]
        await self._until_empty(min(self._loop.time() + quiet_s, deadline_s))
        for connection in list(self._state.connections):
            connection.shutdown()
        await self._until_empty(deadline_s)

    async def stop(self) -> None:
        """Close the socket, cut all connections, cancel their handlers. Repeats do nothing."""
        self._close()
        for connection in list(self._state.connections):
            connection.transport.abort()  # pyright: ignore[reportAttributeAccessIssue]
        handlers = [*self._state.tasks, *self._accepting]
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)

    async def _until_empty(self, deadline_s: float) -> None:
        assert self._loop is not None
        # Nobody is told when a connection or a task of uvicorn's state has ended.
        while (self._state.connections or self._state.tasks) and self._loop.time() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    # --- accepting ------------------------------------------------------------------------

    def _accept(self) -> int:
        """Accept who waits, no more than a turn's share; return how many that were."""
        assert self._loop is not None
        for number in range(_ACCEPTED_A_TURN):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return number
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                # The caller stays in the backlog, so the loop would report it again at once.
                _log.warning("no connection can be accepted for %g s: %s", _NO_ROOM_PAUSE_S, error)
                self._loop.remove_reader(self._socket)
                self._resume = self._loop.call_later(_NO_ROOM_PAUSE_S, self._accept_again)
                return number
            connection.setblocking(False)
            accepted = self._loop.create_task(
                self._loop.connect_accepted_socket(self._connection, connection)
            )
            self._accepting.add(accepted)
            accepted.add_done_callback(self._accepted)
        return _ACCEPTED_A_TURN

    def _accept_again(self) -> None:
        assert self._loop is not None
        self._loop.add_reader(self._socket, self._accept)

    def _accepted(self, accepted: asyncio.Task[Any]) -> None:
        self._accepting.discard(accepted)
        if not accepted.cancelled() and (error := accepted.exception()) is not None:
            _log.warning("a connection was lost while it was accepted: %s", error)

    def _connection(self) -> asyncio.Protocol:
        protocol: Any = self._config.http_protocol_class
        return protocol(config=self._config, server_state=self._state, app_state={})

    def _close(self) -> None:
        if self._resume is not None:
            self._resume.cancel()
        if self._loop is not None and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
        self._socket.close()


@asynccontextmanager
async def lifespan(app: Any) -> AsyncGenerator[None]:
    """Run an ASGI app's lifespan for the length of a block.

    Raises:
        RolecallError: the app did not start; its log has the reason.
    """
    config = uvicorn.Config(app, log_config=None, lifespan="on")
    config.load()
    running = LifespanOn(config)
    await running.startup()
    if running.should_exit:
        raise RolecallError("the app did not start; see the log")
    try:
        yield
    finally:
        await running.shutdown()
