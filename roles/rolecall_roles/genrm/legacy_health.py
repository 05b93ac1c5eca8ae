"""``GET /health?schema=1``: one word for the whole role and how many replicas answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def legacy_health(request: Request, gateway: Any) -> Response:
    """Answer 200 and ``healthy`` if every model has a replica that may be asked, else 503."""
    from starlette.responses import JSONResponse  # only a gateway answers; planning must be quick

    del request
    snapshot = await gateway.snapshot()
    ready = [sum(engine.direct_eligible for engine in model.engines) for model in snapshot.models.values()]
    healthy = bool(ready) and all(ready)
    return JSONResponse(
        {"schema_version": 1, "status": "healthy" if healthy else "unhealthy", "engines": sum(ready)},
        status_code=200 if healthy else 503,
    )
