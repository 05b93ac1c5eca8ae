"""A front of one's own for a job's roles: what ``rolecall gateway`` serves, in one process or several.

It needs no Ray. Engines are learned from ``/engines`` of the job's gateways on Ray Serve, as direct clients
learn them, so it may run on any machine that reaches those and the engines; without it they are found by the
job's state file, read anew for each read: the front outlives the job, refuses requests meanwhile, and goes
on with the job's next run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import cattrs
from attrs import asdict, evolve, frozen
from starlette.types import ASGIApp
from uvicorn.loops.auto import auto_loop_factory

from rolecall.client.http1_transport import Http1Transport
from rolecall.client.snapshot_reader import HttpSnapshotReader
from rolecall.config.checks import gateway_faults
from rolecall.config.loader import load_config
from rolecall.config.resolve import resolve_role
from rolecall.discovery.registry import Published
from rolecall.discovery.source import SnapshotSource
from rolecall.errors import ConfigError, ConfigProblem, JobError, RegistryUnavailableError, RolecallError
from rolecall.gateway.app import build_gateway
from rolecall.gateway.collector import ease_collection
from rolecall.gateway.front import Ending, serve_front
from rolecall.gateway.processes import Processes
from rolecall.gateway.settings import GatewaySettings, settings_for_role, settings_from
from rolecall.job.paths import read_state
from rolecall.job.prepare import with_plugins
from rolecall.job.signals import on_ending_signal

REPLACING = signal.SIGUSR2
"""Has a front of several processes replace them one by one."""

_AT_THE_END_S = 5.0
"""How long a process may take beyond its callers' time, to have engines abort what was cut."""

_READS_AT_ONCE = 2
"""The long poll, and a read beside it."""


@frozen(kw_only=True)
class FrontPlan:
    """A front that can be served.

    discovery: where the job's gateways are, up to a role's name; None: as its state file says.
    """

    file: str
    roles: tuple[str, ...]
    discovery: str | None
    drain_s: float


def plan_front(file: Path, *, host: str | None, discovery: str | None) -> tuple[FrontPlan, str]:
    """Check a job file for a front, and return it with the address to listen on.

    Raises:
        ConfigError: the file is wrong, its token is not set, or ``host`` would let everybody in.
        PluginError: a plugin of a role is broken.
    """
    config, plugins = with_plugins(load_config(file))
    host = host or config.gateway.host
    for fault in gateway_faults(evolve(config.gateway, host=host)):
        raise ConfigError([ConfigProblem(file=str(file), key="gateway.host", message=fault.message)])
    settings_from(config.gateway, file=str(file))
    for role in config.roles:
        resolve_role(config, file, role, plugins)
    front = FrontPlan(
        file=str(file.absolute()),
        roles=tuple(config.roles),
        discovery=None if discovery is None else discovery.rstrip("/"),
        drain_s=config.gateway.drain_s,
    )
    return front, host


def run_front(plan: FrontPlan, sockets: Sequence[socket.socket], *, ready: Callable[[], None]) -> None:
    """Serve a front until a signal ends this process: in this one for one socket, else in one for each.

    The first signal lets callers be answered, the second cuts them off.

    Raises:
        JobError: a process did not come to serve.
        RolecallError: a gateway did not start.
    """
    if len(sockets) == 1:
        _serve(plan, sockets[0], ready)
    else:
        asyncio.run(_run_processes(plan, sockets, ready))


async def _run_processes(
    plan: FrontPlan, sockets: Sequence[socket.socket], ready: Callable[[], None]
) -> None:
    def command(bound: int, pipe: int) -> list[str]:
        return [sys.executable, "-m", "rolecall.job.front", str(bound), str(pipe), json.dumps(asdict(plan))]

    processes = Processes(command, sockets, end_s=plan.drain_s + _AT_THE_END_S)
    ending = Ending()
    on_ending_signal(ending.ask)
    asyncio.get_running_loop().add_signal_handler(REPLACING, processes.replace)
    await processes.run(ending=ending, ready=ready)


def _serve(plan: FrontPlan, bound: socket.socket, ready: Callable[[], None]) -> None:
    async def serve() -> None:
        ending = Ending()
        on_ending_signal(ending.ask)
        gateways = _gateways_of(plan, ending)
        await serve_front(gateways, bound, drain_s=plan.drain_s, ending=ending, ready=started)

    def started() -> None:
        ease_collection()
        ready()

    # Every caller and every engine's connection is an open file.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(serve())


def _gateways_of(plan: FrontPlan, ending: Ending) -> dict[str, ASGIApp]:
    """Return the gateway of each role. To be called in the event loop that serves them.

    When they drain, who waits for news of discovery is let go: it would be waited for, for nothing.

    Raises:
        ConfigError, PluginError: see :func:`plan_front`.
    """
    file = Path(plan.file)
    config, plugins = with_plugins(load_config(file))
    settings = settings_from(config.gateway, file=plan.file)

    def locate() -> str:
        return plan.discovery if plan.discovery is not None else _gateway_url(config.job.name)

    gateways: dict[str, ASGIApp] = {}
    for role in plan.roles:
        source = SnapshotSource(_LocatedReader(locate, role, settings), role=role)
        ending.at_drain.append(source.release)
        gateways[role] = build_gateway(
            resolve_role(config, file, role, plugins), source, settings_for_role(settings, config.roles[role])
        )
    return gateways


def _gateway_url(job: str) -> str:
    try:
        state = read_state(job)
    except JobError as error:
        raise RegistryUnavailableError(str(error)) from error
    if state is None:
        raise RegistryUnavailableError(f"no job {job!r} is running on this machine")
    return state.gateway_url


class _LocatedReader:
    """Reads a role's snapshot from the job's gateway, wherever that is at the time."""

    def __init__(self, locate: Callable[[], str], role: str, settings: GatewaySettings) -> None:
        self._transport = Http1Transport(max_concurrency=_READS_AT_ONCE)
        self._locate = locate
        self._role = role
        self._token = next(iter(settings.bearer_tokens), None)

    async def read(self, etag: str | None, wait_s: float) -> Published | None:
        reader = HttpSnapshotReader(self._transport, f"{self._locate()}/{self._role}", token=self._token)
        return await reader.read(etag, wait_s)

    async def aclose(self) -> None:
        await self._transport.aclose()


def main() -> int:
    """Serve in one of several processes, as :func:`run_front` says on the command line."""
    bound, pipe, plan = sys.argv[1:]
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)

    def ready() -> None:
        os.write(int(pipe), b"\n")
        os.close(int(pipe))

    try:
        _serve(cattrs.structure(json.loads(plan), FrontPlan), socket.socket(fileno=int(bound)), ready)
    except RolecallError as error:
        print(f"rolecall gateway: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
