"""The proxies that are compared: whether they are installed, in which version, and how each is started."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from attrs import frozen
from measure import HERE, Bench, Server, idle_memory_mb, wait_for_answers
from processes import BenchmarkError
from works import LITELLM, NGINX, PLAIN, ROLECALL, ROUTER

_ATTEMPTS = 3


@frozen(kw_only=True)
class Launch:
    """Where a proxy is to listen and whom to ask; ``folder`` is its own, for its files."""

    port: int
    engine: str
    folder: Path


@frozen(kw_only=True)
class Proxy:
    """How to find and start one.

    version: returns it, None if the proxy is not installed.
    command: writes what files the proxy needs, and returns its command line.
    patience_s: until its first answer.
    """

    name: str
    version: Callable[[], str | None]
    command: Callable[[Launch], list[str]]
    environment: dict[str, str]
    patience_s: float = 30.0


def start(bench: Bench, proxy: Proxy, engine_port: int, path: str, *, core: int | None = None) -> Server:
    """Start a proxy before the worker, on a core (the measured one), and return when it answers.

    Raises:
        BenchmarkError: it does not.
    """
    for left in reversed(range(_ATTEMPTS)):
        port = free_port()
        folder = bench.folder / f"{proxy.name}-{port}"
        folder.mkdir()
        command = proxy.command(Launch(port=port, engine=f"http://127.0.0.1:{engine_port}", folder=folder))
        process = bench.processes.start(
            command, core=bench.cores.subject if core is None else core, environment=proxy.environment
        )
        try:
            wait_for_answers(port, path, process, proxy.patience_s)
        except BenchmarkError:
            # Another process may have taken the port that was free a moment ago.
            retry = left and not process.alive
            process.end()
            if not retry:
                raise
        else:
            return Server(name=proxy.name, port=port, process=process, idle_mb=idle_memory_mb(process))
    raise AssertionError("unreachable")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# --- rolecall, and what one writes first -----------------------------------------------------


def _rolecall_version() -> str:
    asked = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    try:
        described = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return version("rolecall")
    commit = described.stdout.strip()
    return f"{version('rolecall')} ({commit})" if commit else version("rolecall")


def _script(name: str) -> Callable[[Launch], list[str]]:
    def command(launch: Launch) -> list[str]:
        return [sys.executable, str(HERE / name), "--port", str(launch.port), "--engine", launch.engine]

    return command


def _versions(*packages: str) -> str | None:
    try:
        return ", ".join(f"{package} {version(package)}" for package in packages)
    except PackageNotFoundError:
        return None


# --- others -----------------------------------------------------------------------------------


def _router_version() -> str | None:
    return version("sglang-router") if find_spec("sglang_router") else None


def _router_command(launch: Launch) -> list[str]:
    return [
        *(sys.executable, "-m", "sglang_router.launch_router"),
        *("--host", "127.0.0.1", "--port", str(launch.port)),
        *("--worker-urls", launch.engine, "--policy", "round_robin"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())),
        *("--log-level", "error", "--disable-retries", "--disable-circuit-breaker"),
    ]


def _nginx() -> str | None:
    return shutil.which("nginx")


def _nginx_version() -> str | None:
    path = _nginx()
    if path is None:
        return None
    told = subprocess.run([path, "-v"], capture_output=True, text=True, check=False).stderr
    return told.strip().rpartition("/")[2]


_NGINX_CONFIGURATION = """
daemon off;
worker_processes 1;
worker_rlimit_nofile {files};
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections {files}; multi_accept on; }}
http {{
    access_log off;
    client_max_body_size 64m;
    client_body_buffer_size 1m;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000;
    upstream engine {{ server {engine}; keepalive 16384; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""


def _nginx_command(launch: Launch) -> list[str]:
    configuration = launch.folder / "nginx.conf"
    text = _NGINX_CONFIGURATION.format(
        folder=launch.folder, engine=launch.engine.removeprefix("http://"), port=launch.port, files=20_000
    )
    configuration.write_text(text)
    return [str(_nginx()), "-p", str(launch.folder), "-c", str(configuration), "-e", "stderr"]


def _litellm() -> str | None:
    beside = Path(sys.executable).parent / "litellm"
    return str(beside) if beside.exists() else shutil.which("litellm")


def _litellm_version() -> str | None:
    path = _litellm()
    if path is None:
        return None
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return told.strip().rpartition(" ")[2] or "of unknown version"


def _litellm_command(launch: Launch) -> list[str]:
    configuration = launch.folder / "litellm.yaml"
    configuration.write_text(
        "model_list:\n"
        "  - model_name: m\n"
        f"    litellm_params: {{model: openai/m, api_base: '{launch.engine}/v1', api_key: none}}\n"
        # As the others: whoever asks is answered.
        "general_settings: {dangerously_permit_weak_or_unset_master_key: true}\n"
    )
    return [
        *(str(_litellm()), "--config", str(configuration)),
        *("--host", "127.0.0.1", "--port", str(launch.port), "--num_workers", "1"),
    ]


PROXIES = (
    Proxy(name=ROLECALL, version=_rolecall_version, command=_script("serve_rolecall.py"), environment={}),
    Proxy(name=ROUTER, version=_router_version, command=_router_command, environment={}),
    Proxy(name=NGINX, version=_nginx_version, command=_nginx_command, environment={}),
    Proxy(
        name=PLAIN,
        version=lambda: _versions("starlette", "httpx"),
        command=_script("serve_plain.py"),
        environment={},
    ),
    Proxy(
        name=LITELLM,
        version=_litellm_version,
        command=_litellm_command,
        environment={"LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False"},
        patience_s=180.0,
    ),
)
