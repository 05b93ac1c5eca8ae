"""A whole job without processes, in virtual time: what a failing row of the table is tried on.

Real: coordinator, batch runner, role engines, managers, engine hosts, registry, the ``jsonl`` sink and the
consumer. Scripted: the engines, the stages, and the ways from one of these to another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from rolecall.api import GenerationContext, SinkContext, Stage, StageContext
from rolecall.batches.plan import StagePlan
from rolecall.batches.runner import BatchRunner
from rolecall.batches.sample import Prompt, Sample, Scores
from rolecall.config.specs import BatchSection
from rolecall.discovery.registry import Registry
from rolecall.discovery.snapshot import ModelEntry, decode_snapshot
from rolecall.discovery.topology import RoleTopology, build_routing, new_epoch
from rolecall.engines.deadline import LoopClock
from rolecall.engines.manager import InferenceManager
from rolecall.engines.replica_driver import LifecycleTimes, ModelSpec
from rolecall.engines.role_engines import RoleEngines
from rolecall.errors import BatchFailedError
from rolecall.ids import BatchId, EngineId, FencingToken, ModelId, RoleName, partition_name
from rolecall.interfaces.engine_backend import Capability
from rolecall.interfaces.role import WeightSource
from rolecall.leases.coordinator import LeaseCoordinator
from rolecall.leases.lease_state import LeaseState, OpeningLease
from rolecall.testing.fake_workers import FakeReaper, FakeWorkers, fake_slot
from rolecall.testing.manager_rig import ManagerRig, ok
from rolecall.testing.samples import make_samples
from rolecall.testing.virtual_time import run_virtual
from rolecall.train import CommittedBatch, consume_async
from rolecall_plugins.sinks.jsonl.sink import JsonlOptions, JsonlSink

WRITER, JUDGE, TEACHER = (RoleName(name) for name in ("writer", "judge", "teacher"))
ROLES = (WRITER, JUDGE, TEACHER)
ZERO = BatchId(0)
TIMEOUT_S = 100.0


class SmallRole:
    """One role with one model ``m``; ``lost`` are commands that are carried out, but never answered."""

    def __init__(self, role: RoleName, log_dir: Path, registry: Registry, replicas: int) -> None:
        self.workers = FakeWorkers(log_dir)
        self.lost: set[str] = set()
        self.commands: list[str] = []
        self._registry = registry
        self._role = role
        topology = RoleTopology(
            role,
            build_routing(
                served_names={"m": "served"}, default_model=None, route_keys={}, aliases={}, policy="any"
            ),
            new_epoch(),
        )
        self.engines = RoleEngines(
            role, topology=topology, registry=self, clock=LoopClock(), probe_interval_s=1.0
        )
        self.manager = InferenceManager(
            ModelSpec(
                role=role,
                model=ModelId("m"),
                served_model_name="served",
                weight_source=WeightSource.STATIC,
                weight_version=None,
                capabilities=frozenset(Capability),
                shared=True,
            ),
            {EngineId(f"m/replica-{index}"): [fake_slot(f"m/replica-{index}")] for index in range(replicas)},
            factory=self.workers,
            reaper=FakeReaper(self.workers),
            times=LifecycleTimes(drain_grace_s=1.0),
            clock=LoopClock(),
            emit=lambda *_, **__: None,
            publish=self.engines.publish,
        )
        self.engines.add(ModelId("m"), self.manager)

    def __getattr__(self, name: str) -> Any:
        """What the coordinator may ask of a role."""
        command = getattr(self.engines, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.commands.append(name)
            answer = await command(*args, **kwargs)
            if name in self.lost:
                await asyncio.get_running_loop().create_future()
            return answer

        return call

    async def publish(self, role: str, snapshot_json: str) -> bool:
        return self._registry.publish(role, snapshot_json)

    async def discovery(self) -> ModelEntry:
        """The model as the registry shows it."""
        published = await self._registry.read(self._role)
        assert published is not None
        return decode_snapshot(published.body).models["m"]

    def script(self, replica: int = 0) -> Any:
        """How one replica's engine behaves."""
        return self.workers.of(f"m/replica-{replica}").script

    @property
    def states(self) -> list[str]:
        return [entry["state"] for entry in self.manager.status()]


