"""The proxy one writes first: Starlette in front, httpx behind, bytes passed on as they come.

python serve_plain.py --port N --engine http://127.0.0.1:N
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route


def proxy_to(engine: str) -> Starlette:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = httpx.AsyncClient(base_url=engine, limits=limits, timeout=None, trust_env=False)

    async def forward(request: Request) -> StreamingResponse:
        headers = {"content-type": "application/json"}
        asked = client.build_request("POST", request.url.path, headers=headers, content=await request.body())
        answer = await client.send(asked, stream=True)
        passed = {
            name: value
            for name, value in answer.headers.items()
            if name in {"content-type", "content-length"}
        }
        closing = BackgroundTask(answer.aclose)
        return StreamingResponse(
            answer.aiter_raw(), status_code=answer.status_code, headers=passed, background=closing
        )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with client:
            yield

    return Starlette(routes=[Route("/{path:path}", forward, methods=["POST"])], lifespan=lifespan)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", required=True)
    options = parser.parse_args()
    app = proxy_to(options.engine)
    uvicorn.run(
        app, host="127.0.0.1", port=options.port, backlog=4_096, log_level="warning", access_log=False
    )


if __name__ == "__main__":
    main()
