"""Serves an ASGI app on a real socket for the length of a block: what no in-process transport shows."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


@asynccontextmanager
async def serving(app: Any, **options: Any) -> AsyncGenerator[str]:
    """Serve ``app`` by uvicorn on a free loopback port and yield its base URL.

    ``options`` are uvicorn's, e.g. ``timeout_keep_alive``. At the end open connections are cut.
    """
    options = {"log_level": "critical", "timeout_graceful_shutdown": 1, **options}
    server = _Server(uvicorn.Config(app, **options))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await server.up.wait()
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            await task
