"""Two thousand requests at an engine at once, by the direct client: none fails for want of patience."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolecall.api import ROLECALL_API, Candidate, Need, RoutingRequest
from rolecall.client.inference_client import InferenceClient
from rolecall.testing.asgi_server import serving
from rolecall.testing.snapshots import model_entry, snapshot_of

CALLS = 2000


class Policy:
    name: ClassVar[str] = "first"
    api_version: ClassVar[int] = ROLECALL_API
    needs: ClassVar[frozenset[Need]] = frozenset()
    router: ClassVar[None] = None

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate:
        return candidates[0]


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of every connection are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * CALLS + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"needs {needed} open files, the machine allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
async def test_two_thousand_long_requests_at_once_all_succeed() -> None:
    at_once = 0
    all_here = asyncio.Event()

    async def generate(request: Request) -> Response:
        nonlocal at_once
        await request.body()
        at_once += 1
        if at_once == CALLS:
            all_here.set()
        # Nobody is answered before everybody is here.
        await all_here.wait()
        return JSONResponse({"text": "ok"})

    async def engines(request: Request) -> Response:
        return Response(
            snapshot.to_json(), media_type="application/json", headers={"etag": f'"{snapshot.etag}"'}
        )

    app: Any = Starlette(
        routes=[Route("/generate", generate, methods=["POST"]), Route("/critic/engines", engines)]
    )
    async with serving(app) as url:
        snapshot = snapshot_of({"m": model_entry("m", [url])}, policy="first")
        client = InferenceClient(f"{url}/critic", policy=Policy, max_concurrency=CALLS, timeout_s=280)
        answers = await asyncio.gather(*(client.generate({"text": str(n)}) for n in range(CALLS)))
        await client.aclose()
    assert answers == [{"text": "ok"}] * CALLS
