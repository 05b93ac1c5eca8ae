"""rolecall's gateway of one role over one engine, as a process: what a job serves, without its Ray.

    python serve_rolecall.py --port N --engine http://127.0.0.1:N

Served as by ``rolecall gateway``, on uvloop where it is installed.
"""

from __future__ import annotations

import argparse
import socket
from asyncio import Event, Runner
from typing import Any

from attrs import frozen
from uvicorn.loops.auto import auto_loop_factory

from rolecall.discovery.registry import Registry
from rolecall.discovery.source import SnapshotSource
from rolecall.gateway.app import build_gateway
from rolecall.gateway.collector import ease_collection
from rolecall.gateway.settings import GatewaySettings
from rolecall.ids import RoleName
from rolecall.listener import Listener, lifespan
from rolecall.plugins.host import PluginHost
from rolecall.plugins.kinds import PluginKind
from rolecall.testing.snapshots import model_entry, snapshot_of

ROLE, POLICY, MODEL = "rollout", "round_robin", "m"


@frozen(kw_only=True)
class Served:
    """The role as its job would have resolved it."""

    name: RoleName
    plugin: Any
    policy: Any


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", required=True, help="the engine's base URL")
    options = parser.parse_args()
    host = PluginHost.from_environment()
    plugin = host.load(PluginKind.ROLE, ROLE)
    role = Served(
        name=RoleName(ROLE),
        plugin=plugin(plugin.options()),
        policy=host.load(PluginKind.ROUTING_POLICY, POLICY),
    )
    registry = Registry()
    entry = model_entry(MODEL, [options.engine], served_model_name=MODEL)
    registry.publish(ROLE, snapshot_of({MODEL: entry}, role=ROLE, policy=POLICY).to_json())
    source = SnapshotSource(registry.reader(ROLE), role=ROLE)
    gateway = build_gateway(role, source, GatewaySettings(max_concurrency=16_384))
    bound = socket.create_server(("127.0.0.1", options.port))
    with Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(serve(gateway, bound))


async def serve(gateway: Any, bound: socket.socket) -> None:
    listener = Listener(gateway, bound, timeout_keep_alive=75)
    async with lifespan(gateway):
        await listener.start()
        ease_collection()
        await Event().wait()


if __name__ == "__main__":
    main()
