"""An engine that somebody else runs, over the control protocol that the backends here share.

Its control paths have to be reachable at its URL: an engine behind an admission guard takes no new weights.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from rolecall.api import (
    CapabilityError,
    EngineError,
    EngineHealth,
    EngineStartError,
    FromDisk,
    MemoryReport,
    MemoryTag,
    WeightsGroup,
    WeightUpdate,
)

from .controlled import CANARY_PROMPT, ControlledEngine
from .http_control import SglangControl

_POLL_S = 0.2
_PROBE_S = 30.0
_CANARY_S = 120.0


class AttachedHttpEngine(ControlledEngine):
    """See :class:`rolecall.api.AttachedEngine`.

    running: asks how many requests it works on, where the backends differ.
    """

    def __init__(self, url: str, *, static: bool, running: Callable[[SglangControl], Awaitable[int]]) -> None:
        super().__init__(url, static=static)
        self._running = running

    async def start(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            seen = await self._control.health(generate=True, timeout_s=max(min(_PROBE_S, left_s), _POLL_S))
            if seen.alive:
                return
            if time.monotonic() >= deadline:
                raise EngineStartError(f"{self.base_url} does not generate: {seen.detail}")
            await asyncio.sleep(_POLL_S)

    @property
    def pid(self) -> int | None:
        return None

    def exit_code(self) -> int | None:
        return None

    async def model_paths(self) -> frozenset[str]:
        info = await self._control.model_info()
        return frozenset(
            path for path in (info.get("model_path"), info.get("tokenizer_path")) if isinstance(path, str)
        )

    async def health(self, *, generate: bool, timeout_s: float) -> EngineHealth:
        return await self._control.health(generate=generate, timeout_s=timeout_s)

    async def running_requests(self) -> int:
        return await self._running(self._control)

    async def release(self, tags: frozenset[MemoryTag]) -> None:
        raise CapabilityError(f"{self.base_url} is somebody else's; the job releases no {sorted(tags)} of it")

    async def resume(self, tags: frozenset[MemoryTag]) -> None:
        """Nothing was released."""

    async def memory(self) -> MemoryReport:
        """Nothing of the job's."""
        return MemoryReport(resident_tags=frozenset(), resident_bytes=0)

    async def canary(self) -> tuple[float, ...]:
        answer = await self._control.generate(
            {
                "input_ids": list(CANARY_PROMPT),
                "sampling_params": {"temperature": 0, "max_new_tokens": 1},
                "return_logprob": True,
                "logprob_start_len": 0,
            },
            timeout_s=_CANARY_S,
        )
        try:
            return tuple(float(entry[0]) for entry in answer["meta_info"]["input_token_logprobs"][1:])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise EngineError(f"{self.base_url}: no log-probabilities in {answer!r:.300}") from error

    async def update_weights(self, update: WeightUpdate, version: str) -> None:
        if self._static or not isinstance(update, FromDisk):
            raise CapabilityError(f"{self.base_url} takes no {type(update).__name__}")
        await self._control.update_weights_from_disk(str(update.path), version)

    async def join_weights_group(self, group: WeightsGroup) -> None:
        raise CapabilityError(f"{self.base_url} is somebody else's; it joins no group {group.name!r}")

    async def leave_weights_group(self, name: str) -> None:
        """It never joined one."""

    async def stop(self, timeout_s: float) -> None:
        """Close the connections; the engine runs on."""
        del timeout_s
        await self._control.close()
