"""Serves an ASGI app on a real socket for the length of a block: what no in-process transport shows."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from uvicorn.lifespan.on import LifespanOn

from rolecall.guard.listener import Listener


@asynccontextmanager
async def serving(app: Any, *, port: int = 0, **options: Any) -> AsyncGenerator[str]:
    """Serve ``app`` on a loopback port, by default a free one, and yield its base URL.

    ``options`` are uvicorn's, e.g. ``timeout_keep_alive``. At the end open connections are cut and
    running handlers cancelled.
    """
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    config = uvicorn.Config(app, log_config=None, lifespan="on")
    config.load()
    lifespan = LifespanOn(config)
    listener = Listener(app, bound, **options)
    await lifespan.startup()
    await listener.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        await listener.stop()
        await lifespan.shutdown()
