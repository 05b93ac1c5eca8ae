"""What a gateway tells about itself: discovery, models, readiness, metrics. Never asks a worker."""

from __future__ import annotations

from math import isfinite

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolecall.discovery.snapshot import Snapshot
from rolecall.discovery.source import SnapshotSource
from rolecall.errors import PayloadError, RegistryUnavailableError
from rolecall.gateway.metrics import CONTENT_TYPE, GatewayMetrics
from rolecall.gateway.settings import GatewaySettings
from rolecall.routing.resolver import routable


class Pages:
    """GET endpoints of every role."""

    def __init__(self, source: SnapshotSource, metrics: GatewayMetrics, settings: GatewaySettings) -> None:
        self._source = source
        self._metrics = metrics
        self._settings = settings

    async def engines(self, request: Request) -> Response:
        """Discovery, schema 2: conditional by ``If-None-Match`` or ``since``, long poll by ``wait_s``."""
        schema = request.query_params.get("schema", "2")
        if schema != "2":
            raise PayloadError(f"schema: this gateway serves schema 2, not {schema!r:.20}", field="schema")
        wait_s = self._wait_s(request)
        known = _tags(request)
        published = await self._source.published()
        if published is not None and (published.etag in known or "*" in known):
            etag = published.etag
            published = await self._source.published(etag, wait_s) if wait_s > 0 else None
            if published is None:
                return Response(status_code=304, headers=_discovery_headers(etag))
        assert published is not None
        headers = _discovery_headers(published.etag)
        return Response(published.body, media_type="application/json", headers=headers)

    def _wait_s(self, request: Request) -> float:
        text = request.query_params.get("wait_s", "0")
        try:
            wait_s = float(text)
        except ValueError:
            wait_s = -1.0
        if not isfinite(wait_s) or wait_s < 0:
            raise PayloadError(f"wait_s: must be seconds from 0, found {text!r:.20}", field="wait_s")
        return min(wait_s, self._settings.max_wait_s)

    async def models(self, request: Request) -> Response:
        """The role's logical models, in OpenAI's shape."""
        del request
        snapshot = await self._source.current()
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": snapshot.role}
            for name in snapshot.models
        ]
        return JSONResponse({"object": "list", "data": data})

    async def health(self, request: Request) -> Response:
        """Ready only if every model resolves; 503 otherwise, with each model's state."""
        del request
        try:
            snapshot = await self._source.current()
        except RegistryUnavailableError as error:
            return _health(False, {}, str(error))
        models = {name: model.state.value for name, model in snapshot.models.items()}
        waiting = [name for name, model in snapshot.models.items() if not routable(model)]
        return _health(not waiting, models, f"no replica may be asked of: {', '.join(waiting)}")

    async def metrics(self, request: Request) -> Response:
        """Prometheus text."""
        del request
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE})


class RoleGateway:
    """What a role's own endpoints may use."""

    def __init__(self, role: str, source: SnapshotSource) -> None:
        self.role = role
        self._source = source

    async def snapshot(self) -> Snapshot:
        """Return the role's present snapshot.

        Raises:
            RegistryUnavailableError: it can't be read.
        """
        return await self._source.current()


def _health(ready: bool, models: dict[str, str], reason: str) -> Response:
    content: dict[str, object] = {"status": "ready" if ready else "not_ready", "models": models}
    if ready:
        return JSONResponse(content)
    return JSONResponse({**content, "reason": reason}, status_code=503, headers={"retry-after": "1"})


def _discovery_headers(etag: str) -> dict[str, str]:
    return {"etag": f'"{etag}"', "cache-control": "no-cache"}


def _tags(request: Request) -> frozenset[str]:
    """Tags the caller knows, from ``since`` and ``If-None-Match``, without quotes and weakness marks."""
    lists = [request.query_params.get("since", ""), request.headers.get("if-none-match", "")]
    tags = (tag.strip().removeprefix("W/").strip('"') for tags in lists for tag in tags.split(","))
    return frozenset(tag for tag in tags if tag)
