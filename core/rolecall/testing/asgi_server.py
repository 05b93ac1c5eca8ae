"""Serves an ASGI app on a real socket for the length of a block: what no in-process transport shows.

uvicorn's protocol without uvicorn's server, whose start and stop poll for tenths of a second and take
over signal handlers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from uvicorn.lifespan.on import LifespanOn
from uvicorn.server import ServerState


@asynccontextmanager
async def serving(app: Any, *, port: int = 0, **options: Any) -> AsyncGenerator[str]:
    """Serve ``app`` on a loopback port, by default a free one, and yield its base URL.

    ``options`` are uvicorn's, e.g. ``timeout_keep_alive``. At the end open connections are cut and
    running handlers cancelled.
    """
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="on", **options)
    config.load()
    lifespan = LifespanOn(config)
    state = ServerState()
    protocol: Any = config.http_protocol_class

    def connection() -> asyncio.Protocol:
        return protocol(config=config, server_state=state, app_state=lifespan.state)

    await lifespan.startup()
    server = await asyncio.get_running_loop().create_server(
        connection, "127.0.0.1", port, backlog=2048, reuse_address=True
    )
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for open_connection in list(state.connections):
            open_connection.transport.abort()
        for handler in list(state.tasks):
            handler.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        await lifespan.shutdown()
