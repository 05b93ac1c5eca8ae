"""Gateways on Ray Serve: one application a role, ``/{role}`` on one HTTP proxy.

Called by the job process (:func:`deploy_gateways`, :func:`remove_gateways`) and, when that is dead, by its
guardian (:func:`remove_apps_of`). A replica resolves its role in its own process and reads snapshots from
the job's registry actor by a long poll; it reserves no CPU.

Serve is one per Ray cluster. Where none runs, the job starts it and ends it; where one runs, the job uses
it, address and all, and leaves it running.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import ray
from attrs import evolve, frozen
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolecall.config.checks import gateway_faults
from rolecall.config.resolve import job_plugins, resolve_role
from rolecall.config.specs import GatewaySection, JobConfig
from rolecall.discovery.registry_actor import find_registry
from rolecall.discovery.source import SnapshotSource
from rolecall.engines.role_service import ServiceScaling
from rolecall.errors import JobError
from rolecall.gateway.app import build_gateway
from rolecall.gateway.forward import REQUEST_ID_HEADER
from rolecall.gateway.ha_proxy import find_ha_proxy
from rolecall.gateway.settings import GatewaySettings, settings_for_role, settings_from

_log = logging.getLogger(__name__)

_PORT_ATTEMPTS = 3

_QUIET = {"log_level": "WARNING", "enable_access_log": False}

_HEAD = "node:__internal_head__"
"""Ray's resource that only the head node has."""

_ONGOING = 100_000
"""Serve's own limit is out of the way: a gateway counts its requests itself."""

_FAILURES = (RayError, RayServeException, RuntimeError, TimeoutError, ValueError)
"""What Serve raises when it can't do what it is asked to."""


@frozen(kw_only=True)
class Gateways:
    """A job's gateways, as plain values.

    base_url: where Serve listens; a role's gateway is at ``{base_url}/{role}``.
    apps: names of the job's Serve applications.
    owns_serve: the job started Serve, so it is shut down with the job.
    """

    base_url: str
    apps: tuple[str, ...]
    owns_serve: bool


def app_name(job: str, role: str) -> str:
    """Return the name of a role's Serve application."""
    return f"rolecall-{job}-{role}"


def deploy_gateways(config: JobConfig, file: Path, *, namespace: str, run_dir: Path) -> Gateways:
    """Deploy one gateway a role and return when all of them answer. Blocks; Ray must be joined.

    Repeats replace the gateways by new ones, as Serve does it: replica by replica, and none ends before the
    requests that it has, or ``gateway.drain_s``. The first call's value is the one to remove them with.
    ``namespace`` holds the job's registry actor; ``run_dir`` is where HAProxy's files go.

    Raises:
        ConfigError: the token of ``[gateway]`` is not set.
        JobError: Serve or a gateway did not come up, nothing of what is new is left; or the Serve that runs
            already would let everybody in.
    """
    settings = settings_from(config.gateway, file=str(file))
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    client = _running_client()
    owns_serve = client is None
    if client is not None:
        _check_access(config.gateway, client.http_config.host)
    apps = tuple(app_name(config.job.name, role) for role in config.roles)
    before = set() if client is None else set(serve.status().applications)
    try:
        client = client or _start_serve(config.gateway, run_dir)
        serve.run_many(
            [
                serve.RunTarget(
                    target=_application(config, file, namespace, role, settings),
                    name=app_name(config.job.name, role),
                    route_prefix=f"/{role}",
                )
                for role in config.roles
            ]
        )
    except BaseException as error:
        _undo(tuple(app for app in apps if app not in before), owns_serve)
        if isinstance(error, _FAILURES):
            raise JobError(f"the gateways could not be deployed on Ray Serve: {error}") from error
        raise
    return Gateways(base_url=_base_url(client.http_config), apps=apps, owns_serve=owns_serve)


def remove_gateways(gateways: Gateways) -> None:
    """Delete the job's applications, and end Serve if the job started it and nobody else uses it.

    Blocks. Repeats do nothing.

    Raises:
        JobError: an application is still there.
    """
    try:
        _remove(gateways.apps, gateways.owns_serve)
    except _FAILURES as error:
        raise JobError(
            f"Serve applications {', '.join(gateways.apps)} could not be removed: {error}"
        ) from error


