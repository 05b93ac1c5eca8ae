"""SGLang's HTTP control protocol, as a backend's engine object calls it.

One client for one engine at one URL, used from one event loop. Every call is made once: nothing
is retried here, since the caller knows which calls may be repeated. Transport faults and refusals
become :class:`~rolecall.api.EngineError` with the call, the status and the engine's own words.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from rolecall.api import EngineError, EngineHealth, FromGroup, MemoryTag, WeightsGroup

_CONNECT_S = 5.0
_QUICK_S = 30.0
"""Calls that only set a state: SGLang answers within milliseconds, later on a busy machine."""
_SLOW_S = 600.0
"""Calls that move weights; the caller's own deadline is the one that counts."""
_BODY_CHARS = 500
_LONG_STEP_S = 3.0
"""An idle scheduler's snapshot is younger than this, also on a busy machine."""


class SglangControl:
    """Control calls of one engine."""

    def __init__(self, base_url: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """``transport`` replaces the network, for tests."""
        self.base_url = base_url
        # Environment proxies must never carry control calls to a loopback engine.
        self._client = httpx.AsyncClient(
            base_url=base_url,
            timeout=httpx.Timeout(_QUICK_S, connect=_CONNECT_S),
            trust_env=False,
            transport=transport,
        )

    async def close(self) -> None:
        """Close the connections. Repeats do nothing."""
        await self._client.aclose()

    async def health(self, *, generate: bool, timeout_s: float) -> EngineHealth:
        """Ask ``/health`` or ``/health_generate``; an engine that can't be asked is not alive."""
        path = "/health_generate" if generate else "/health"
        try:
            response = await self._client.get(path, timeout=timeout_s)
        except httpx.TimeoutException:
            return EngineHealth(alive=False, detail=f"{path}: no answer within {timeout_s:g} s")
        except httpx.HTTPError as error:
            return EngineHealth(alive=False, detail=f"{path}: {_describe(error)}")
        return EngineHealth(alive=response.is_success, detail=f"{path}: HTTP {response.status_code}")

    async def server_info(self) -> Mapping[str, Any]:
        """What ``/server_info`` reports."""
        return await self._read_object("/server_info")

    async def model_info(self) -> Mapping[str, Any]:
        """What ``/model_info`` reports."""
        return await self._read_object("/model_info")

    async def running_requests(self) -> int:
        """Requests that the schedulers run or have queued, by their last snapshots.

        A scheduler writes its snapshot all the time while idle, and else after a prefill or some (15)
        decode steps: a request that has just come may be missing. One that has written none for a while
        is in a long step, or stuck: it counts as one request at least.
        """
        answer = await self._read_object("/v1/loads")
        try:
            return sum(_working_on(load, time.time()) for load in answer["loads"])
        except (KeyError, TypeError) as error:
            raise EngineError(f"/v1/loads: the answer is not known here: {answer!r:.500}") from error

    async def generate(self, payload: Mapping[str, Any], *, timeout_s: float) -> Mapping[str, Any]:
        """One unary ``/generate``."""
        response = await self._call("POST", "/generate", payload, timeout_s)
        return _object("/generate", response)

    async def pause(self, mode: str = "abort") -> None:
        """Stop scheduling; ``abort`` ends running requests, other modes keep them."""
        await self._call("POST", "/pause_generation", {"mode": mode})

    async def continue_generation(self) -> None:
        """Undo ``pause``."""
        await self._call("POST", "/continue_generation", {})

    async def abort(self, rid: str) -> None:
        """Abort one request; an unknown id does nothing."""
        await self._call("POST", "/abort_request", {"rid": rid})

    async def abort_all(self) -> None:
        """Abort every request."""
        await self._call("POST", "/abort_request", {"abort_all": True})

    async def flush(self) -> bool:
        """Drop the cache; False while the engine refuses since something still runs."""
        response = await self._send("POST", "/flush_cache", None, _QUICK_S)
        if response.status_code >= 500:
            raise EngineError(_refusal("POST", "/flush_cache", response))
        return response.is_success

    async def release(self, tags: frozenset[MemoryTag]) -> None:
        """Give memory back."""
        await self._call("POST", "/release_memory_occupation", {"tags": sorted(tags)}, _SLOW_S)

    async def resume(self, tags: frozenset[MemoryTag]) -> None:
        """Take memory again."""
        await self._call("POST", "/resume_memory_occupation", {"tags": sorted(tags)}, _SLOW_S)

    async def update_weights_from_disk(
        self, model_path: str, weight_version: str | None, *, load_format: str | None = None
    ) -> None:
        """Load other weights of the same shape; None leaves the version, or the format, as it is."""
        payload = {"model_path": model_path, "weight_version": weight_version, "load_format": load_format}
        given = {key: value for key, value in payload.items() if value is not None}
        await self._update("/update_weights_from_disk", given)

    async def update_weights_from_tensors(
        self,
        serialized: Sequence[str],
        *,
        load_format: str | None = None,
        weight_version: str | None = None,
        flush_cache: bool = True,
    ) -> None:
        """Load weights from tensors that SGLang's own serializer wrote, one text a tensor-parallel rank."""
        async with self._weights_session():
            await self._update(
                "/update_weights_from_tensor",
                {
                    "serialized_named_tensors": list(serialized),
                    "load_format": load_format,
                    "weight_version": weight_version,
                    "flush_cache": flush_cache,
                },
            )

    async def update_weights_from_group(self, update: FromGroup, *, weight_version: str) -> None:
        """Receive weights that rank 0 of the group broadcasts, in this order, while the call runs."""
        async with self._weights_session():
            await self._update(
                "/update_weights_from_distributed",
                {
                    "group_name": update.group,
                    "names": list(update.names),
                    "dtypes": list(update.dtypes),
                    "shapes": [list(shape) for shape in update.shapes],
                    "weight_version": weight_version,
                },
            )

    async def join_weights_group(self, group: WeightsGroup) -> None:
        """Join; SGLang computes nothing until all ranks have come."""
        host, _, port = group.master.rpartition(":")
        await self._update(
            "/init_weights_update_group",
            {
                "group_name": group.name,
                "master_address": host.strip("[]"),
                "master_port": int(port),
                "rank_offset": group.rank_offset,
                "world_size": group.world_size,
                "backend": group.transport,
            },
        )

    async def leave_weights_group(self, name: str) -> None:
        """Leave a group that was joined."""
        await self._update("/destroy_weights_update_group", {"group_name": name})

    @asynccontextmanager
    async def _weights_session(self) -> AsyncGenerator[None]:
        """Frame an update as newer releases of SGLang demand; older ones know no such call."""
        response = await self._send("POST", "/begin_weight_update", {}, _SLOW_S)
        if response.status_code == 404:
            yield
            return
        if not response.is_success:
            raise EngineError(_refusal("POST", "/begin_weight_update", response))
        try:
            yield
        finally:
            await self._update("/end_weight_update", {})

    async def _update(self, path: str, payload: Mapping[str, Any]) -> None:
        answer = _object(path, await self._call("POST", path, payload, _SLOW_S))
        if answer.get("success") is not True:
            raise EngineError(f"POST {path}: refused: {answer.get('message')!r}")

    async def _read_object(self, path: str) -> Mapping[str, Any]:
        return _object(path, await self._call("GET", path, None))

    async def _call(
        self, method: str, path: str, payload: Mapping[str, Any] | None, timeout_s: float = _QUICK_S
    ) -> httpx.Response:
        response = await self._send(method, path, payload, timeout_s)
        if not response.is_success:
            raise EngineError(_refusal(method, path, response))
        return response

    async def _send(
        self, method: str, path: str, payload: Mapping[str, Any] | None, timeout_s: float
    ) -> httpx.Response:
        timeout = httpx.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s))
        try:
            return await self._client.request(method, path, json=payload, timeout=timeout)
        except httpx.HTTPError as error:
            raise EngineError(f"{method} {self.base_url}{path}: {_describe(error)}") from error


def _working_on(load: Mapping[str, Any], now: float) -> int:
    counted = int(load["num_running_reqs"]) + int(load["num_waiting_reqs"])
    return max(counted, 1) if now - float(load["timestamp"]) > _LONG_STEP_S else counted


def _describe(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _refusal(method: str, path: str, response: httpx.Response) -> str:
    return f"{method} {path}: HTTP {response.status_code}: {response.text[:_BODY_CHARS]}"


def _object(path: str, response: httpx.Response) -> Mapping[str, Any]:
    try:
        value: Any = response.json()
    except ValueError as error:
        raise EngineError(f"{path}: the answer is not JSON: {response.text[:_BODY_CHARS]!r}") from error
    if not isinstance(value, dict):
        raise EngineError(f"{path}: the answer is {type(value).__name__}, an object was expected")
    return value
