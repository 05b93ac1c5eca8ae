"""The llama.cpp server that an adapter owns: its process, and its HTTP calls over a socket file.

The process is in the adapter's group and bound to its life. Stopping it is what gives memory back; it is
started again from the same file.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from attrs import frozen

_POLL_S = 0.02
_QUICK_S = 30.0
_TERMINATE_S = 5.0
_READ_S = 600.0
"""Silence between two tokens; a long prompt is computed in one."""


class LlamaFault(Exception):
    """The llama.cpp server could not be started, or failed in a request."""


class LlamaRefusal(Exception):
    """The llama.cpp server refused a request; ``body`` is its answer."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}: {body[:200].decode(errors='replace')}")
        self.status = status
        self.body = body


@frozen(kw_only=True)
class LlamaSettings:
    """What does not change while the adapter runs. ``folder`` holds the socket file."""

    folder: Path
    context_tokens: int
    parallel_requests: int
    threads: int
    binary: str | None
    arguments: tuple[str, ...]


class LlamaServer:
    """One llama.cpp server; ``model`` is the GGUF file that it serves or served last."""

    def __init__(self, settings: LlamaSettings, model: Path) -> None:
        self.settings = settings
        self.model = model
        self._socket = settings.folder / "llama.sock"
        self._process: asyncio.subprocess.Process | None = None
        self._client: httpx.AsyncClient | None = None
        self._stopping = False

    @property
    def running(self) -> bool:
        return self._process is not None

    async def start(self) -> None:
        """Start it and wait until it has loaded the model; does nothing while it runs.

        To be called in the main thread: the kernel ends the process with the thread that started it.

        Raises:
            LlamaFault: it ended before that.
        """
        if self._process is not None:
            return
        self._socket.unlink(missing_ok=True)
        process = await asyncio.create_subprocess_exec(*self._command())
        self._process = process
        # A server that has closed an idle connection would lose the request sent into it.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        transport = httpx.AsyncHTTPTransport(uds=str(self._socket), limits=limits)
        self._client = httpx.AsyncClient(
            transport=transport, base_url="http://llama", timeout=httpx.Timeout(_READ_S, connect=_QUICK_S)
        )
        try:
            while not await self._has_loaded():
                if process.returncode is not None:
                    raise LlamaFault(
                        f"{self.model}: the llama.cpp server ended with code {process.returncode}"
                    )
                await asyncio.sleep(_POLL_S)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End it; its memory is free when this returns. Repeats do nothing."""
        if self._process is None or self._client is None:
            return
        self._stopping = True
        await self._client.aclose()
        process = self._process
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _TERMINATE_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        self._process = self._client = None
        self._stopping = False

    async def ended(self) -> int:
        """Wait until it ends by itself, which it should not; return its exit code."""
        while True:
            process = self._process
            if process is not None:
                code = await process.wait()
                if process is self._process and not self._stopping:
                    return code
            await asyncio.sleep(_POLL_S)

    # --- calls --------------------------------------------------------------------------

    async def tokenise(self, text: str) -> list[int]:
        """Token ids of a prompt; text that spells a special token becomes that token."""
        body = {"content": text, "add_special": True, "parse_special": True}
        return (await self._call("POST", "/tokenize", body))["tokens"]

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """Events of a stream, progress on the prompt among them; closing the generator early cancels it.

        llama.cpp's server looks whether its caller is still there when it has something to send; without the
        progress it would have nothing until the whole prompt is computed.

        Raises:
            LlamaRefusal: it answered with an error.
            LlamaFault: the connection broke, or it failed in the middle.
        """
        asked = {**body, "stream": True, "return_progress": True}
        async with self._answer(path, asked) as response:
            async for line in response.aiter_lines():
                data = line.partition(": ")[2]
                if not data or data == "[DONE]":
                    continue
                event = json.loads(data)
                if line.startswith("error") or "error" in event:
                    raise LlamaFault(f"the llama.cpp server failed: {data:.500}")
                yield event

    async def chunks(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        """The bytes of an answer as they come; raises as :meth:`events`."""
        async with self._answer(path, body) as response:
            async for chunk in response.aiter_raw():
                yield chunk

    @asynccontextmanager
    async def _answer(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[httpx.Response]:
        """POST a request and hold its answer for the length of the block.

        Raises:
            LlamaRefusal: it answered with an error.
            LlamaFault: the connection broke.
        """
        try:
            async with self._up.stream("POST", path, content=_json(body), headers=_JSON) as response:
                if response.is_error:
                    raise LlamaRefusal(response.status_code, await response.aread())
                yield response
        except httpx.HTTPError as error:
            raise LlamaFault(f"{path}: {type(error).__name__}: {error}") from error

    async def busy_slots(self) -> int:
        """How many requests it is computing."""
        slots: Any = await self._call("GET", "/slots")
        return sum(bool(slot["is_processing"]) for slot in slots)

    async def drop_cache(self) -> None:
        """Forget all prompts."""
        for slot in range(self.settings.parallel_requests):
            await self._call("POST", f"/slots/{slot}?action=erase", {})

    async def shape(self) -> tuple[int, ...]:
        """What two models have in common if one can take the other's place."""
        meta = (await self._call("GET", "/v1/models"))["data"][0]["meta"]
        return tuple(int(meta[name]) for name in ("n_vocab", "n_embd", "n_params"))

    async def generates(self) -> None:
        """Make one token.

        Raises:
            LlamaFault, LlamaRefusal: it can't.
        """
        await self._call("POST", "/completion", {"prompt": [0], "n_predict": 1})

    # --- helpers ------------------------------------------------------------------------

    @property
    def _up(self) -> httpx.AsyncClient:
        if self._client is None:
            raise LlamaFault("the llama.cpp server is not running")
        return self._client

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        content = None if body is None else _json(body)
        try:
            response = await self._up.request(method, path, content=content, headers=_JSON)
        except httpx.HTTPError as error:
            raise LlamaFault(f"{path}: {type(error).__name__}: {error}") from error
        if response.is_error:
            raise LlamaRefusal(response.status_code, response.content)
        return response.json()

    async def _has_loaded(self) -> bool:
        try:
            return (await self._up.get("/health")).is_success
        except httpx.TransportError:
            return False

    def _command(self) -> list[str]:
        settings = self.settings
        command = [sys.executable, "-m", f"{__package__}.program", str(os.getpid())]
        if settings.binary is not None:
            command.append(settings.binary)
        command += ["--model", str(self.model), "--host", str(self._socket)]
        command += ["--ctx-size", str(settings.context_tokens * settings.parallel_requests)]
        command += ["--parallel", str(settings.parallel_requests), "--threads", str(settings.threads)]
        # The endpoint that drops a slot's cache is there with a folder for saved ones; none is ever saved.
        command += ["--slots", "--slot-save-path", f"{settings.folder}{os.sep}"]
        return [*command, *settings.arguments]


_JSON = {"content-type": "application/json"}


def _json(body: Mapping[str, Any]) -> bytes:
    # ASCII: JSON from a caller may hold lone surrogates, which UTF-8 can't.
    return json.dumps(body).encode()
