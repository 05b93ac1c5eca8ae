"""The engine host: who may command it, what it remembers, and how it ends an engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rolecall.engines.deadline import Deadline, LoopClock
from rolecall.engines.engine_host import EngineHost
from rolecall.engines.fencing import NO_TOKEN, Stamp
from rolecall.engines.handover import HandoverLimits
from rolecall.engines.launching import HostSetup, Prepared
from rolecall.engines.worker_handle import EngineExitedError
from rolecall.errors import (
    CanaryMismatchError,
    EngineError,
    EngineStartError,
    ReleaseNotProvedError,
    StaleTokenError,
)
from rolecall.ids import FencingToken, ModelId, RoleName
from rolecall.interfaces.engine_backend import MemoryTag
from rolecall.interfaces.role import WeightSource
from rolecall.testing.fake_engine import FAKE_TAGS, FakeBackend, FakeOptions, Script
from rolecall.testing.fake_workers import fake_slot
from rolecall.testing.virtual_time import run_virtual


class Rig:
    """A host over the fake backend; time is virtual."""

    def __init__(self, log_dir: Path, script: Script, source: WeightSource) -> None:
        self.backend = FakeBackend(script)
        self.log_dir = log_dir
        options = FakeOptions()
        features = self.backend.features(options, static=source is WeightSource.STATIC)
        prepared = Prepared(
            backend=self.backend, options=options, features=features, model_path=Path("/model")
        )

        async def prepare() -> Prepared:
            return prepared

        setup = HostSetup(
            namespace="rolecall-test",
            slot=fake_slot("m/replica-0"),
            role=RoleName("judge"),
            model=ModelId("m"),
            served_model_name="served",
            weight_source=source,
            listen_host="127.0.0.1",
            log_dir=log_dir,
            limits=HandoverLimits(),
        )
        self.host = EngineHost(setup, prepare, LoopClock())

    def start(self, incarnation: int = 1, *, token: int = 0, version: str | None = None) -> Any:
        return self.host.start(stamp(incarnation, token), version, within(30))


def stamp(incarnation: int = 1, token: int = 0) -> Stamp:
    return Stamp(incarnation=incarnation, token=FencingToken(token))


def within(seconds: float) -> Deadline:
    return Deadline.after(LoopClock(), seconds)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    def run(
        scenario: Callable[[Rig], Awaitable[Any]],
        script: Script | None = None,
        source: WeightSource = WeightSource.STATIC,
    ) -> Any:
        async def main() -> Any:
            return await scenario(Rig(tmp_path, script or Script(), source))

        return run_virtual(main())

    return run


def test_a_start_says_where_the_engine_is_and_gives_it_what_the_slot_has(run: Any, tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        started = await rig.start()
        launch = rig.backend.engine.launch
        assert started.base_url == rig.backend.engine.base_url
        assert started.memory.resident_tags == FAKE_TAGS
        assert launch.device_ids == ("0",)
        assert launch.log_path == tmp_path / "judge-m-replica-0-1.log"
        assert 20_000 <= launch.port < 24_000
        assert launch.served_model_name == "served"
        assert await rig.host.stop(stamp(), within(5))

    run(scenario)


def test_the_port_is_free_for_the_engine_and_taken_for_other_workers(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.start()
        port = rig.backend.engine.launch.port
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", port)
        server.close()
        from rolecall.engines.ports import PortRange, reserve_port

        other = reserve_port("127.0.0.1", PortRange.SERVER, start=port)
        assert other.port != port
        other.release()
        await rig.host.stop(stamp(), within(5))
        again = reserve_port("127.0.0.1", PortRange.SERVER, start=port)
        assert again.port == port
        again.release()

    # Sockets are not seen by virtual time, but nothing here waits for one.
    run(scenario)


def test_a_start_that_fails_leaves_no_engine_and_says_where_the_log_is(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(EngineStartError, match=r"no such file .*log: .*judge-m-replica-0-1\.log"):
            await rig.start()
        assert rig.backend.engine.calls[-1] == "stop"
        assert (await rig.host.describe(within(1))).condition == "empty"

    run(scenario, Script(start_error="no such file"))


def test_a_backend_that_breaks_its_contract_still_leaves_no_process(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(EngineStartError, match="surprise"):
            await rig.start()
        assert rig.backend.engine.exit_code() is not None

    run(scenario, Script(broken={"start": KeyError("surprise")}))


def test_a_start_that_takes_too_long_ends_the_engine_within_the_deadline(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(EngineStartError):
            await rig.start()
        assert asyncio.get_running_loop().time() <= 30.0
        assert rig.backend.engine.exit_code() is not None

    run(scenario, Script(start_takes_s=1000.0))


def test_a_fresh_engine_without_weights_is_refused(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        async def uniform() -> tuple[float, ...]:
            return (-10.8,) * 5

        create = rig.backend.create

        def broken(launch: Any) -> Any:
            engine = create(launch)
            engine.canary = uniform  # type: ignore[method-assign]
            return engine

        rig.backend.create = broken  # type: ignore[method-assign]
        with pytest.raises(EngineStartError, match="uniform") as caught:
            await rig.start()
        assert isinstance(caught.value.__cause__, CanaryMismatchError)

    run(scenario)


def test_a_fresh_engine_with_another_version_is_refused(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.start(version="0")
        await rig.host.stop(stamp(), within(5))
        rig.backend.script.broken["weight_version"] = EngineError("no version here")
        with pytest.raises(EngineStartError, match="no version here"):
            await rig.start(2, version="0")

    run(scenario, source=WeightSource.ACTOR)


def test_commands_from_the_past_are_refused(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.start(2, token=5)
        with pytest.raises(StaleTokenError, match="token 4, but 5"):
            await rig.host.sleep(stamp(2, 4), 0.0, within(10))
        with pytest.raises(StaleTokenError, match="incarnation 1, but 2"):
            await rig.host.stop(stamp(1, 9), within(10))
        with pytest.raises(StaleTokenError, match="incarnation 3; the engine here is 2"):
            await rig.host.sleep(stamp(3, 9), 0.0, within(10))
        assert rig.backend.engine.exit_code() is None
        assert "pause" not in rig.backend.engine.calls
        # The token of a refused command does not count.
        await rig.host.sleep(stamp(2, 5), 0.0, within(10))

    run(scenario)


def test_repeats_of_what_is_done_look_again_and_do_nothing(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        first = await rig.start()
        again = await rig.start()
        assert again == first
        assert len(rig.backend.engines) == 1
        proof = await rig.host.sleep(stamp(), 0.0, within(10))
        assert await rig.host.sleep(stamp(), 0.0, within(10)) == proof
        assert rig.backend.engine.calls.count("release") == 1
        await rig.host.wake(stamp(), None, within(10))
        await rig.host.wake(stamp(), None, within(10))
        assert rig.backend.engine.calls.count("resume weights") == 1

    run(scenario)


def test_a_sleeping_engine_that_took_memory_again_is_found(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.start()
        await rig.host.sleep(stamp(), 0.0, within(10))
        rig.backend.engine._resident = frozenset({MemoryTag.KV_CACHE})
        with pytest.raises(ReleaseNotProvedError, match="should be asleep, but holds kv_cache"):
            await rig.host.sleep(stamp(), 0.0, within(10))

    run(scenario)


def test_after_a_failed_hand_over_only_a_stop_is_left(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.start()
        with pytest.raises(ReleaseNotProvedError):
            await rig.host.sleep(stamp(), 0.0, within(30))
        engine = rig.backend.engine
        for command in (rig.host.sleep(stamp(), 0.0, within(30)), rig.host.wake(stamp(), None, within(30))):
            with pytest.raises(EngineError, match="condition is unknown; only a stop is safe"):
                await command
        assert engine.calls.count("release") == 1
        assert not [call for call in engine.calls if call.startswith("resume")]
        evidence = await rig.host.stop(stamp(), within(10))
        assert "no process of its group is left" in evidence
        await rig.start(2)

    run(scenario, Script(release_frees=0.0))


def test_a_process_that_ends_during_a_hand_over_ends_it_at_once(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.start()
        rig.backend.script.slow["release"] = 1000.0
        command = asyncio.ensure_future(rig.host.sleep(stamp(), 0.0, within(600)))
        await asyncio.sleep(5.0)
        rig.backend.engine.kill()
        with pytest.raises(EngineExitedError, match="exit code -9 during sleep"):
            await command
        assert asyncio.get_running_loop().time() < 7.0

    run(scenario)


def test_a_stop_interrupts_a_running_command(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.start()
        rig.backend.script.slow["release"] = 1000.0
        command = asyncio.ensure_future(rig.host.sleep(stamp(), 0.0, within(600)))
        await asyncio.sleep(5.0)
        with pytest.raises(EngineError, match="wake refused, sleep is still running"):
            await rig.host.wake(stamp(), None, within(10))
        stops = [asyncio.ensure_future(rig.host.stop(stamp(), within(10))) for _ in range(2)]
        assert len({await stop for stop in stops}) == 1, "a second stop joins the first"
        with pytest.raises(EngineError, match="sleep was interrupted by a stop"):
            await command
        assert rig.backend.engine.calls.count("stop") == 1
        assert asyncio.get_running_loop().time() < 6.0

    run(scenario)


def test_a_stop_interrupts_a_start(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        command = asyncio.ensure_future(rig.start())
        await asyncio.sleep(1.0)
        await rig.host.stop(stamp(), within(10))
        with pytest.raises(EngineError, match="start was interrupted by a stop"):
            await command
        assert rig.backend.engine.exit_code() is not None

    run(scenario, Script(start_takes_s=20.0))


def test_health_reads_change_nothing_and_ask_no_generation_of_a_sleeper(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        assert not (await rig.host.health(generate=True, deadline=within(5))).has_engine
        await rig.start()
        look = await rig.host.health(generate=True, deadline=within(5))
        assert (look.alive, look.running, look.exit_code, look.incarnation) == (True, 0, None, 1)
        await rig.host.sleep(stamp(), 0.0, within(10))
        look = await rig.host.health(generate=True, deadline=within(5))
        assert look.alive
        assert rig.backend.engine.exit_code() is None
        assert rig.backend.engine.calls.count("health_generate") == 1

    run(scenario)


def test_health_tells_a_busy_engine_a_dead_scheduler_and_a_dead_process_apart(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.start()
        engine = rig.backend.engine
        engine.script.running = 4
        engine.script.slow = {"health_generate": 60.0}
        look = await rig.host.health(generate=True, deadline=within(5))
        assert (look.alive, look.running) == (False, 4)
        engine.script.slow = {"health_generate": 60.0, "running_requests": 60.0}
        look = await rig.host.health(generate=True, deadline=within(5))
        assert (look.alive, look.running, look.exit_code) == (False, None, None)
        assert "running-request count did not end" in look.detail
        engine.kill()
        look = await rig.host.health(generate=True, deadline=within(5))
        assert look.exit_code == -9

    run(scenario)


def test_a_start_that_arrives_after_its_stop_starts_nothing(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.host.stop(stamp(1), within(5))
        with pytest.raises(StaleTokenError, match="incarnation 1"):
            await rig.start(1)
        assert rig.backend.engines == []
        await rig.start(2)

    run(scenario)


def test_a_command_that_ignores_its_interruption_does_not_keep_the_engine_alive(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.start()
        engine = rig.backend.engine

        async def stubborn() -> None:
            while engine.exit_code() is None:
                try:
                    await asyncio.sleep(50.0)
                except asyncio.CancelledError:
                    continue

        engine.pause = stubborn  # type: ignore[method-assign]
        command = asyncio.ensure_future(rig.host.sleep(stamp(), 0.0, within(600)))
        await asyncio.sleep(5.0)
        await rig.host.stop(stamp(), within(10))
        assert engine.exit_code() is not None
        with pytest.raises(EngineError):
            await command

    run(scenario)


def test_a_stop_whose_engine_will_not_end_kills_the_group(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.start()
        evidence = await rig.host.stop(stamp(), within(10))
        assert "no process of its group is left" in evidence

    run(scenario, Script(broken={"stop": EngineError("a process is left")}))


def test_stopping_nothing_is_evidence_too(run: Any) -> None:
    async def scenario(rig: Rig) -> None:
        assert "no engine process was running" in await rig.host.stop(stamp(), within(1))
        description = await rig.host.describe(within(1))
        assert description.worker_pid == os.getpid()
        assert NO_TOKEN == 0

    run(scenario)
