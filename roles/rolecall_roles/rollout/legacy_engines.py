"""``GET /engines?schema=1``: rank, state and URL of every replica's head, for autoscalers and people.

A diagnosis, never used for routing: no process ids, no node data, no followers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_ENGINE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "rank": {"type": "integer", "minimum": 0},
        "status": {"type": "string"},
        "url": {"type": ["string", "null"]},
    },
    "required": ["rank", "status", "url"],
    "additionalProperties": False,
}
_BODY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "schema_version": {"const": 1},
        "engines": {"type": "array", "items": _ENGINE},
        "total": {"type": "integer", "minimum": 0},
    },
    "required": ["schema_version", "engines", "total"],
    "additionalProperties": False,
}
OPERATION: dict[str, Any] = {
    "summary": "Rank, state and URL of every replica's head.",
    "responses": {"200": {"description": "All heads.", "content": {"application/json": {"schema": _BODY}}}},
}


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
