"""The adapter's control calls, as the engine object makes them: once each, nothing is retried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from rolecall.api import EngineError, EngineHealth

_BUSY = 409
_CONNECT_S = 5.0
_READ_S = 600.0
"""A call may load a model; the caller's own deadline is the one that counts."""


class Control:
    """Control calls of one engine, from one event loop."""

    def __init__(self, base_url: str) -> None:
        # Environment proxies must never carry control calls to a loopback engine.
        self._client = httpx.AsyncClient(
            base_url=base_url, timeout=httpx.Timeout(_READ_S, connect=_CONNECT_S), trust_env=False
        )

    async def close(self) -> None:
        """Close the connections. Repeats do nothing."""
        await self._client.aclose()

    async def health(self, *, generate: bool, timeout_s: float) -> EngineHealth:
        """Ask ``/health`` or ``/health_generate``; an engine that can't be asked is not alive."""
        path = "/health_generate" if generate else "/health"
        try:
            response = await self._client.get(path, timeout=timeout_s)
        except httpx.HTTPError as error:
            return EngineHealth(alive=False, detail=f"{path}: {type(error).__name__}: {error}")
        return EngineHealth(alive=response.is_success, detail=f"{path}: HTTP {response.status_code}")

    async def server_info(self) -> Mapping[str, Any]:
        """What ``/server_info`` reports."""
        return _object(_accepted(await self._send("GET", "/server_info", None)))

    async def post(self, path: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """POST, and return the answer's object.

        Raises:
            EngineError: it could not be asked, or refused; the message has its own words.
        """
        return _object(_accepted(await self._send("POST", path, payload)))

    async def flush(self) -> bool:
        """Drop the cache; False while the engine refuses since something still runs."""
        response = await self._send("POST", "/flush_cache", {})
        if response.status_code == _BUSY:
            return False
        _accepted(response)
        return True

    async def _send(self, method: str, path: str, payload: Mapping[str, Any] | None) -> httpx.Response:
        try:
            return await self._client.request(method, path, json=payload)
        except httpx.HTTPError as error:
            raise EngineError(f"{method} {path}: {type(error).__name__}: {error}") from error


def _accepted(response: httpx.Response) -> httpx.Response:
    if not response.is_success:
        asked = f"{response.request.method} {response.request.url.path}"
        raise EngineError(f"{asked}: HTTP {response.status_code}: {response.text[:500]}")
    return response


def _object(response: httpx.Response) -> Mapping[str, Any]:
    try:
        value = response.json()
    except ValueError as error:
        raise EngineError(f"{response.request.url.path} answered no JSON: {response.text[:500]!r}") from error
    if not isinstance(value, dict):
        raise EngineError(f"{response.request.url.path} answered no object: {response.text[:500]!r}")
    return value
