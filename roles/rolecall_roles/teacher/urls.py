"""``GET /urls`` and :func:`get_urls`: where the teachers' engines take ``/generate``, for loops that ask them
themselves.

A list of the moment, not discovery: a URL in it may belong to a replica that sleeps. Whoever wants an engine
that may be asked now reads ``/engines``, or uses a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from rolecall.api import UpstreamError

from .external_options import ExternalTeacher

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_GET_S = 30.0

_BODY: dict[str, Any] = {
    "type": "object",
    "properties": {"urls": {"type": "array", "items": {"type": "string"}}},
    "required": ["urls"],
    "additionalProperties": False,
}
OPERATION: dict[str, Any] = {
    "summary": "URLs to which a sample can be posted: of this job's teachers, then of external ones.",
    "responses": {"200": {"description": "All of them.", "content": {"application/json": {"schema": _BODY}}}},
}


class UrlsEndpoint:
    """The endpoint's handler."""

    def __init__(self, external: Mapping[str, ExternalTeacher]) -> None:
        self._external = external

    async def __call__(self, request: Request, gateway: Any) -> Response:
        """Answer models and replicas in their order, a model's router in place of its replicas."""
        from starlette.responses import JSONResponse  # only a gateway answers; planning must be quick

        del request
        snapshot = await gateway.snapshot()
        found: list[str] = []
        for model in snapshot.models.values():
            if model.router_url is not None:
                found.append(model.router_url)
            else:
                found += [engine.base_url for engine in model.engines if engine.base_url is not None]
        return JSONResponse({"urls": [f"{url}/generate" for url in (*found, *await self._elsewhere())]})

    async def _elsewhere(self) -> list[str]:
        if not self._external:
            return []
        import asyncio

        import httpx

        from .external import engine_urls

        async with httpx.AsyncClient(timeout=None, trust_env=False) as http:
            lists = await asyncio.gather(*(engine_urls(http, each) for each in self._external.values()))
        return [url for urls in lists for url in urls]


def get_urls(gateway_url: str, *, token: str | None = None) -> list[str]:
    """Return the URLs of all teacher engines' ``/generate``, as a role's gateway tells them.

    gateway_url: ``http://host:port/teacher``. token: the gateway's bearer token. Blocks.

    Raises:
        UpstreamError: the gateway can't be reached or does not know them.
    """
    import httpx

    url = f"{gateway_url.rstrip('/')}/urls"
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    try:
        answer = httpx.get(url, headers=headers, timeout=_GET_S, trust_env=False)
    except httpx.HTTPError as error:
        raise UpstreamError(f"{url} could not be asked: {error!r}") from error
    if answer.status_code != 200:
        raise UpstreamError(f"{url} answered {answer.status_code}: {answer.text:.200}")
    return cast("list[str]", answer.json()["urls"])
