"""One SGLang engine on one node, seen from its worker: the processes and their control calls.

Owns the processes from ``start`` to ``stop``. Imports neither SGLang nor torch. What SGLang can do is
found by asking it; its version is never looked at.

What SGLang forgives badly is kept away from it: releasing or resuming what was released or resumed
before ends its scheduler, so the engine remembers which tags are away.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from rolecall.api import (
    UPDATE_CAPABILITY,
    Capability,
    CapabilityError,
    ChildProcess,
    EngineError,
    EngineHealth,
    EngineLaunch,
    EngineStartError,
    FromDisk,
    FromGroup,
    FromTensors,
    MemoryReport,
    MemoryTag,
    WeightsGroup,
    WeightUpdate,
)
from rolecall_plugins.engines.controlled import ControlledEngine

from . import canary
from .command import interpreter, server_command
from .device_memory import used_device_memory
from .features import features_of
from .holder_client import WeightsHolder
from .installed_flags import check_server_args, installed_flags
from .members import EngineMembers, group_pids, listens
from .options import Device, SglangOptions
from .sleeping_weights import sleeping_weights
from .start_failure import raised_in

_POLL_S = 0.1
_PROBE_S = 30.0
"""SGLang answers /health_generate after 1 s at least, and gives up after 20 s."""
_KILL_S = 10.0
_INTERRUPT_SHARE = 0.3
"""Part of a stop's time-out in which the server may end by itself."""
_NO_VERSION = "default"
"""What SGLang reports when it was given no version."""


