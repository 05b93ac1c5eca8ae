"""The engine as one object: model, memory, scheduler, weight version; what the endpoints call.

Holds the order that control calls need: one at a time, memory changed only while nothing runs.
Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import frozen

from .allocator import resident_bytes
from .chat import ChatTemplate
from .generation import Generation
from .gguf_file import GgufFile
from .llama_runtime import RuntimeLimits
from .memory import HELD_TAGS, EngineMemory, Tag
from .requests import GenerateRequest
from .scheduler import Scheduler
from .serving_file import ensure_serving_file, model_file
from .tokenizer import ModelTokenizer
from .weights import WeightsFile


class Busy(Exception):
    """The control call needs an idle engine, and requests are running (409)."""


@frozen(kw_only=True)
class ServiceSettings:
    """How to serve one model."""

    model_path: Path
    served_model_name: str
    weight_version: str
    limits: RuntimeLimits
    reuse_prefixes: bool


class EngineService:
    """One served model."""

    def __init__(self, settings: ServiceSettings) -> None:
        """Read the tokenizer and load the weights; main thread, blocks.

        Raises:
            GgufError: the model file can't be read or served.
            RuntimeFault: llama.cpp can't load it.
        """
        self.settings = settings
        self.model_path = str(settings.model_path)
        self.weight_version = settings.weight_version
        self._source = model_file(settings.model_path)
        self.tokenizer = ModelTokenizer(GgufFile(self._source))
        template = self.tokenizer.chat_template
        self.chat_template = (
            None if template is None else ChatTemplate(template, self.tokenizer.special_tokens)
        )
        self._weights = WeightsFile(path=ensure_serving_file(self._source))
        self._memory = EngineMemory(self._weights.path, settings.limits)
        self._memory.resume(HELD_TAGS)
        self.scheduler = Scheduler(
            self._memory,
            self.tokenizer,
            slots=settings.limits.parallel_requests,
            reuse_prefixes=settings.reuse_prefixes,
        )
        self._control = asyncio.Lock()

    @property
    def awake(self) -> bool:
        """Whether everything is resident."""
        return self._memory.awake

    @property
    def context_tokens(self) -> int:
        """Prompt and answer of one request may have so many tokens."""
        return self.settings.limits.context_tokens

    def submit(self, request: GenerateRequest) -> Generation:
        """Start a request; see ``Scheduler.submit``."""
        return self.scheduler.submit(request, self.weight_version)

    async def release(self, tags: Iterable[Tag]) -> None:
        """Give back memory.

        Raises:
            Busy: requests are running or queued.
        """
        async with self._control:
            await self._need_idle("release memory")
            self._memory.release(tags)
            if not self.awake:
                self.scheduler.turn_away()
            if Tag.KV_CACHE not in self._memory.resident:
                self.scheduler.forget_cache()

    async def resume(self, tags: Iterable[Tag]) -> None:
        """Take memory again.

        Raises:
            RuntimeFault: the weights can't be loaded.
        """
        async with self._control:
            if self._weights.descriptor is None and not self._weights.path.exists():
                # Someone cleaned the cache folder while the engine slept.
                await asyncio.to_thread(ensure_serving_file, self._source)
            self._memory.resume(tags)
            self.scheduler.forget_cache()

    async def update_weights(self, path: Path, version: str | None) -> None:
        """Serve other weights of the same shape; the old ones go on serving if it fails.

        Raises:
            Busy: requests are running or queued, or memory is released.
            GgufError: the checkpoint is unreadable or has another shape.
            RuntimeFault: llama.cpp can't load it.
        """
        async with self._control:
            if not self.awake:
                raise Busy("cannot update the weights: memory is released; resume it first")
            await self._need_idle("update the weights")
            new = await asyncio.to_thread(WeightsFile.convert, path, self._weights)
            await self._need_idle("update the weights")
            self._memory.replace_weights(new.path)
            self.scheduler.forget_cache()
            self._weights.close()
            self._weights = new
            self.model_path = str(path)
            if version is not None:
                self.weight_version = version

    async def _need_idle(self, what: str) -> None:
        """Check with no further ``await`` before the caller's next step."""
        await self.scheduler.settle()
        load = self.scheduler.load()
        if not load.idle:
            raise Busy(
                f"cannot {what}: {load.running} requests run and {load.queued} wait; "
                "pause in mode abort and flush first"
            )

    def information(self) -> dict[str, Any]:
        """What ``/server_info`` reports."""
        load = self.scheduler.load()
        return {
            "engine": "embedded",
            "pid": os.getpid(),
            "model_path": self.model_path,
            "served_model_name": self.settings.served_model_name,
            "weight_version": self.weight_version,
            "resident_tags": sorted(self._memory.resident),
            "resident_bytes": resident_bytes(),
            "weights_file": self._weights.path_from_outside,
            "running_requests": load.running,
            "queued_requests": load.queued,
            "waiting_requests": load.at_door,
            "paused": self.scheduler.paused,
            "vocab_size": self.tokenizer.vocabulary_size,
            "context_length": self.context_tokens,
            "max_running_requests": self.settings.limits.parallel_requests,
            "threads": self.settings.limits.threads,
        }

    def model_information(self) -> dict[str, Any]:
        """What ``/model_info`` reports."""
        return {
            "model_path": self.model_path,
            "tokenizer_path": str(self.settings.model_path),
            "is_generation": True,
            "served_model_name": self.settings.served_model_name,
            "weight_version": self.weight_version,
            "vocab_size": self.tokenizer.vocabulary_size,
            "context_length": self.context_tokens,
        }
