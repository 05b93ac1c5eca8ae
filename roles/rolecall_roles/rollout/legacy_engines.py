"""``GET /engines?schema=1``: rank, state and URL of every replica's head, for autoscalers and people.

A diagnosis, never used for routing: no process ids, no node data, no followers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def legacy_engines(request: Request, gateway: Any) -> Response:
    """Answer the heads in the order of models and replicas; ``rank`` counts them from 0."""
    from starlette.responses import JSONResponse  # only a gateway answers; planning must be quick

    del request
    snapshot = await gateway.snapshot()
    heads = [engine for model in snapshot.models.values() for engine in model.engines]
    engines = [
        {"rank": rank, "status": str(engine.state), "url": engine.base_url}
        for rank, engine in enumerate(heads)
    ]
    return JSONResponse({"schema_version": 1, "engines": engines, "total": len(engines)})
