"""Serves an ASGI app on a real socket for the length of a block: what no in-process transport shows."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from rolecall.listener import Listener, lifespan


@asynccontextmanager
async def serving(app: Any, *, port: int = 0, **options: Any) -> AsyncGenerator[str]:
    """Serve ``app`` on a loopback port, by default a free one, and yield its base URL.

    ``options`` are uvicorn's, e.g. ``timeout_keep_alive``. At the end open connections are cut and
    running handlers cancelled.
    """
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    async with lifespan(app):
        listener = Listener(app, bound, **options)
        await listener.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            await listener.stop()
