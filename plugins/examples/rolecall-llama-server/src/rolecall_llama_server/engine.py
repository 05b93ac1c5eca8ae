"""One engine, seen from its worker: the adapter's process and its control calls."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from tempfile import TemporaryDirectory

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

from .control import Control

_POLL_S = 0.05
_PROBE_S = 5.0
_KILL_S = 10.0

_CANARY_PROMPT = "The capital of France is Paris, and the capital of Italy is"
_CANARY_TOKENS = 8


class LlamaServerEngine:
    """An engine on this node; see ``rolecall.api.Engine`` for each method's contract.

    ``start`` has to be called from a thread that lives as long as the engine shall.
    """

    def __init__(self, launch: EngineLaunch, environment: Mapping[str, str]) -> None:
        self.base_url = f"http://{launch.host}:{launch.port}"
        self._launch = launch
        self._environment = {**environment, **launch.marks}
        self._process: ChildProcess | None = None
        self._folder: TemporaryDirectory[str] | None = None
        self._control = Control(self.base_url)

    async def start(self, timeout_s: float) -> None:
        """Start the processes and wait until they generate; cancelling ends them again."""
        if self._process is not None:
            raise EngineError(f"engine {self._launch.engine_id} was started before")
        # The two processes meet at a socket file here: no second port, and out of others' reach.
        self._folder = TemporaryDirectory(prefix="llama-")
        command = _command(self._launch, self._folder.name)
        self._process = ChildProcess(command, environment=self._environment, log_path=self._launch.log_path)
        try:
            self._process.start()
            async with asyncio.timeout(timeout_s):
                await self._until_ready(self._process)
        except BaseException as error:
            await self.stop(_KILL_S)
            if isinstance(error, TimeoutError):
                raise self._start_error(f"was not ready within {timeout_s:g} s") from error
            raise

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.exit_code()

    async def health(self, *, generate: bool, timeout_s: float) -> EngineHealth:
        code = self.exit_code()
        if code is not None:
            return EngineHealth(alive=False, detail=f"the process ended with code {code}")
        return await self._control.health(generate=generate, timeout_s=timeout_s)

    async def running_requests(self) -> int:
        return int((await self._control.server_info())["running_requests"])

    async def pause(self) -> None:
        await self._control.post("/pause_generation", {"mode": "abort"})

    async def abort_all(self) -> None:
        await self._control.post("/abort_request", {"abort_all": True})

    async def flush(self) -> bool:
        return await self._control.flush()

    async def release(self, tags: frozenset[MemoryTag]) -> None:
        await self._control.post("/release_memory_occupation", {"tags": sorted(tags)})

    async def resume(self, tags: frozenset[MemoryTag]) -> None:
        await self._control.post("/resume_memory_occupation", {"tags": sorted(tags)})

    async def continue_generation(self) -> None:
        await self._control.post("/continue_generation", {})

    async def memory(self) -> MemoryReport:
        information = await self._control.server_info()
        return MemoryReport(
            resident_tags=frozenset(MemoryTag(tag) for tag in information["resident_tags"]),
            resident_bytes=int(information["resident_bytes"]),
        )

    async def canary(self) -> tuple[float, ...]:
        """Log-probabilities of the tokens that follow a fixed prompt; needs an engine that is awake."""
        answer = await self._control.post(
            "/generate",
            {
                "text": _CANARY_PROMPT,
                "sampling_params": {
                    "temperature": 0,
                    "max_new_tokens": _CANARY_TOKENS,
                    "ignore_eos": True,
                },
                "return_logprob": True,
            },
        )
        entries = answer["meta_info"]["output_token_logprobs"]
        if len(entries) != _CANARY_TOKENS:
            raise EngineError(f"the canary gave {len(entries)} tokens, {_CANARY_TOKENS} are expected")
        return tuple(float(entry[0]) for entry in entries)

    async def weight_version(self) -> str | None:
        if self._launch.is_static:
            return None
        return (await self._control.server_info())["weight_version"]

    async def update_weights(self, update: WeightUpdate, version: str) -> None:
        if self._launch.is_static:
            raise CapabilityError(f"engine {self._launch.engine_id} has static weights, which never change")
        if not isinstance(update, FromDisk):
            raise CapabilityError(f"llama.cpp loads weights from a file, not {type(update).__name__}")
        payload = {"model_path": str(update.path), "weight_version": version}
        await self._control.post("/update_weights_from_disk", payload)

    async def join_weights_group(self, group: WeightsGroup) -> None:
        raise CapabilityError(f"llama.cpp joins no group of ranks ({group.name!r} was asked)")

    async def leave_weights_group(self, name: str) -> None:
        """Nothing to leave."""

    async def stop(self, timeout_s: float) -> None:
        await self._control.close()
        if self._process is not None:
            await self._process.stop(timeout_s)
        if self._folder is not None:
            self._folder.cleanup()

    async def _until_ready(self, process: ChildProcess) -> None:
        while True:
            code = process.exit_code()
            if code is not None:
                raise self._start_error(f"ended with code {code} before it was ready")
            if (await self._control.health(generate=True, timeout_s=_PROBE_S)).alive:
                break
            await asyncio.sleep(_POLL_S)
        answering = (await self._control.server_info()).get("pid")
        if answering != process.pid:
            raise self._start_error(
                f"is not what answers at {self.base_url}: that is pid {answering}, ours is {process.pid}; "
                "is the port taken?"
            )

    def _start_error(self, problem: str) -> EngineStartError:
        tail = "" if self._process is None else self._process.log_tail()
        log = self._launch.log_path
        return EngineStartError(f"engine {self._launch.engine_id} {problem}\n--- end of {log} ---\n{tail}")


def _command(launch: EngineLaunch, folder: str) -> list[str]:
    options = launch.options
    command = [sys.executable, "-m", f"{__package__}.server"]
    command += ["--model-path", str(launch.model_path), "--served-model-name", launch.served_model_name]
    command += ["--host", launch.host, "--port", str(launch.port)]
    command += ["--folder", folder]
    command += ["--context-tokens", str(options.context_tokens)]
    command += ["--parallel-requests", str(options.parallel_requests), "--threads", str(options.threads)]
    if launch.weight_version is not None:
        command += ["--weight-version", launch.weight_version]
    if options.binary is not None:
        command += ["--binary", options.binary, "--", *options.arguments]
    return command