class SmallJob:
    """Three roles on the same devices: a writer, a judge whose verdict the writer then reads, a teacher.

    at: name of a stage, or ``finalise`` → what happens in place of its work.
    events: all leases' and batches' changes, as ``judge SLEEPING`` and ``batch 0 FAILED``.
    """

    def __init__(self, folder: Path, replicas: int) -> None:
        registry = Registry()
        self.roles = {role: SmallRole(role, folder, registry, replicas) for role in ROLES}
        self.at: dict[str, Callable[[], Any]] = {}
        self.events: list[str] = []
        self.made: Sequence[Sample] = make_samples()
        self.converted: list[BatchId] = []
        self.sink = JsonlSink(JsonlOptions(), SinkContext(job="small", base_dir=folder))
        asleep = OpeningLease(state=LeaseState.SLEEPING, reason="proved")
        self.coordinator = LeaseCoordinator(
            self.roles,  # type: ignore[arg-type] - by __getattr__
            conflicts={role: frozenset(ROLES) - {role} for role in ROLES},
            opening=dict.fromkeys(ROLES, asleep),
            timeout_s=TIMEOUT_S,
            emit=self.emit,
            clock=lambda: asyncio.get_running_loop().time(),
        )

    async def start(self) -> None:
        self.sink.open()
        for role in self.roles.values():
            assert ok(await role.manager.start())
            assert (await role.engines.offload(FencingToken(0), TIMEOUT_S)).confirmed

    def emit(self, kind: str, /, **fields: Any) -> None:
        if kind in {"lease.state", "batch.state"}:
            subject = fields["role"] if kind == "lease.state" else f"batch {fields['batch']}"
            self.events.append(f"{subject} {fields['to']}")

    async def generate(self, prompts: Sequence[Prompt], context: GenerationContext) -> Sequence[Sample]:
        return await self.works("generate", self.made)

    def stage(self, name: str, role: RoleName, reads: Sequence[str] = ()) -> Stage:
        async def run(samples: Sequence[Sample], context: StageContext) -> Scores:
            return await self.works(name, {sample.sample_id: {f"reward:{name}": 1.0} for sample in samples})

        return Stage(
            name=name, role=role, reads=frozenset(reads), writes=frozenset({f"reward:{name}"}), run=run
        )

    async def finalise(self, batch: BatchId, samples: Sequence[Sample]) -> None:
        await self.works("finalise", None)
        self.converted.append(batch)

    async def works(self, name: str, result: Any) -> Any:
        awake = [role for role in ROLES if "READY" in self.roles[role].states]
        assert len(awake) <= 1, f"{awake} are awake at once"
        if name in self.at:
            outcome = self.at[name]()
            return await outcome if isinstance(outcome, Awaitable) else outcome
        return result

    def runner(self, coordinator: Any = None) -> BatchRunner:
        stages = (
            self.stage("judge", JUDGE),
            self.stage("student", WRITER, ["reward:judge"]),
            self.stage("teacher", TEACHER, ["reward:student"]),
        )
        plan = StagePlan(
            generation_role=WRITER,
            generate=self.generate,
            stages=stages,
            rewards=("judge", "student", "teacher"),
        )
        return BatchRunner(
            coordinator=coordinator or self.coordinator,
            clients=lambda role: None,  # type: ignore[arg-type,return-value]
            plan=plan,
            sink=self.sink,
            settings=BatchSection(prompts="-", samples_per_prompt=4),
            emit=self.emit,
            finalise=self.finalise,
            clock=lambda: asyncio.get_running_loop().time(),
        )

    async def run(self, *, coordinator: Any = None) -> None:
        prompts = {sample.group_id: sample.prompt for sample in self.made}
        await self.runner(coordinator).run(ZERO, tuple(prompts.values()))

    async def failure(self, *, coordinator: Any = None) -> BatchFailedError:
        """Run the batch, which fails; two consumers, one before and one after, hear of it."""
        waiting = asyncio.create_task(self.consumed())
        await asyncio.sleep(0)
        with pytest.raises(BatchFailedError) as failed:
            await self.run(coordinator=coordinator)
        for consumer in (waiting, asyncio.create_task(self.consumed())):
            with pytest.raises(BatchFailedError, match="batch 0 failed: ") as told:
                await consumer
            assert str(told.value).removeprefix("batch 0 failed: ") in str(failed.value), "the first reason"
        return failed.value

    async def consumed(self) -> CommittedBatch:
        return await anext(consume_async(self.coordinator, self.sink, [ZERO], timeout_s=10_000.0))

    @property
    def partition(self) -> Path:
        return self.sink._path(partition_name(ZERO))  # pyright: ignore[reportPrivateUsage]

    async def leases(self) -> dict[str, str]:
        status = await self.coordinator.status()
        return {role: lease["state"] for role, lease in status["leases"].items()}

    async def assert_nothing_published(self) -> None:
        assert "batch 0 FAILED" in self.events
        assert "batch 0 COMMITTED" not in self.events
        assert not self.partition.exists()
        assert all(sample.scores == {} for sample in self.made), "all or none is written back"

    async def assert_all_asleep(self) -> None:
        assert set((await self.leases()).values()) == {"SLEEPING"}
        assert {state for role in self.roles.values() for state in role.states} == {"SLEEPING"}


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Plays a scenario with a job whose roles are all asleep."""

    def play(scenario: Callable[[SmallJob], Coroutine[Any, Any, None]], *, replicas: int = 1) -> None:
        async def main() -> None:
            job = SmallJob(tmp_path, replicas)
            await job.start()
            await scenario(job)

        run_virtual(main())

    return play


@pytest.fixture
def play_manager(tmp_path: Path) -> Callable[..., None]:
    """Plays a scenario with one role's manager whose engines are READY."""

    def play(scenario: Callable[[ManagerRig], Coroutine[Any, Any, None]], **options: Any) -> None:
        async def main() -> None:
            rig = ManagerRig(tmp_path, **options)
            assert ok(await rig.manager.start())
            await scenario(rig)

        run_virtual(main())

    return play
