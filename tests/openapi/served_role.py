"""A role's gateway on a real socket, before an engine that is strict with the gateway and easy on callers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from attrs import field, frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from rolecall.discovery.registry import Registry
from rolecall.discovery.source import SnapshotSource
from rolecall.errors import UnknownScaleOperationError
from rolecall.gateway.app import build_gateway
from rolecall.gateway.settings import GatewaySettings
from rolecall.ids import RoleName
from rolecall.plugins.host import PluginHost
from rolecall.plugins.kinds import PluginKind
from rolecall.scaling.request import ScaleOut
from rolecall.testing.asgi_server import serving
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.snapshots import model_entry, snapshot_of

DOCUMENTS = Path(__file__).parents[2] / "docs" / "openapi"
ROLES = tuple(sorted(path.stem for path in DOCUMENTS.glob("*.json")))

_MODELS = ("m", "other")
_ALIAS = "served"
_ROUTE_KEY = "data"
_SETTINGS = GatewaySettings(max_wait_s=0.01)
_EVENTS = b'data: {"text": ""}\n\ndata: [DONE]\n\n'


@frozen(kw_only=True)
class ServedRole:
    """What runs; ``answered`` counts the gateway's answers by operation and status."""

    role: str
    url: str
    answered: Counter[tuple[str, int]] = field(factory=Counter)


def narrowed(role: str) -> dict[str, Any]:
    """Return the role's committed document with what is known of this gateway: its models, and that its
    engine has no errors of its own."""
    document = deepcopy(json.loads((DOCUMENTS / f"{role}.json").read_text(encoding="utf-8")))
    schemas = document["components"]["schemas"]
    schemas["ModelName"] = {"enum": [None, *_MODELS, _ALIAS]}
    schemas["RouteKey"] = {"enum": [None, _ROUTE_KEY]}
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("default", None)
    return document


@contextmanager
def served_role(role: str, settings: GatewaySettings = _SETTINGS) -> Generator[ServedRole]:
    """Serve a role's gateway from a thread of its own for the length of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=f"gateway of {role}", daemon=True)
    thread.start()
    running = _running(role, settings)
    try:
        yield asyncio.run_coroutine_threadsafe(anext(running), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(running.aclose(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _running(role: str, settings: GatewaySettings) -> AsyncGenerator[ServedRole]:
    async with _served(role, settings) as served:
        yield served


@asynccontextmanager
async def _served(role: str, settings: GatewaySettings) -> AsyncGenerator[ServedRole]:
    host = PluginHost.from_environment()
    plugin = host.load(PluginKind.ROLE, role)
    policy = host.load(PluginKind.ROUTING_POLICY, "round_robin")
    registry = Registry()
    answered: Counter[tuple[str, int]] = Counter()
    gateway = build_gateway(
        PlainRole(name=RoleName(role), plugin=plugin(plugin.options()), policy=policy),
        SnapshotSource(registry.reader(role), role=role),
        settings,
        scaling=_Scaling(),
    )
    async with serving(_engine()) as engine, serving(_counted(gateway, answered)) as url:
        models = {name: model_entry(name, [engine], served_model_name=f"served/{name}") for name in _MODELS}
        snapshot = snapshot_of(
            models,
            role=role,
            policy=policy.name,
            default_model=_MODELS[0],
            route_keys={_ROUTE_KEY: _MODELS[1]},
            aliases={_ALIAS: _MODELS[0]},
        )
        registry.publish(role, snapshot.to_json())
        yield ServedRole(role=role, url=url, answered=answered)


class _Scaling:
    """Takes any request that is well formed, and remembers no operation."""

    async def begin(self, request: Any) -> dict[str, Any]:
        action = "scale_out" if isinstance(request, ScaleOut) else "scale_in"
        known = {"id": "1", "action": action, "role": "r", "model": "m", "state": "DONE", "final": True}
        return {**known, "replicas": [], "left": {}}

    async def operations(self) -> list[dict[str, Any]]:
        return []

    async def status(self, operation: str, wait_s: float) -> dict[str, Any]:
        raise UnknownScaleOperationError(f"there is no {operation}, after {wait_s:g} s")

    async def cancel(self, operation: str) -> dict[str, Any]:
        raise UnknownScaleOperationError(f"there is no {operation}")


def _counted(gateway: Any, answered: Counter[tuple[str, int]]) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def counting(message: Any) -> None:
            if message["type"] == "http.response.start":
                answered[f"{scope['method']} {scope['path']}", message["status"]] += 1
            await send(message)

        await gateway(scope, receive, counting if scope["type"] == "http" else send)

    return app


# --- the engine -------------------------------------------------------------------------


def _engine() -> Starlette:
    paths = ("/generate", "/v1/chat/completions")
    return Starlette(routes=[Route(path, _answer, methods=["POST"]) for path in paths])


async def _answer(request: Request) -> Response:
    """Answer anything that a gateway may send; 500 for what it may not."""
    try:
        payload = json.loads(await request.body(), parse_constant=_no_json)
        _check(request.url.path, payload)
    except ValueError as error:
        return PlainTextResponse(f"the gateway sent what it should not: {error}", 500)
    if payload.get("stream"):
        return Response(_EVENTS, media_type="text/event-stream")
    choice = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}
    return JSONResponse({"text": "", "meta_info": {"id": payload["rid"]}, "choices": [choice]})


def _no_json(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _check(path: str, payload: Any) -> None:
    if not isinstance(payload, dict) or not payload.get("rid"):
        raise ValueError("it is no object with an id")
    if "route_key" in payload or any(name.startswith("bootstrap_") for name in payload):
        raise ValueError("it has a field that is not for engines")
    named = payload.get("model")
    if (named is not None) if path == "/generate" else (named not in {f"served/{name}" for name in _MODELS}):
        raise ValueError(f"its model is {named!r}")
