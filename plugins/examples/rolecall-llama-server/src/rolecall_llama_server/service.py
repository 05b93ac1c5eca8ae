"""The adapter's state: the llama.cpp server, the door in front of it, the weights' version.

Holds the order that control calls need: one at a time, memory changed only while nothing runs. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from .chat import ChatAnswer
from .generation import GenerateRequest, Generation
from .llama import LlamaFault, LlamaRefusal, LlamaServer
from .tickets import Aborted, Door, Ticket

COMPLETION_PATH = "/completion"
CHAT_PATH = "/v1/chat/completions"

MEMORY_TAG = "weights"
"""The only one: weights and cache belong to one process."""


class Busy(Exception):
    """The control call needs an idle engine, and requests are running (409)."""


class Asleep(Exception):
    """The memory is released; nothing can be generated now (503)."""


class Service:
    """One served model."""

    def __init__(self, llama: LlamaServer, *, served_model_name: str, weight_version: str) -> None:
        self.llama = llama
        self.door = Door()
        self.served_model_name = served_model_name
        self.weight_version = weight_version
        self._control = asyncio.Lock()

    async def generate(self, request: GenerateRequest, ticket: Ticket) -> AsyncGenerator[Generation]:
        """Yield the generation each time that it has grown; the last one is complete.

        Raises:
            Asleep, LlamaFault, LlamaRefusal, InvalidField: nothing was generated, or it failed on the way.
            Aborted: it was aborted before it began.
        """
        async with self._admitted(ticket):
            prompt = request.ids
            if prompt is None:
                prompt = await ticket.step(self.llama.tokenise(request.text or ""))
            generation = Generation(
                request=request, rid=ticket.rid, prompt=tuple(prompt), weight_version=self.weight_version
            )
            generation.check_fits(self.llama.settings.context_tokens)
            if request.sampling.max_new_tokens == 0:
                generation.end_without_tokens()
                yield generation
                return
            async with aclosing(self.llama.events(COMPLETION_PATH, generation.body())) as events:
                while generation.finish is None:
                    try:
                        event = await ticket.step(anext(events, None))
                        if event is None:
                            raise LlamaFault("the llama.cpp server broke its answer off")
                        generation.take(event)
                    except Aborted:
                        generation.abort()
                    yield generation

    async def chat(self, body: Mapping[str, Any], ticket: Ticket) -> ChatAnswer:
        """Return the whole answer to a chat.

        Raises:
            Asleep, LlamaFault, LlamaRefusal, InvalidField, Aborted: as :meth:`generate`.
        """
        answer = ChatAnswer(ticket.rid, self.served_model_name)
        body = {**body, "stream_options": {"include_usage": True}}
        async with self._admitted(ticket), aclosing(self.llama.events(CHAT_PATH, body)) as events:
            try:
                while (event := await ticket.step(anext(events, None))) is not None:
                    answer.take(event)
            except Aborted:
                answer.abort()
        return answer

    async def chat_stream(self, body: Mapping[str, Any], ticket: Ticket) -> AsyncGenerator[bytes]:
        """Yield llama.cpp's own bytes; raises as :meth:`generate`, and Aborted also on the way."""
        async with self._admitted(ticket), aclosing(self.llama.chunks(CHAT_PATH, body)) as chunks:
            while chunk := await ticket.step(anext(chunks, b"")):
                yield chunk

    @asynccontextmanager
    async def _admitted(self, ticket: Ticket) -> AsyncGenerator[None]:
        """Through the door, if there is a model behind it."""
        self.check_awake()
        async with self.door.admitted(ticket):
            self.check_awake()
            yield

    def check_awake(self) -> None:
        """Raise Asleep while memory is released."""
        if not self.llama.running:
            raise Asleep("the engine's memory is released")

    async def running_requests(self) -> int:
        """Requests under way, also those that llama.cpp has not let go of yet."""
        if not self.llama.running:
            return self.door.running
        return max(self.door.running, await self.llama.busy_slots())

    async def flush(self) -> None:
        """Drop the cache.

        Raises:
            Busy: something runs.
        """
        async with self._control:
            await self._need_idle("drop the cache")
            if self.llama.running:
                await self.llama.drop_cache()

    async def release(self) -> None:
        """End the llama.cpp server. Repeats do nothing.

        Raises:
            Busy: something runs.
        """
        async with self._control:
            await self._need_idle("release memory")
            await self.llama.stop()

    async def resume(self) -> None:
        """Start the llama.cpp server again. Repeats do nothing.

        Raises:
            LlamaFault: it can't load the model.
        """
        async with self._control:
            await self.llama.start()

    async def update_weights(self, model: Path, version: str) -> None:
        """Serve another file; if it can't be, the old one goes on.

        Raises:
            Busy: something runs.
            Asleep: there is nothing to compare the new weights with.
            LlamaFault: it can't be loaded, or has another shape.
        """
        async with self._control:
            self.check_awake()
            await self._need_idle("update the weights")
            shape, old = await self.llama.shape(), self.llama.model
            await self.llama.stop()
            self.llama.model = model
            try:
                await self.llama.start()
                found = await self.llama.shape()
                if found != shape:
                    raise LlamaFault(
                        f"{model}: vocabulary, width and parameters are {found}; the model's are {shape}"
                    )
            except (LlamaFault, LlamaRefusal):
                await self.llama.stop()
                self.llama.model = old
                await self.llama.start()
                raise
            self.weight_version = version

    async def _need_idle(self, what: str) -> None:
        running = await self.running_requests()
        if running:
            raise Busy(f"cannot {what}: {running} requests run; pause first")

    async def information(self) -> dict[str, Any]:
        """What ``/server_info`` reports."""
        return {
            "engine": "llama_server",
            "pid": os.getpid(),
            "model_path": str(self.llama.model),
            "served_model_name": self.served_model_name,
            "weight_version": self.weight_version,
            "resident_tags": [MEMORY_TAG] if self.llama.running else [],
            "resident_bytes": _resident_bytes(),
            "running_requests": await self.running_requests(),
            "paused": self.door.paused,
            "context_length": self.llama.settings.context_tokens,
            "max_running_requests": self.llama.settings.parallel_requests,
        }


def _resident_bytes() -> int:
    """Resident set size of the adapter and all that it has started."""
    adapter = psutil.Process()
    total = adapter.memory_info().rss
    for child in adapter.children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue  # ended meanwhile, and holds nothing
    return total
