"""Serves an ASGI app on a socket that is bound already, in the running event loop, and can cut at once.

uvicorn's protocol without uvicorn's server: that one takes over signal handlers, polls for its start and
end, and waits for connections to end by themselves.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.server import ServerState

_BACKLOG = 2048


class Listener:
    """Owns the socket from its making on. ``options`` are uvicorn's, e.g. ``timeout_keep_alive``."""

    def __init__(self, app: Any, bound: socket.socket, **options: Any) -> None:
        self._socket = bound
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        # Date and Server headers are the engine's to set, and what a proxy claims of callers is nobody's.
        self._config = uvicorn.Config(
            app,
            interface="asgi3",
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
        protocol: Any = self._config.http_protocol_class

        def connection() -> asyncio.Protocol:
            return protocol(config=self._config, server_state=self._state, app_state={})

        self._server = await asyncio.get_running_loop().create_server(
            connection, sock=self._socket, backlog=_BACKLOG
        )

    async def stop(self) -> None:
        """Close the socket, cut all connections, cancel their handlers. Repeats do nothing."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
        for connection in list(self._state.connections):
            connection.transport.abort()  # pyright: ignore[reportAttributeAccessIssue]
        handlers = list(self._state.tasks)
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