def remove_apps_of(address: str, apps: Sequence[str], *, owns_serve: bool) -> None:
    """Join the Ray cluster at ``address``, remove a dead job's applications, and leave.

    Raises:
        JobError: the cluster can't be joined, or an application is still there.
    """
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise JobError(f"Ray at {address} could not be joined: {error}") from error
    try:
        remove_gateways(Gateways(base_url="", apps=tuple(apps), owns_serve=owns_serve))
    finally:
        ray.shutdown()


# --- Serve ------------------------------------------------------------------------------


def _running_client() -> Any:
    """Return the client of the Serve that runs on this cluster, None if none does.

    Serve says nowhere else where it listens.
    """
    from ray.serve.context import _get_global_client  # pyright: ignore[reportPrivateUsage]

    return _get_global_client(raise_if_no_controller_running=False)


def _check_access(section: GatewaySection, host: str) -> None:
    """Hold the address that a running Serve has to the rule for the job file's own."""
    for fault in gateway_faults(evolve(section, host=host)):
        raise JobError(f"Ray Serve runs on this cluster already, and {fault.message}")


def _start_serve(section: GatewaySection, run_dir: Path) -> Any:
    """Start Serve on the head node and return its client."""
    controller: dict[str, Any] = {}
    if section.ha_proxy:
        _check_on_head()
        controller["runtime_env"] = {"env_vars": find_ha_proxy(run_dir / "ha").environment()}
    attempts = _PORT_ATTEMPTS if section.port == 0 else 1
    for left in reversed(range(attempts)):
        options = {"host": section.host, "port": section.port or _free_port(section.host)}
        try:
            serve.start(
                proxy_location="HeadOnly",
                http_options=options,
                logging_config=_QUIET,
                controller_options=controller,
            )
            return _running_client()
        except _FAILURES:
            # Another process may have taken the port that was free a moment ago.
            serve.shutdown()
            if not left:
                raise
    raise AssertionError("unreachable")


def _check_on_head() -> None:
    """HAProxy's files are made here, and Serve's proxy is on the head node."""
    here = ray.get_runtime_context().get_node_id()
    if not any(node["NodeID"] == here and _HEAD in node["Resources"] for node in ray.nodes()):
        raise JobError(
            "gateway.ha_proxy = true, and Ray Serve does not run on this cluster yet: to start it with "
            "HAProxy, the job's process has to be on the head node; or drop the key"
        )


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host.strip("[]"), 0))
        return probe.getsockname()[1]


def _base_url(http: Any) -> str:
    host: str = http.host
    try:
        if ip_address(host).is_unspecified:
            host = ray.util.get_node_ip_address()
    except ValueError:
        pass  # A name, not an address.
    return f"http://{f'[{host}]' if ':' in host else host}:{http.port}{http.root_path}"


def _undo(apps: tuple[str, ...], owns_serve: bool) -> None:
    try:
        _remove(apps, owns_serve)
    except _FAILURES:
        # The error that led here is the one to be seen.
        _log.exception("Serve applications %s were not all removed", ", ".join(apps))


def _remove(apps: tuple[str, ...], owns_serve: bool) -> None:
    if _running_client() is None:
        return
    present = serve.status().applications
    if owns_serve and not set(present) - set(apps):
        serve.shutdown()
        return
    for name in apps:
        if name in present:
            serve.delete(name)


# --- one role's application -------------------------------------------------------------


def _application(
    config: JobConfig, file: Path, namespace: str, role: str, settings: GatewaySettings
) -> serve.Application:
    def build() -> ASGIApp:
        return _gateway_of(config, file, namespace, role, settings)

    deployment: Any = serve.deployment(
        name="gateway",
        num_replicas=config.gateway.replicas,
        max_ongoing_requests=_ONGOING,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=config.gateway.drain_s,
        logging_config=_QUIET,
    )
    return deployment(serve.ingress(build)()).bind()


def _gateway_of(
    config: JobConfig, file: Path, namespace: str, role: str, settings: GatewaySettings
) -> ASGIApp:
    """Build the gateway inside a Serve replica."""
    resolved = resolve_role(config, file, role, job_plugins(config.plugins))
    source = SnapshotSource(find_registry(namespace).reader(role), role=role)
    own = settings_for_role(settings, resolved.config)
    scaling = ServiceScaling(namespace, resolved.name)
    return _BehindServe(build_gateway(resolved, source, own, scaling=scaling))


class _BehindServe:
    """Leaves the answer's request id to Serve's proxy, which adds it to every answer itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def without_request_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name, value) for name, value in message["headers"] if name != REQUEST_ID_HEADER]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, without_request_id if scope["type"] == "http" else send)
