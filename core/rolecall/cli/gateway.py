"""``rolecall gateway``: serve a job's gateways without Ray Serve, for those who run their own front."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--host", metavar="ADDRESS", help="Listen on this address, by default gateway.host of FILE.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Listen on this port; by default a free one."
)
@click.option(
    "--processes", type=click.IntRange(1), default=1, show_default=True, help="How many share the port."
)
@click.option(
    "--discovery",
    metavar="URL",
    help="Where the job's gateways are, up to a role's name; by default where the job that was started from "
    "FILE on this machine has them.",
)
def gateway(file: Path, host: str | None, port: int, processes: int, discovery: str | None) -> None:
    """Serve the gateways of FILE's roles, at /ROLE, in the foreground, until told to end.

    The job need not be running yet: requests are refused until it is. SIGTERM or Ctrl-C lets callers be
    answered, twice cuts them off. SIGUSR2 replaces each of several processes without failing a request.
    """
    # Imported here: it brings HTTP, which a wrong command line need not wait for.
    from rolecall.gateway.processes import bind
    from rolecall.job.front import plan_front, run_front

    plan, address = plan_front(file, host=host, discovery=discovery)
    sockets = bind(address, port, processes)
    run_front(plan, sockets, ready=lambda: _show(plan.roles, sockets))


def _show(roles: Sequence[str], sockets: Sequence[socket.socket]) -> None:
    host, port = sockets[0].getsockname()[:2]
    where = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    click.echo(f"{len(sockets)} process{'es' * (len(sockets) > 1)} at {where} (pid {os.getpid()})")
    for role in roles:
        click.echo(f"  {role:<12} {where}/{role}")
