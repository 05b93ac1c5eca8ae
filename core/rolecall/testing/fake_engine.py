"""A scripted engine: does what a test tells it, also wrong, and remembers every call.

Implements the :class:`~rolecall.interfaces.engine_backend.Engine` protocol without a process. By
default it behaves well; each attribute of :class:`Script` is one way to misbehave. It dies, with
:data:`CRASHED`, of what some real engine has died of (generating without its cache, resuming
twice), also where the contract asks backends for more patience: the core may not rely on it.

Time is the event loop's, so it works under ``rolecall.testing.virtual_time``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from attrs import define, field, frozen

from rolecall.errors import EngineError, EngineStartError
from rolecall.ids import EngineId, ModelId, RoleName
from rolecall.interfaces.engine_backend import (
    Capability,
    Engine,
    EngineFeatures,
    EngineHealth,
    EngineLaunch,
    MemoryReport,
    MemoryTag,
    WeightsGroup,
    WeightUpdate,
)

CRASHED = -11

FAKE_TAGS = frozenset({MemoryTag.WEIGHTS, MemoryTag.KV_CACHE})
AWAKE_BYTES = {MemoryTag.WEIGHTS: 600 * 2**20, MemoryTag.KV_CACHE: 200 * 2**20}
BASE_BYTES = 100 * 2**20
CANARY = (-1.25, -0.5, -3.75, -2.0)
UNIFORM = (-10.8, -10.8, -10.8, -10.8)

NO_SUCH_PROCESS = 2**22 + 1
"""Above the kernel's highest pid: its process group is always found empty."""


@define
class Script:
    """How the engine behaves; a test may change it while the engine runs.

    running: requests that are running now.
    flushes_needed: abort-and-flush rounds until the requests have ended; None: never.
    finishes_after_s: running requests end by themselves at this loop time.
    quiet_is_a_lie: says that nothing runs, although the flush still finds something.
    release_frees: share of the released bytes that really leaves.
    release_keeps: tags that stay, with their bytes.
    release_lag_s: how long after its answer the memory leaves.
    loses_weights: resume answers, but the weights are not restored.
    start_error, start_takes_s: what start does.
    slow: call name → seconds it takes.
    broken: call name → error it raises.
    """

    running: int = 0
    flushes_needed: int | None = 1
    finishes_after_s: float | None = None
    quiet_is_a_lie: bool = False
    release_frees: float = 1.0
    release_keeps: frozenset[MemoryTag] = frozenset()
    release_lag_s: float = 0.0
    loses_weights: bool = False
    resume_leaves_away: frozenset[MemoryTag] = frozenset()
    start_error: str | None = None
    start_takes_s: float = 0.0
    weight_version_after_wake: str | None = None
    weight_version_after_update: str | None = None
    healthy: bool = True
    slow: dict[str, float] = field(factory=dict)
    broken: dict[str, Exception] = field(factory=dict)


