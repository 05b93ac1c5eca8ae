"""``GET /health?schema=1``: one word for the whole role and how many replicas answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_BODY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "schema_version": {"const": 1},
        "status": {"enum": ["healthy", "unhealthy"]},
        "engines": {"type": "integer", "minimum": 0},
    },
    "required": ["schema_version", "status", "engines"],
    "additionalProperties": False,
}
_CONTENT = {"application/json": {"schema": _BODY}}
OPERATION: dict[str, Any] = {
    "summary": "One word for the whole role.",
    "responses": {
        "200": {"description": "Healthy.", "content": _CONTENT},
        "503": {"description": "Unhealthy.", "content": _CONTENT},
    },
}


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