class SglangEngine(ControlledEngine):
    """An engine's processes on this node; see ``rolecall.api.Engine`` for each method's contract.

    ``start`` has to be called from a thread that lives as long as the engine shall: the processes die
    with it.
    """

    def __init__(self, launch: EngineLaunch, environment: Mapping[str, str]) -> None:
        options: SglangOptions = launch.options
        super().__init__(f"http://{launch.host}:{launch.port}", static=launch.is_static)
        self._launch = launch
        self._options = options
        self._features = features_of(options, static=launch.is_static)
        self._environment = environment
        self._process: ChildProcess | None = None
        self._members = EngineMembers()
        self._holder_lock = asyncio.Lock()
        self._holder = WeightsHolder(
            self._control,
            launch.log_path.with_suffix(".weights"),
            ranks=launch.tensor_parallel * launch.pipeline_parallel,
            ranks_here=launch.tensor_parallel * launch.pipeline_parallel // launch.nodes,
        )
        self._weights = sleeping_weights(launch, self._control, self._holder)
        self._away: frozenset[MemoryTag] = frozenset()
        self._groups: set[str] = set()

    # --- the process --------------------------------------------------------------------

    async def start(self, timeout_s: float) -> None:
        """Start the processes and wait until they generate; cancelling stops them again."""
        if self._process is not None:
            raise EngineError(f"engine {self._launch.engine_id} was started before, as pid {self.pid}")
        try:
            async with asyncio.timeout(timeout_s):
                process = self._process = await self._make_process()
                process.start()
                await self._until_ready(process)
        except BaseException as error:
            if self._process is not None:
                await self._end(self._process, _KILL_S)
                if isinstance(error, TimeoutError):
                    problem = f"was not ready within {timeout_s:g} s"
                    raise self._start_error(self._process, problem) from error
            raise

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.exit_code()

    async def stop(self, timeout_s: float) -> None:
        await self._control.close()
        if self._process is not None:
            await self._end(self._process, timeout_s)

    async def health(self, *, generate: bool, timeout_s: float) -> EngineHealth:
        """Look at the processes first: SGLang's server may answer although its scheduler has ended."""
        if self._process is None or self.pid is None:
            return EngineHealth(alive=False, detail="it was never started")
        if (code := self.exit_code()) is not None:
            return EngineHealth(alive=False, detail=f"the process ended with code {code}")
        if ended := self._members.look(self.pid):
            return EngineHealth(alive=False, detail=f"{', '.join(ended)} has ended")
        if not self._launch.is_head:
            return EngineHealth(alive=True, detail="the follower's processes run")
        return await self._control.health(generate=generate, timeout_s=timeout_s)

    async def running_requests(self) -> int:
        return await self._control.running_requests()

    # --- memory -------------------------------------------------------------------------

    async def release(self, tags: frozenset[MemoryTag]) -> None:
        self._require(Capability.SLEEP)
        wanted = (tags & self._features.memory_tags) - self._away
        if not wanted:
            return
        if MemoryTag.WEIGHTS in wanted:
            await self._weights.before_release()
        if self._options.device is Device.CPU:
            async with self._holder_lock:
                await self._holder.drop()
        else:
            await self._control.release(wanted)
        self._away |= wanted

    async def resume(self, tags: frozenset[MemoryTag]) -> None:
        wanted = tags & self._away
        if not wanted:
            return
        if self._options.device is Device.CPU:
            async with self._holder_lock:
                await self._holder.restore()
        else:
            await self._control.resume(wanted)
        if MemoryTag.WEIGHTS in wanted:
            await self._weights.after_resume(await self.weight_version())
        self._away -= wanted

    async def files_for_resume(self) -> tuple[Path, ...]:
        """The checkpoint, if the weights are read again from there."""
        return self._weights.files()

    async def memory(self) -> MemoryReport:
        """On CUDA, device memory of the engine's processes; on a CPU, the weights' bytes."""
        if self._options.device is Device.CUDA:
            used = await asyncio.to_thread(self._device_memory)
            tags = self._features.memory_tags - self._away
            return MemoryReport(resident_tags=tags, resident_bytes=used)
        if self._launch.is_head:
            async with self._holder_lock:
                held = await self._holder.report()
        else:
            held = self._holder.last_report()
        resident = self._features.memory_tags if held.weights_bytes else frozenset[MemoryTag]()
        return MemoryReport(resident_tags=resident, resident_bytes=held.weights_bytes)

    # --- weights ------------------------------------------------------------------------

    async def canary(self) -> tuple[float, ...]:
        answer = await self._control.generate(canary.request(self._launch), timeout_s=canary.TIMEOUT_S)
        return canary.log_probs(answer)

    async def update_weights(self, update: WeightUpdate, version: str) -> None:
        self._require(UPDATE_CAPABILITY[type(update)])
        await self._weights.changed(None)
        match update:
            case FromDisk(path=path):
                await self._control.update_weights_from_disk(str(path), version, load_format="auto")
                await self._weights.changed(path)
            case FromTensors(serialized=serialized, load_format=load_format):
                await self._control.update_weights_from_tensors(
                    serialized, load_format=load_format, weight_version=version
                )
            case FromGroup():
                await self._control.update_weights_from_group(update, weight_version=version)

    async def join_weights_group(self, group: WeightsGroup) -> None:
        self._require(Capability.UPDATE_FROM_GROUP)
        await self._control.join_weights_group(group)
        self._groups.add(group.name)

    async def leave_weights_group(self, name: str) -> None:
        if name in self._groups:
            await self._control.leave_weights_group(name)
            self._groups.remove(name)

    # --- helpers ------------------------------------------------------------------------

    def _device_memory(self) -> int:
        pids = frozenset[int]() if self.pid is None else group_pids(self.pid)
        return used_device_memory(self._launch.device_ids, pids)

    def _require(self, capability: Capability) -> None:
        if capability in self._features.capabilities:
            return
        if capability is Capability.SLEEP:
            why = self._features.no_sleep_because
        elif self._launch.is_static:
            why = "its weights are static"
        else:
            why = f"SGLang has no such way with dp_size = {self._options.data_parallel}"
        raise CapabilityError(f"engine {self._launch.engine_id} can't {capability.replace('_', ' ')}: {why}")

    async def _make_process(self) -> ChildProcess:
        environment = {**os.environ, **self._environment}
        environment |= {**self._holder.environment(environment), **self._launch.marks}
        python = interpreter(self._options)
        known = await installed_flags(python, environment)
        if known is not None:
            check_server_args(self._options.server_args, known, python)
        command = [*server_command(self._launch, known or frozenset()), *self._holder.arguments()]
        return ChildProcess(command, environment=environment, log_path=self._launch.log_path)

    async def _end(self, process: ChildProcess, timeout_s: float) -> None:
        """Interrupt the server, which then ends its own processes; whatever is left is killed.

        A SIGTERM to the whole group would have it diagnose the "crash" of its scheduler for 5 s.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        if process.pid is not None and process.exit_code() is None:
            os.kill(process.pid, signal.SIGINT)
            patience = began + timeout_s * _INTERRUPT_SHARE
            while process.exit_code() is None and loop.time() < patience:  # noqa: ASYNC110 - no event comes
                await asyncio.sleep(_POLL_S)
        await process.stop(max(began + timeout_s - loop.time(), 0.0))

    async def _until_ready(self, process: ChildProcess) -> None:
        while not await self._answers(process):
            code = process.exit_code()
            if code is not None:
                raise self._start_error(process, f"ended with code {code} before it was ready")
            if process.pid is not None and (ended := self._members.look(process.pid)):
                raise self._start_error(process, f"lost {', '.join(ended)} before it was ready")
            await asyncio.sleep(_POLL_S)
        group = process.pid
        if group is None or not listens(group, self._launch.port):
            raise self._start_error(
                process,
                f"is not what answers at {self.base_url}: no process of its group {group} listens there; "
                "is the port taken?",
            )
        if ended := self._members.look(group):
            raise self._start_error(process, f"lost {', '.join(ended)} before it was ready")
        if self._launch.is_head:
            await self._weights.started()

    async def _answers(self, process: ChildProcess) -> bool:
        if self._launch.is_head:
            return (await self._control.health(generate=True, timeout_s=_PROBE_S)).alive
        # A follower listens once its schedulers are ready; it takes no request.
        return process.pid is not None and listens(process.pid, self._launch.port)

    def _start_error(self, process: ChildProcess, problem: str) -> EngineStartError:
        log = self._launch.log_path
        raised = "".join(f"\n    {line}" for line in raised_in(log))
        causes = f"\nraised in its processes, first to last:{raised}" if raised else ""
        return EngineStartError(
            f"engine {self._launch.engine_id} {problem}{causes}\n--- end of {log} ---\n{process.log_tail()}"
        )
