"""One embedded engine, seen from its worker: the child process and its control calls.

Owns the process from ``start`` to ``stop``. Runs no model code and imports none.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from rolecall.api import (
    CapabilityError,
    ChildProcess,
    EngineError,
    EngineHealth,
    EngineLaunch,
    EngineStartError,
    FromDisk,
    MemoryReport,
    MemoryTag,
    WeightsGroup,
    WeightUpdate,
)
from rolecall_plugins.engines.controlled import CANARY_PROMPT, ControlledEngine
from rolecall_plugins.engines.http_control import SglangControl

_POLL_S = 0.05
_PROBE_S = 5.0
_CANARY_S = 120.0
_KILL_S = 10.0

_CANARY_NEW_TOKENS = 4


class EmbeddedEngine(ControlledEngine):
    """An engine process on this node; see ``rolecall.api.Engine`` for each method's contract.

    ``start`` has to be called from a thread that lives as long as the engine shall: the process
    dies with it.
    """

    def __init__(self, launch: EngineLaunch, environment: Mapping[str, str]) -> None:
        super().__init__(f"http://{launch.host}:{launch.port}", static=launch.is_static)
        self._launch = launch
        self._process = ChildProcess(
            _command(launch), environment={**environment, **launch.marks}, log_path=launch.log_path
        )

    async def start(self, timeout_s: float) -> None:
        """Start the process and wait until it generates; cancelling stops it again."""
        try:
            self._process.start()
            async with asyncio.timeout(timeout_s):
                await self._until_ready()
        except BaseException as error:
            await self._process.stop(_KILL_S)
            if isinstance(error, TimeoutError):
                raise self._start_error(f"was not ready within {timeout_s:g} s") from error
            raise

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def exit_code(self) -> int | None:
        return self._process.exit_code()

    async def health(self, *, generate: bool, timeout_s: float) -> EngineHealth:
        code = self.exit_code()
        if code is not None:
            return EngineHealth(alive=False, detail=f"the process ended with code {code}")
        return await self._control.health(generate=generate, timeout_s=timeout_s)

    async def running_requests(self) -> int:
        return await running_requests(self._control)

    async def release(self, tags: frozenset[MemoryTag]) -> None:
        await self._control.release(tags)

    async def resume(self, tags: frozenset[MemoryTag]) -> None:
        await self._control.resume(tags)

    async def files_for_resume(self) -> tuple[Path, ...]:
        """The serving file, which the weights are mapped from again."""
        return (Path((await self._control.server_info())["weights_file"]),)

    async def memory(self) -> MemoryReport:
        information = await self._control.server_info()
        return MemoryReport(
            resident_tags=frozenset(MemoryTag(tag) for tag in information["resident_tags"]),
            resident_bytes=int(information["resident_bytes"]),
        )

    async def canary(self) -> tuple[float, ...]:
        """Log-probabilities of ten prompt tokens and four greedy ones.

        The prompt's come from the NumPy forward and the answer's from llama.cpp, so both readers
        of the weights are covered. Needs an engine that is awake and not paused; the figures are
        the same to the last bit while nothing else runs.
        """
        answer = await self._control.generate(
            {
                "input_ids": list(CANARY_PROMPT),
                "sampling_params": {
                    "temperature": 0,
                    "max_new_tokens": _CANARY_NEW_TOKENS,
                    "ignore_eos": True,
                },
                "return_logprob": True,
                "logprob_start_len": 0,
            },
            timeout_s=_CANARY_S,
        )
        meta = answer["meta_info"]
        entries = [*meta["input_token_logprobs"][1:], *meta["output_token_logprobs"]]
        expected = len(CANARY_PROMPT) - 1 + _CANARY_NEW_TOKENS
        if len(entries) != expected:
            raise EngineError(
                f"the canary gave {len(entries)} log-probabilities, {expected} are expected; "
                f"it ended with {meta['finish_reason']}"
            )
        return tuple(float(entry[0]) for entry in entries)

    async def update_weights(self, update: WeightUpdate, version: str) -> None:
        if self._static:
            raise CapabilityError(f"engine {self._launch.engine_id} has static weights, which never change")
        if not isinstance(update, FromDisk):
            raise CapabilityError(f"the embedded engine loads weights from disk, not {type(update).__name__}")
        await self._control.update_weights_from_disk(str(update.path), version)

    async def join_weights_group(self, group: WeightsGroup) -> None:
        raise CapabilityError(f"the embedded engine joins no group of ranks ({group.name!r} was asked)")

    async def leave_weights_group(self, name: str) -> None:
        """Nothing to leave."""

    async def stop(self, timeout_s: float) -> None:
        await self._control.close()
        await self._process.stop(timeout_s)

    async def _until_ready(self) -> None:
        while True:
            code = self._process.exit_code()
            if code is not None:
                raise self._start_error(f"ended with code {code} before it was ready")
            if (await self._control.health(generate=True, timeout_s=_PROBE_S)).alive:
                break
            await asyncio.sleep(_POLL_S)
        information = await self._control.server_info()
        if information.get("pid") != self.pid:
            raise self._start_error(
                f"is not what answers at {self.base_url}: that is pid {information.get('pid')}, "
                f"ours is {self.pid}; is the port taken?"
            )

    def _start_error(self, problem: str) -> EngineStartError:
        log = self._launch.log_path
        tail = self._process.log_tail()
        return EngineStartError(f"engine {self._launch.engine_id} {problem}\n--- end of {log} ---\n{tail}")


async def running_requests(control: SglangControl) -> int:
    """Return how many requests an engine works on or has queued."""
    information = await control.server_info()
    return int(information["running_requests"]) + int(information["queued_requests"])


def _command(launch: EngineLaunch) -> list[str]:
    options = launch.options
    command = [sys.executable, "-m", f"{__package__}.server"]
    command += ["--model-path", str(launch.model_path), "--host", launch.host, "--port", str(launch.port)]
    command += ["--served-model-name", launch.served_model_name]
    command += ["--context-tokens", str(options.context_tokens)]
    command += ["--parallel-requests", str(options.parallel_requests)]
    command += ["--threads", str(options.threads), "--batch-tokens", str(options.batch_tokens)]
    if launch.weight_version is not None:
        command += ["--weight-version", launch.weight_version]
    if not options.prefix_cache:
        command.append("--no-prefix-cache")
    return command
