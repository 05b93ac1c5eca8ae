"""What a gateway tells about itself: models, readiness, metrics. Never asks a worker."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolecall.discovery.snapshot import Snapshot
from rolecall.discovery.source import SnapshotSource
from rolecall.errors import RegistryUnavailableError
from rolecall.gateway.errors import told
from rolecall.gateway.metrics import CONTENT_TYPE, GatewayMetrics
from rolecall.gateway.scaling import ScalePages
from rolecall.routing.resolver import routable


class Pages:
    """GET endpoints of every role."""

    def __init__(self, source: SnapshotSource, metrics: GatewayMetrics) -> None:
        self._source = source
        self._metrics = metrics

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
            return _health(False, {}, told(error))
        models = {name: model.state.value for name, model in snapshot.models.items()}
        waiting = [name for name, model in snapshot.models.items() if not routable(model)]
        return _health(not waiting, models, f"no replica may be asked of: {', '.join(waiting)}")

    async def metrics(self, request: Request) -> Response:
        """Prometheus text."""
        del request
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE})


class RoleGateway:
    """What a role's own endpoints may use. ``scaling``: what scaling endpoints do."""

    def __init__(self, role: str, source: SnapshotSource, scaling: ScalePages) -> None:
        self.role = role
        self.scaling = scaling
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
