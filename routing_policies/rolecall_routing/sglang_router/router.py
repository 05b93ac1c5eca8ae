"""One sglang-router process, and its control calls.

Owns the process from ``start`` to ``stop``. What it is told on its command line follows from who is
in charge here: nothing is retried (a request may have been executed), no worker is judged by the
router's own probes or circuit breaker (the role's manager judges), and requests have no deadline of the
router's (gateways and clients have theirs). Workers are told by ``POST /workers``, which only queues the
work: the effect is polled for.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote

import httpx

from rolecall.api import (
    ChildProcess,
    Disaggregation,
    RouterError,
    RouterHealth,
    RouterLaunch,
    RouterWorker,
)

from . import launch as launcher

_POLL_S = 0.02
_CALL_S = 10.0
_CONNECT_S = 2.0
_FIRST_CALL_S = 1.0
_KILL_S = 10.0
_NOT_FOUND = 404
_GRACE_S = 1
"""How long a router that was told to stop waits for its running requests."""
_NO_DEADLINE_S = 7 * 24 * 3600
_NO_HUB = "http://127.0.0.1:9"
"""At every registration the router looks for the model's tokenizer, on the hub if need be. Nobody here
asks it to tokenise, and a job does not talk to the hub unasked: the discard port refuses at once."""

_KIND = {None: "regular", Disaggregation.PREFILL: "prefill", Disaggregation.DECODE: "decode"}
_HALF = {kind: half for half, kind in _KIND.items()}


class SglangRouter:
    """A router process on this node; see ``rolecall.api.Router`` for each method's contract.

    ``start`` has to be called from a thread that lives as long as the router shall.
    """

    def __init__(self, launch: RouterLaunch) -> None:
        host = f"[{launch.host}]" if ":" in launch.host else launch.host
        self.base_url = f"http://{host}:{launch.port}"
        self._launch = launch
        key = secrets.token_hex(16)
        self._process = ChildProcess(
            _command(launch),
            environment={launcher.KEY_VARIABLE: key, "HF_ENDPOINT": _NO_HUB, "PYTHONUNBUFFERED": "1"},
            log_path=launch.log_path,
        )
        # Environment proxies must never carry control calls.
        self._client = httpx.AsyncClient(
            base_url=self.base_url, headers={"authorization": f"Bearer {key}"}, trust_env=False
        )
        self._unconfirmed: dict[str, str] = {}
        """URL → id of workers that were asked for and never seen listed."""

    async def start(self, timeout_s: float) -> None:
        if find_spec("sglang_router") is None:
            raise RouterError(
                "the package sglang-router is not installed where this role's service runs; "
                "pip install 'rolecall[sglang-router]'"
            )
        try:
            self._process.start()
            async with asyncio.timeout(timeout_s):
                await self._until_answering()
        except BaseException as error:
            await self.stop(_KILL_S)
            if isinstance(error, TimeoutError):
                raise self._start_error(f"did not answer within {timeout_s:g} s") from error
            raise

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def exit_code(self) -> int | None:
        return self._process.exit_code()

    async def health(self, timeout_s: float) -> RouterHealth:
        if (code := self.exit_code()) is not None:
            return RouterHealth(alive=False, detail=f"router process {self.pid} ended, exit code {code}")
        try:
            response = await self._call("GET", "/health", timeout_s)
        except RouterError as error:
            return RouterHealth(alive=False, detail=str(error))
        return RouterHealth(alive=response.is_success, detail=f"/health: HTTP {response.status_code}")

    async def register(self, worker: RouterWorker, timeout_s: float) -> None:
        doing = f"registration of {worker.base_url}"
        async with _within(timeout_s, f"{self._name}: {doing}: not listed"):
            if any(entry["url"] == worker.base_url for entry in await self._entries(timeout_s)):
                await self.deregister(worker.base_url, timeout_s)
            answer = _object(await self._told("POST", "/workers", timeout_s, self._request(worker)))
            identity = str(answer["worker_id"])
            self._unconfirmed[worker.base_url] = identity
            while worker not in await self.listed(timeout_s):
                if (problem := await self._failure(identity, timeout_s)) is not None:
                    del self._unconfirmed[worker.base_url]
                    raise RouterError(f"{self._name}: {doing} failed: {problem}")
                await asyncio.sleep(_POLL_S)
            del self._unconfirmed[worker.base_url]

    async def deregister(self, base_url: str, timeout_s: float) -> None:
        async with _within(timeout_s, f"{self._name}: {base_url} is still listed, or may yet be,"):
            while True:
                found = [e["id"] for e in await self._entries(timeout_s) if e["url"] == base_url]
                for identity in found:
                    await self._told("DELETE", f"/workers/{quote(identity)}", timeout_s, missing_is_fine=True)
                if not found and not await self._may_come(base_url, timeout_s):
                    self._unconfirmed.pop(base_url, None)
                    return
                await asyncio.sleep(_POLL_S)

    async def listed(self, timeout_s: float) -> frozenset[RouterWorker]:
        return frozenset(
            RouterWorker(
                base_url=entry["url"],
                half=_HALF.get(entry["worker_type"]),
                bootstrap_port=entry.get("bootstrap_port"),
            )
            for entry in await self._entries(timeout_s)
            if entry["is_healthy"]
        )

    async def stop(self, timeout_s: float) -> None:
        await self._client.aclose()
        await self._process.stop(timeout_s)

    # --- helpers ------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"router of {self._launch.role} {self._launch.model}"

    async def _until_answering(self) -> None:
        """Wait for an answer that only our own process gives: one to our key."""
        while True:
            if (code := self.exit_code()) is not None:
                raise self._start_error(f"ended with exit code {code}")
            try:
                await self._entries(_FIRST_CALL_S)
                return
            except RouterError:
                await asyncio.sleep(_POLL_S)

    def _start_error(self, what: str) -> RouterError:
        return RouterError(
            f"{self._name} {what}. The end of its log, {self._launch.log_path}:\n{self._process.log_tail()}"
        )

    def _request(self, worker: RouterWorker) -> dict[str, Any]:
        request: dict[str, Any] = {
            "url": worker.base_url,
            "model_id": self._launch.served_model_name,
            "worker_type": _KIND[worker.half],
            "disable_health_check": True,
        }
        if worker.bootstrap_port is not None:
            request["bootstrap_port"] = worker.bootstrap_port
        return request

    async def _entries(self, timeout_s: float) -> list[dict[str, Any]]:
        entries: Any = _object(await self._told("GET", "/workers", timeout_s)).get("workers")
        if not isinstance(entries, list):
            raise RouterError(f"{self._name}: GET /workers answered no list of workers")
        return entries

    async def _failure(self, identity: str, timeout_s: float) -> str | None:
        """Why adding a worker failed for good; None while it has not."""
        status = await self._job(identity, timeout_s)
        failed = status.get("job_type") == "AddWorker" and status.get("status") == "failed"
        return str(status.get("message")) if failed else None

    async def _may_come(self, base_url: str, timeout_s: float) -> bool:
        """Whether a worker that is not listed was asked for, and may be added yet."""
        identity = self._unconfirmed.get(base_url)
        if identity is None:
            return False
        return (await self._job(identity, timeout_s)).get("status") in {"pending", "processing"}

    async def _job(self, identity: str, timeout_s: float) -> Mapping[str, Any]:
        """What the router says of the work that was queued for a worker; empty once it is done."""
        response = await self._told("GET", f"/workers/{quote(identity)}", timeout_s, missing_is_fine=True)
        status: Any = None if response.status_code == _NOT_FOUND else _object(response)
        return (status or {}).get("job_status") or {}

    async def _told(
        self,
        method: str,
        path: str,
        timeout_s: float,
        body: Mapping[str, Any] | None = None,
        *,
        missing_is_fine: bool = False,
    ) -> httpx.Response:
        response = await self._call(method, path, timeout_s, body)
        fine = response.is_success or (missing_is_fine and response.status_code == _NOT_FOUND)
        if not fine:
            raise RouterError(
                f"{self._name}: {method} {path}: HTTP {response.status_code}: {response.text[:300]}"
            )
        return response

    async def _call(
        self, method: str, path: str, timeout_s: float, body: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        limit = httpx.Timeout(min(timeout_s, _CALL_S), connect=min(timeout_s, _CONNECT_S))
        try:
            return await self._client.request(method, path, json=body, timeout=limit)
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed by a stop
            raise RouterError(
                f"{self._name}: {method} {self.base_url}{path}: {type(error).__name__}: {error}"
            ) from error


@asynccontextmanager
async def _within(seconds: float, words: str) -> AsyncGenerator[None]:
    """Bound the block; say in words what had not happened."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise RouterError(f"{words} after {seconds:g} s") from error


def _object(response: httpx.Response) -> Mapping[str, Any]:
    try:
        value: Any = response.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RouterError(f"{response.request.url}: no JSON object: {response.text[:300]!r}")
    return value


def _command(launch: RouterLaunch) -> list[str]:
    flags = [
        *("--host", launch.host, "--port", str(launch.port)),
        *("--prometheus-host", launch.host, "--prometheus-port", str(launch.metrics_port)),
        *("--disable-retries", "--disable-circuit-breaker", "--disable-health-check"),
        *("--request-timeout-secs", str(_NO_DEADLINE_S)),
        *("--shutdown-grace-period-secs", str(_GRACE_S)),
        *("--worker-startup-timeout-secs", "30", "--worker-startup-check-interval", "1"),
        *("--history-backend", "none", "--log-level", "warn"),
        *launch.options.flags(),
    ]
    if launch.pairs:
        flags.append("--pd-disaggregation")
    # -P: the folder of the script must not be searched for modules.
    return [sys.executable, "-P", launcher.__file__, *flags]