class FakeEngine:
    """See the module's contract. ``calls`` are the names of all calls, in order."""

    def __init__(self, launch: EngineLaunch, script: Script) -> None:
        self.launch = launch
        self.script = script
        self.base_url = f"http://{launch.host}:{launch.port}"
        self.calls: list[str] = []
        self.paused = False
        self.died = asyncio.Event()
        self._resident: frozenset[MemoryTag] = frozenset()
        self._bytes_leave_s: float | None = None
        self._held_back = 0
        self._lost = False
        self._version = launch.weight_version
        self._exit_code: int | None = None
        self._started = False

    def kill(self, exit_code: int = -9) -> None:
        """End the process, as ``kill -9`` would: calls in flight and later ones fail."""
        if self._exit_code is None:
            self._exit_code = exit_code
            self.died.set()

    @property
    def pid(self) -> int | None:
        return NO_SUCH_PROCESS if self._started else None

    def exit_code(self) -> int | None:
        return self._exit_code

    async def start(self, timeout_s: float) -> None:
        self._started = True
        await self._call("start")
        await asyncio.sleep(min(self.script.start_takes_s, timeout_s))
        if self.script.start_error is not None or self.script.start_takes_s > timeout_s:
            self.kill(1)
            raise EngineStartError(self.script.start_error or f"not ready within {timeout_s} s")
        self._resident = FAKE_TAGS

    async def health(self, *, generate: bool, timeout_s: float) -> EngineHealth:
        del timeout_s  # the caller bounds the call
        await self._call("health_generate" if generate else "health")
        if generate:
            self._forward()
        return EngineHealth(alive=self.script.healthy, detail="scripted")

    async def running_requests(self) -> int:
        await self._call("running_requests")
        ends = self.script.finishes_after_s
        if ends is not None and asyncio.get_running_loop().time() >= ends:
            self.script.running = 0
        return 0 if self.script.quiet_is_a_lie else self.script.running

    async def pause(self) -> None:
        await self._call("pause")
        self.paused = True

    async def abort_all(self) -> None:
        await self._call("abort_all")

    async def flush(self) -> bool:
        await self._call("flush")
        needed = self.script.flushes_needed
        if needed is not None and self.calls.count("flush") >= needed:
            self.script.running = 0
        return self.script.running == 0

    async def release(self, tags: frozenset[MemoryTag]) -> None:
        await self._call("release")
        tags -= self.script.release_keeps
        if self.script.release_frees > 0:
            freed = sum(AWAKE_BYTES.get(tag, 0) for tag in tags & self._resident)
            self._held_back = int(freed * (1 - self.script.release_frees))
            self._resident -= tags
        self._bytes_leave_s = asyncio.get_running_loop().time() + self.script.release_lag_s

    async def resume(self, tags: frozenset[MemoryTag]) -> None:
        await self._call(f"resume {' '.join(sorted(tags))}")
        if tags & self._resident:
            self.kill(CRASHED)
            raise EngineError("resumed what was resident")
        self._resident |= tags - self.script.resume_leaves_away
        self._held_back = 0
        if MemoryTag.WEIGHTS in tags:
            self._lost = self.script.loses_weights
            self._version = self.script.weight_version_after_wake or self._version

    async def continue_generation(self) -> None:
        await self._call("continue_generation")
        self.paused = False

    async def memory(self) -> MemoryReport:
        await self._call("memory")
        now = asyncio.get_running_loop().time()
        lagging = self._bytes_leave_s is not None and now < self._bytes_leave_s
        present = AWAKE_BYTES if lagging else {tag: AWAKE_BYTES.get(tag, 0) for tag in self._resident}
        held = 0 if lagging else self._held_back
        return MemoryReport(
            resident_tags=self._resident, resident_bytes=BASE_BYTES + sum(present.values()) + held
        )

    async def canary(self) -> tuple[float, ...]:
        await self._call("canary")
        self._forward()
        return UNIFORM if self._lost else CANARY

    async def weight_version(self) -> str | None:
        await self._call("weight_version")
        return self._version

    async def update_weights(self, update: WeightUpdate, version: str) -> None:
        await self._call(f"update_weights {type(update).__name__} {version}")
        self._version = self.script.weight_version_after_update or version

    async def join_weights_group(self, group: WeightsGroup) -> None:
        await self._call(f"join_weights_group {group.name}")

    async def leave_weights_group(self, name: str) -> None:
        await self._call(f"leave_weights_group {name}")

    async def stop(self, timeout_s: float) -> None:
        self.calls.append("stop")
        if (error := self.script.broken.get("stop")) is not None:
            raise error
        await asyncio.sleep(min(self.script.slow.get("stop", 0.0), timeout_s))
        self.kill(0)

    def _forward(self) -> None:
        if self._resident < FAKE_TAGS or self.paused:
            self.kill(CRASHED)
            raise EngineError("illegal access: a forward pass without all of its memory, or while paused")

    async def _call(self, name: str) -> None:
        self.calls.append(name)
        key = name.split(maxsplit=1)[0]
        if self._exit_code is not None:
            raise EngineError(f"{name}: connection refused")
        if (seconds := self.script.slow.get(key, 0.0)) > 0:
            died = asyncio.ensure_future(self.died.wait())
            try:
                await asyncio.wait({died}, timeout=seconds)
            finally:
                died.cancel()
            if self._exit_code is not None:
                raise EngineError(f"{name}: connection reset")
        if (error := self.script.broken.get(key)) is not None:
            raise error


@frozen
class FakeOptions:
    """The fake backend takes no options."""


def fake_launch(weight_version: str | None = None) -> EngineLaunch:
    """Return what a fake engine of a one-replica model is made from."""
    return EngineLaunch(
        engine_id=EngineId("m/replica-0"),
        role=RoleName("judge"),
        model=ModelId("m"),
        model_path=Path("/model"),
        served_model_name="m",
        host="127.0.0.1",
        port=1,
        device_ids=("0",),
        weight_version=weight_version,
        log_path=Path("/log"),
        options=FakeOptions(),
    )


class FakeBackend:
    """Makes :class:`FakeEngine` objects; ``engines`` has every one made, ``script`` is theirs."""

    name: ClassVar[str] = "fake"
    api_version: ClassVar[int] = 1
    options: ClassVar[type[Any]] = FakeOptions
    resource: ClassVar[str | None] = None

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        self.engines: list[FakeEngine] = []

    @property
    def engine(self) -> FakeEngine:
        """The newest engine."""
        return self.engines[-1]

    def features(self, options: FakeOptions, *, static: bool) -> EngineFeatures:
        del options, static
        return EngineFeatures(capabilities=frozenset(Capability), memory_tags=FAKE_TAGS)

    def environment(self, launch: EngineLaunch) -> Mapping[str, str]:
        del launch
        return {}

    def create(self, launch: EngineLaunch) -> Engine:
        engine = FakeEngine(launch, self.script)
        self.engines.append(engine)
        return engine
