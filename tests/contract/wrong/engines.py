"""Engine backends that break a promise, and one that breaks none.

Their engines are quick: a process that does nothing, beside a server in the test's own process that speaks
what the contract asks of the protocol.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

from attrs import evolve, frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rolecall.api import (
    ROLECALL_API,
    Capability,
    CapabilityError,
    EngineFeatures,
    EngineHealth,
    EngineLaunch,
    EngineStartError,
    FromDisk,
    MemoryReport,
    MemoryTag,
    WeightsGroup,
    WeightUpdate,
)
from rolecall.testing import EngineBackendContract
from rolecall.testing.asgi_server import serving

TAGS = frozenset({MemoryTag.WEIGHTS, MemoryTag.KV_CACHE})
LONG = 100
"""An answer of so many tokens takes until somebody ends it."""

PROCESS = 'echo "loads $1"; test -e "$1" || { echo "there is no model at $1"; exit 1; }; echo ready; exec cat'
"""Reads what nobody writes, and so ends with the process that started it."""

PROCESS_WITH_CHILD = f"sleep 5 & {PROCESS}"


@frozen(kw_only=True)
class Options:
    pass


class Served:
    """The part of an engine that answers requests."""

    def __init__(self) -> None:
        self.running: dict[str, asyncio.Event] = {}
        self.awake = asyncio.Event()
        self.awake.set()
        self.app = Starlette(
            routes=[
                Route("/generate", self.generate, methods=["POST"]),
                Route("/abort_request", self.abort, methods=["POST"]),
            ]
        )

    async def generate(self, request: Request) -> Response:
        asked = await request.json()
        tokens = asked["sampling_params"]["max_new_tokens"]
        await self.awake.wait()
        if asked.get("stream"):
            return StreamingResponse(self.stream(asked["rid"], tokens))
        async with self.at_work(asked["rid"]) as ended:
            if tokens > LONG:
                while not ended.is_set() and not await request.is_disconnected():  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            return JSONResponse({"text": "one"})

    async def stream(self, rid: str, tokens: int) -> AsyncIterator[bytes]:
        async with self.at_work(rid) as ended:
            for _ in range(tokens):
                yield b'data: {"text": "one"}\n\n'
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), 0.004)
                    break
            reason = "abort" if ended.is_set() else "length"
            yield f"data: {json.dumps({'finish_reason': reason})}\n\ndata: [DONE]\n\n".encode()

    @asynccontextmanager
    async def at_work(self, rid: str) -> AsyncGenerator[asyncio.Event]:
        self.running[rid] = asyncio.Event()
        try:
            yield self.running[rid]
        finally:
            del self.running[rid]

    async def abort(self, request: Request) -> Response:
        self.end((await request.json())["rid"])
        return Response()

    def end(self, prefix: str = "") -> None:
        for rid, ended in self.running.items():
            if rid.startswith(prefix):
                ended.set()


class SoundEngine:
    def __init__(self, launch: EngineLaunch, script: str = PROCESS) -> None:
        self.launch = launch
        self.script = script
        self.base_url = f"http://{launch.host}:{launch.port}"
        self.process: asyncio.subprocess.Process | None = None
        self.served = Served()
        self.stack = AsyncExitStack()
        self.resident = TAGS
        self.version = launch.weight_version
        self.path = launch.model_path

    async def start(self, timeout_s: float) -> None:
        with self.launch.log_path.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                *("sh", "-c", self.script, "engine", str(self.launch.model_path)),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.environment()},
            )
        while "ready" not in self.launch.log_path.read_text():
            if self.process.returncode is not None:
                raise EngineStartError(self.end_of_log())
            await asyncio.sleep(0.002)
        await self.stack.enter_async_context(serving(self.served.app, port=self.launch.port))

    def environment(self) -> Mapping[str, str]:
        return self.launch.marks

    def end_of_log(self) -> str:
        return f"the engine ended: {self.launch.log_path.read_text()}"

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    def exit_code(self) -> int | None:
        return None if self.process is None else self.process.returncode

    async def health(self, *, generate: bool, timeout_s: float) -> EngineHealth:
        alive = self.process is not None and self.exit_code() is None
        return EngineHealth(alive=alive, detail="" if alive else f"exit code {self.exit_code()}")

    async def running_requests(self) -> int:
        return len(self.served.running)

    async def pause(self) -> None:
        self.served.awake.clear()
        self.served.end()

    async def abort_all(self) -> None:
        self.served.end()

    async def flush(self) -> bool:
        return not self.served.running

    async def release(self, tags: frozenset[MemoryTag]) -> None:
        self.resident -= tags

    async def resume(self, tags: frozenset[MemoryTag]) -> None:
        self.resident |= tags

    async def continue_generation(self) -> None:
        self.served.awake.set()

    async def memory(self) -> MemoryReport:
        return MemoryReport(resident_tags=self.resident, resident_bytes=1000 * len(self.resident) + 1)

    async def canary(self) -> tuple[float, ...]:
        return tuple(-byte / 100 for byte in blake2b(str(self.path).encode(), digest_size=4).digest())

    async def weight_version(self) -> str | None:
        return self.version

    async def update_weights(self, update: WeightUpdate, version: str) -> None:
        if not isinstance(update, FromDisk) or self.launch.is_static:
            raise CapabilityError(f"no weights from {update}")
        self.path, self.version = update.path, version

    async def join_weights_group(self, group: WeightsGroup) -> None:
        raise CapabilityError("no groups")

    async def leave_weights_group(self, name: str) -> None: ...

    async def stop(self, timeout_s: float) -> None:
        await self.stack.aclose()
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.kill(self.process.pid)
            await self.process.wait()

    def kill(self, pid: int) -> None:
        os.killpg(pid, signal.SIGKILL)


class SoundBackend:
    name: ClassVar[str] = "sound_backend"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[Any]] = Options
    resource: ClassVar[str | None] = None
    engine: ClassVar[type[SoundEngine]] = SoundEngine

    def features(self, options: Any, *, static: bool) -> EngineFeatures:
        updates = frozenset[Capability]() if static else {Capability.UPDATE_FROM_DISK}
        return EngineFeatures(capabilities=frozenset({Capability.SLEEP, *updates}), memory_tags=TAGS)

    def environment(self, launch: EngineLaunch) -> Mapping[str, str]:
        return {}

    def create(self, launch: EngineLaunch) -> SoundEngine:
        return self.engine(launch)


class BackendContract(EngineBackendContract):
    """With engines that need no model."""

    model_source = Path(__file__).name
    start_timeout_s = stop_timeout_s = 5.0


class DeclarationContract(BackendContract):
    """What a backend could fail without an engine."""

    concerns: ClassVar = "option|feature|creating|before_start|refuses|follower|entry_point"


class LifeContract(BackendContract):
    """What a backend whose engines start and end wrongly could fail."""

    concerns: ClassVar = "start|stop|killed|serves|entry_point"


class RequestContract(BackendContract):
    """What a backend whose engines treat requests wrongly could fail."""

    concerns: ClassVar = "request|pause|caller|drain|serves|sleeps|entry_point"


class SleepContract(BackendContract):
    """What a backend whose engines sleep or take weights wrongly could fail."""

    concerns: ClassVar = "sleeps|updates|serves|drain|entry_point"


class TestSoundBackend(BackendContract):
    plugin = SoundBackend
    fails: ClassVar = {}


# --- what it says of itself


@frozen
class Positional:
    threads: int = 1


class Positioned(SoundBackend):
    """Takes options by position."""

    name = "positioned"
    options: ClassVar[type[Any]] = Positional


class TestPositioned(DeclarationContract):
    plugin = Positioned
    fails: ClassVar = {"test_its_options_are_given_by_name": "option threads can be given by position"}


class Boasting(SoundBackend):
    """Promises updates of weights that never change."""

    name = "boasting"

    def features(self, options: Any, *, static: bool) -> EngineFeatures:
        return super().features(options, static=False)


class TestBoasting(DeclarationContract):
    plugin = Boasting
    fails: ClassVar = {"test_features_are_consistent": "static weights never change"}


class Eager(SoundBackend):
    """Starts what it is only to make."""

    name = "eager"

    def create(self, launch: EngineLaunch) -> SoundEngine:
        return EagerEngine(launch)


class EagerEngine(SoundEngine):
    @property
    def pid(self) -> int | None:
        return super().pid or os.getpid()


class TestEager(DeclarationContract):
    plugin = Eager
    fails: ClassVar = dict.fromkeys(
        ("test_creating_starts_nothing", "test_stop_before_start_does_nothing"), r"assert \d+ is None"
    )


# --- life and death


class LeavingEngine(SoundEngine):
    """Stops its process and leaves what that has started."""

    def __init__(self, launch: EngineLaunch) -> None:
        super().__init__(launch, PROCESS_WITH_CHILD)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)


class Leaving(SoundBackend):
    name = "leaving"
    engine = LeavingEngine


class TestLeaving(LifeContract):
    plugin = Leaving
    fails: ClassVar = dict.fromkeys(
        (
            "test_stops_for_good",
            "test_a_killed_engine_is_seen_as_dead",
            "test_a_start_that_fails_leaves_no_process",
        ),
        "has members left",
    )


class ImmortalEngine(SoundEngine):
    """Has not heard that it should stop."""

    async def stop(self, timeout_s: float) -> None:
        await self.stack.aclose()


class Immortal(SoundBackend):
    name = "immortal"
    engine = ImmortalEngine


class TestImmortal(LifeContract):
    plugin = Immortal
    fails: ClassVar = {"test_stops_for_good": "assert None is not None"}


class RosyEngine(SoundEngine):
    """Is well, even when it is dead."""

    async def health(self, *, generate: bool, timeout_s: float) -> EngineHealth:
        return EngineHealth(alive=True, detail="well")


class Rosy(SoundBackend):
    name = "rosy"
    engine = RosyEngine


class TestRosy(LifeContract):
    plugin = Rosy
    fails: ClassVar = dict.fromkeys(
        ("test_stops_for_good", "test_a_killed_engine_is_seen_as_dead"), "assert not True"
    )


class CurtEngine(SoundEngine):
    """Does not say what the log says."""

    def end_of_log(self) -> str:
        return "the engine did not start"


class Curt(SoundBackend):
    name = "curt_backend"
    engine = CurtEngine


class TestCurt(LifeContract):
    plugin = Curt
    fails: ClassVar = {
        "test_a_start_that_fails_leaves_no_process": "the message ends with the tail of the log"
    }


class Hasty(SoundBackend):
    """Its followers are ready before there is a head."""

    name = "hasty_backend"

    def features(self, options: Any, *, static: bool) -> EngineFeatures:
        features = super().features(options, static=static)
        return evolve(features, capabilities=features.capabilities | {Capability.SEVERAL_NODES})


class TestHasty(DeclarationContract):
    plugin = Hasty
    fails: ClassVar = {"test_a_follower_waits_for_its_head": "DID NOT RAISE .*EngineStartError"}


class AnonymousEngine(SoundEngine):
    """Starts its process without the marks by which it would be found."""

    def environment(self) -> Mapping[str, str]:
        return {}


class Anonymous(SoundBackend):
    name = "anonymous"
    engine = AnonymousEngine


class TestAnonymous(LifeContract):
    plugin = Anonymous
    fails: ClassVar = {"test_serves_and_reports": "do not carry the launch's marks"}


# --- requests


class DeafServed(Served):
    async def abort(self, request: Request) -> Response:
        return Response()


class DeafEngine(SoundEngine):
    """Answers an abort and goes on."""

    def __init__(self, launch: EngineLaunch) -> None:
        super().__init__(launch)
        self.served = DeafServed()


class Deaf(SoundBackend):
    name = "deaf"
    engine = DeafEngine


class TestDeaf(RequestContract):
    plugin = Deaf
    long_answer_tokens = 120
    fails: ClassVar = {"test_one_request_is_aborted_by_its_id": "'abort' in .*length"}


class BusyEngine(SoundEngine):
    """Drops the cache below a request that runs."""

    async def flush(self) -> bool:
        return True


class Busy(SoundBackend):
    name = "busy"
    engine = BusyEngine


class TestBusy(RequestContract):
    plugin = Busy
    fails: ClassVar = {
        "test_a_caller_that_leaves_leaves_no_request": "a flush says busy while something runs"
    }


class RestlessEngine(SoundEngine):
    """Ends what runs, and takes the next request at once."""

    async def pause(self) -> None:
        self.served.end()


class Restless(SoundBackend):
    name = "restless"
    engine = RestlessEngine


class TestRestless(RequestContract):
    plugin = Restless
    fails: ClassVar = {
        "test_a_pause_ends_what_runs_and_starts_nothing_new": "it was answered during the pause"
    }


class OnceEngine(SoundEngine):
    """Does not go on when it is going on."""

    async def continue_generation(self) -> None:
        if self.served.awake.is_set():
            raise RuntimeError("it is not paused")
        await super().continue_generation()


class Once(SoundBackend):
    name = "once"
    engine = OnceEngine


class TestOnce(RequestContract):
    plugin = Once
    fails: ClassVar = {"test_drain_primitives": "it is not paused"}


# --- sleep


class LyingEngine(SoundEngine):
    """Says that it sleeps, and frees nothing."""

    async def memory(self) -> MemoryReport:
        return MemoryReport(resident_tags=self.resident, resident_bytes=2001)


class Lying(SoundBackend):
    name = "lying"
    engine = LyingEngine


SLEEPS = (
    "test_sleeps_and_wakes_with_the_same_weights",
    "test_updates_from_disk_and_reports_the_version",
)


class TestLying(SleepContract):
    plugin = Lying
    fails: ClassVar = dict.fromkeys(SLEEPS, "assert 2001 <= ")


class StrictEngine(SoundEngine):
    """Breaks when it is told to release what it has released."""

    async def release(self, tags: frozenset[MemoryTag]) -> None:
        if not tags <= self.resident:
            raise RuntimeError("it is released")
        await super().release(tags)


class Strict(SoundBackend):
    name = "strict_backend"
    engine = StrictEngine


class TestStrict(SleepContract):
    plugin = Strict
    fails: ClassVar = dict.fromkeys(SLEEPS, "it is released")


class LosingEngine(SoundEngine):
    """Wakes with the weights of another model."""

    async def resume(self, tags: frozenset[MemoryTag]) -> None:
        if MemoryTag.WEIGHTS in tags - self.resident:
            self.path = Path("lost")
        await super().resume(tags)


class Losing(SoundBackend):
    name = "losing"
    engine = LosingEngine


class TestLosing(SleepContract):
    plugin = Losing
    fails: ClassVar = dict.fromkeys(SLEEPS, r"assert \d+\.\d+ <= 0.01")


class EqualEngine(SoundEngine):
    """All tokens are equally likely."""

    async def canary(self) -> tuple[float, ...]:
        return (-11.5, -11.5, -11.5)


class Equal(SoundBackend):
    name = "equal"
    engine = EqualEngine


class TestEqual(SleepContract):
    plugin = Equal
    fails: ClassVar = dict.fromkeys(("test_serves_and_reports", *SLEEPS), "all equal: the weights are lost")


# --- weights


class ForgetfulEngine(SoundEngine):
    """Takes new weights under the old version."""

    async def update_weights(self, update: WeightUpdate, version: str) -> None:
        await super().update_weights(update, str(self.version))


class Forgetful(SoundBackend):
    name = "forgetful_backend"
    engine = ForgetfulEngine


class TestForgetful(SleepContract):
    plugin = Forgetful
    fails: ClassVar = {"test_updates_from_disk_and_reports_the_version": "assert '41' == '42'"}


class ObligingEngine(SoundEngine):
    """Says yes to weights that it can not take."""

    async def update_weights(self, update: WeightUpdate, version: str) -> None:
        with suppress(CapabilityError):
            await super().update_weights(update, version)


class Obliging(SoundBackend):
    name = "obliging"
    engine = ObligingEngine


class TestObliging(SleepContract):
    plugin = Obliging
    fails: ClassVar = {
        "test_refuses_updates_that_its_features_do_not_name": "DID NOT RAISE .*CapabilityError"
    }
