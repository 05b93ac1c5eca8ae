"""A small inference plane on real sockets: scripted engines, a registry, and a gateway for each role."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from attrs import define, field

from rolecall.discovery.registry import Registry
from rolecall.discovery.snapshot import ModelEntry, Snapshot
from rolecall.discovery.source import SnapshotSource
from rolecall.engines.replica_state import ReplicaState
from rolecall.gateway.app import ServedRole, build_gateway
from rolecall.gateway.front import Front
from rolecall.gateway.settings import GatewaySettings
from rolecall.testing.asgi_server import serving
from rolecall.testing.scripted_engine import ScriptedEngine
from rolecall.testing.snapshots import model_entry, snapshot_of


@define(kw_only=True)
class Plane:
    """What runs; ``url`` is the gateway's, ``urls`` the engines'."""

    role: ServedRole
    registry: Registry
    engines: Sequence[ScriptedEngine]
    urls: list[str]
    url: str = ""
    revision: int = field(default=0, init=False)

    def publish(
        self,
        state: ReplicaState = ReplicaState.READY,
        *,
        generation: int = 1,
        urls: Sequence[str] | None = None,
        models: Mapping[str, ModelEntry] | None = None,
        **routing: Any,
    ) -> Snapshot:
        """Publish the next revision: ``models``, or one model ``m`` with a replica an engine."""
        self.revision += 1
        entry = model_entry("m", self.urls if urls is None else urls, state=state, generation=generation)
        snapshot = snapshot_of(
            models or {"m": entry},
            role=self.role.name,
            policy=self.role.policy.name,
            revision=self.revision,
            **routing,
        )
        self.registry.publish(self.role.name, snapshot.to_json())
        return snapshot


@asynccontextmanager
async def plane(
    role: ServedRole, *, engines: int = 1, settings: GatewaySettings | None = None
) -> AsyncGenerator[Plane]:
    """Run a plane for the length of the block; its first snapshot is published and READY."""
    async with AsyncExitStack() as stack:
        scripted = [ScriptedEngine(name=f"engine-{index}") for index in range(engines)]
        urls = [await stack.enter_async_context(serving(engine.app)) for engine in scripted]
        running = Plane(role=role, registry=Registry(), engines=scripted, urls=urls)
        running.publish()
        source = SnapshotSource(running.registry.reader(role.name), role=role.name)
        gateway = build_gateway(role, source, settings or GatewaySettings())
        running.url = await stack.enter_async_context(serving(gateway))
        yield running


@asynccontextmanager
async def planes(*roles: ServedRole) -> AsyncGenerator[tuple[list[Plane], str]]:
    """Run a plane for each role, and yield them with the URL under which each gateway has its role's name."""
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(plane(role)) for role in roles]
        gateways = {
            str(each.role.name): build_gateway(
                each.role,
                SnapshotSource(each.registry.reader(each.role.name), role=each.role.name),
                GatewaySettings(),
            )
            for each in running
        }
        front = Front(gateways)
        first = next(iter(gateways.values()))

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await (first if scope["type"] == "lifespan" else front)(scope, receive, send)

        yield running, await stack.enter_async_context(serving(app))
