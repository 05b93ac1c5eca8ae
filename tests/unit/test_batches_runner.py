"""A whole batch over the real coordinator: what is published when all goes well, and that nothing
is when anything goes wrong.

Roles, sink and stages are scripted; the coordinator decides as in production.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest

from rolecall.api import GenerationContext, Row, Stage, StageContext
from rolecall.batches.plan import StagePlan
from rolecall.batches.report import BatchReport
from rolecall.batches.runner import BatchRunner
from rolecall.batches.sample import Prompt, Sample, Scores
from rolecall.config.specs import BatchSection
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult, ReplicaOutcome
from rolecall.errors import BatchFailedError, LeaseError, ScoringError, SinkError, UpstreamError
from rolecall.ids import BatchId, EngineId, FencingToken, RoleName
from rolecall.leases.coordinator import LeaseCoordinator
from rolecall.leases.lease_state import LeaseState, OpeningLease

WRITER, JUDGE, TEACHER = (RoleName(name) for name in ("writer", "judge", "teacher"))
ROLES = (WRITER, JUDGE, TEACHER)
PROMPTS = tuple(
    Prompt(prompt_id=name, text=f"{name}?", answer="42", data_source="sums") for name in ("p", "q")
)
ZERO = BatchId(0)

Fault = Callable[[], Any]


class FakeRole:
    """Does as told and writes it down; ``faults`` maps ``onload`` or ``offload`` to what happens instead."""

    def __init__(self, role: RoleName, log: list[str]) -> None:
        self.role = role
        self.log = log
        self.awake = False
        self.prepared = 0
        self.faults: dict[str, Fault] = {}

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._act("onload", ReplicaState.READY, awake=True)

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._act("offload", ReplicaState.SLEEPING, awake=False)

    async def prepare(self, timeout_s: float) -> None:
        self.prepared += 1
        self.faults.get("prepare", lambda: None)()

    async def _act(self, name: str, state: ReplicaState, *, awake: bool) -> LifecycleResult:
        self.log.append(f"{name} {self.role}")
        confirmed = True
        if name in self.faults:
            confirmed = bool(self.faults[name]())
        await asyncio.sleep(0)
        self.awake = awake if confirmed else True
        outcome = ReplicaOutcome(
            engine=EngineId("m/replica-0"), state=state, confirmed=confirmed, detail="memory is still held"
        )
        return LifecycleResult(role=self.role, outcomes=(outcome,))


class MemorySink:
    """Partitions in a dict; ``faults`` maps ``put`` or ``clear`` to what happens instead."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.partitions: dict[str, list[Row]] = {}
        self.faults: dict[str, Fault] = {}
        self.after_put: Callable[[], Any] = lambda: None

    def put(self, partition: str, rows: Sequence[Row]) -> None:
        self.log.append(f"put {partition}")
        # Stored before it fails: the worst case, rows are there and were not acknowledged.
        self.partitions[partition] = list(rows)
        self.after_put()
        self.faults.get("put", lambda: None)()

    def clear(self, partition: str) -> None:
        self.log.append(f"clear {partition}")
        self.faults.get("clear", lambda: None)()
        self.partitions.pop(partition, None)


class Spy:
    """The coordinator, with every call written down; ``faults`` replace a call by an error."""

    def __init__(self, inner: LeaseCoordinator, log: list[str]) -> None:
        self._inner = inner
        self.log = log
        self.operations: list[str] = []
        self.faults: dict[str, Callable[[], Awaitable[None]]] = {}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if name in ("begin_batch", "commit_batch", "fail_batch"):
                self.log.append(name.removesuffix("_batch"))
            if name in ("activate", "deactivate"):
                self.operations.append(args[2])
            result = await method(*args, **kwargs) if name != "commit_batch" else None
            if name in self.faults:
                await self.faults[name]()
            return await method(*args, **kwargs) if name == "commit_batch" else result

        return call


class Scene:
    """Three roles on the same devices, a judge, a teacher and a rule; two prompts, two samples each."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.roles = {role: FakeRole(role, self.log) for role in ROLES}
        self.sink = MemorySink(self.log)
        asleep = OpeningLease(state=LeaseState.SLEEPING, reason="measured")
        self.coordinator = Spy(
            LeaseCoordinator(
                self.roles,
                conflicts={role: frozenset(ROLES) - {role} for role in ROLES},
                opening=dict.fromkeys(ROLES, asleep),
                timeout_s=5.0,
            ),
            self.log,
        )
        self.faults: dict[str, Fault] = {}
        self.returns: dict[str, Any] = {}
        self.waits: set[str] = set()
        self.waiting = asyncio.Event()
        self.finalised: list[int] = []
        self.made: list[Sample] = []
        self.concurrency: list[int] = []

    # --- what the plugins do --------------------------------------------------------------

    async def _meet(self, name: str) -> None:
        self.log.append(f"run {name}")
        awake = [role for role in ROLES if self.roles[role].awake]
        expected = {"generate": [WRITER], "judge": [JUDGE], "teacher": [TEACHER]}.get(name, awake)
        assert awake == expected, f"{name} ran with {awake} awake"
        if name in self.waits:
            self.waiting.set()
            await asyncio.Event().wait()
        self.faults.get(name, lambda: None)()

    async def generate(self, prompts: Sequence[Prompt], context: GenerationContext) -> Sequence[Sample]:
        await self._meet("generate")
        assert context.client == f"client of {WRITER}"
        self.concurrency.append(context.max_concurrency)
        self.made = [
            Sample(
                sample_id=f"{prompt.prompt_id}/{index}",
                group_id=prompt.prompt_id,
                prompt=prompt,
                prompt_ids=(1, 2, 3),
                response="42",
                response_ids=(4, 5),
                rollout_log_probs=(-0.25, -0.5),
                finish_reason="stop",
                weight_version="7",
            )
            for prompt in prompts
            for index in range(context.samples_per_prompt)
        ]
        context.progress(len(self.made), 2 * len(self.made))
        return self.returns["generate"](self.made) if "generate" in self.returns else self.made

    def stage(self, name: str, role: str | None, writes: str, value: Any, reads: Sequence[str] = ()) -> Stage:
        async def run(samples: Sequence[Sample], context: StageContext) -> Scores:
            await self._meet(name)
            assert context.client == (None if role is None else f"client of {role}")
            for sample in samples:
                assert set(reads) <= set(sample.scores), f"{name} does not see what it reads"
            context.progress(len(samples), 0)
            made: Scores = {sample.sample_id: {writes: value} for sample in samples}
            return self.returns[name](made) if name in self.returns else made

        return Stage(name=name, role=role, reads=frozenset(reads), writes=frozenset({writes}), run=run)

    async def finalise(self, batch: BatchId, samples: Sequence[Sample]) -> None:
        self.log.append("finalise")
        self.faults.get("finalise", lambda: None)()
        if "finalise" in self.waits:
            self.waiting.set()
            await asyncio.Event().wait()
        self.finalised.append(len(samples))

    # --- running --------------------------------------------------------------------------

    def runner(self, **settings: Any) -> BatchRunner:
        stages = (
            self.stage("rules", None, "reward:exact", 1.0),
            self.stage("judge", JUDGE, "reward:judge", 0.5),
            self.stage("teacher", TEACHER, "teacher_log_probs", np.zeros(2, np.float32), ["reward:judge"]),
        )
        plan = StagePlan(
            generation_role=WRITER, generate=self.generate, stages=stages, rewards=("judge", "exact")
        )
        ticks = iter(range(10_000))
        return BatchRunner(
            coordinator=self.coordinator,
            clients=lambda role: f"client of {role}",  # type: ignore[arg-type,return-value]
            plan=plan,
            sink=self.sink,  # type: ignore[arg-type]
            settings=BatchSection(prompts="-", samples_per_prompt=2, max_concurrency=3, **settings),
            emit=lambda kind, /, **fields: self.events.append((kind, fields)),
            finalise=self.finalise,
            clock=lambda: float(next(ticks)),
        )

    async def run(self, **settings: Any) -> BatchReport:
        return await self.runner(**settings).run(ZERO, PROMPTS)

    async def failure(self) -> BatchFailedError:
        with pytest.raises(BatchFailedError) as failed:
            await self.run()
        return failed.value

    async def assert_nothing_published(self, *, first_reason: str) -> None:
        """No commit, no rows, the first reason for every waiter."""
        assert "commit" not in self.log
        assert self.sink.partitions == {}
        with pytest.raises(BatchFailedError, match=first_reason):
            await self.coordinator.wait_committed(ZERO, 1.0)

    def assert_all_asleep(self) -> None:
        assert [role for role in ROLES if self.roles[role].awake] == []


def raising(error: BaseException) -> Fault:
    def fault() -> None:
        raise error

    return fault


# --- all goes well ------------------------------------------------------------------------


async def test_a_batch_goes_through_its_phases_in_order() -> None:
    scene = Scene()
    await scene.run()
    assert scene.log == [
        "begin",
        "onload writer",
        "run generate",
        "run rules",
        "offload writer",
        "onload judge",
        "run judge",
        "offload judge",
        "onload teacher",
        "run teacher",
        "offload teacher",
        "put train_0",
        "finalise",
        "commit",
    ]
    await scene.coordinator.wait_committed(ZERO, 0.0)
    scene.assert_all_asleep()


async def test_rows_hold_what_training_reads() -> None:
    scene = Scene()
    report = await scene.run()
    rows = scene.sink.partitions["train_0"]
    assert [row["sample_id"] for row in rows] == ["p/0", "p/1", "q/0", "q/1"]
    row = dict(rows[0])
    arrays = {name: row.pop(name) for name in ("prompt_ids", "response_ids", "rollout_log_probs")}
    teacher = row.pop("teacher_log_probs")
    assert row == {
        "sample_id": "p/0",
        "group_id": "p",
        "prompt": "p?",
        "answer": "42",
        "data_source": "sums",
        "response": "42",
        "finish_reason": "stop",
        "weight_version": "7",
        "reward": {"judge": 0.5, "exact": 1.0},
    }
    assert {name: (array.dtype.name, array.tolist()) for name, array in arrays.items()} == {
        "prompt_ids": ("int32", [1, 2, 3]),
        "response_ids": ("int32", [4, 5]),
        "rollout_log_probs": ("float32", [-0.25, -0.5]),
    }
    assert teacher.dtype == np.float32
    assert [sample.scores["reward"] for sample in report.samples] == [{"judge": 0.5, "exact": 1.0}] * 4
    assert all(sample.scores == {} for sample in scene.made)
    assert scene.finalised == [4]
    assert scene.concurrency == [3]


async def test_the_report_and_the_events_tell_the_same_story() -> None:
    scene = Scene()
    report = await scene.run()
    phases = ["generate", "rules", "judge", "teacher", "publish"]
    assert [phase.name for phase in report.phases] == phases
    assert [phase.samples for phase in report.phases] == [4, 4, 4, 4, 4]
    assert report.phases[0].tokens == 8
    assert [(one.role, str(one.direction)) for one in report.handovers] == [
        ("writer", "onload"),
        ("writer", "offload"),
        ("judge", "onload"),
        ("judge", "offload"),
        ("teacher", "onload"),
        ("teacher", "offload"),
    ]
    marks = [(one.start_s, one.end_s) for one in (*report.phases, *report.handovers)]
    assert all(0 <= start < end <= report.seconds for start, end in marks)
    states = [(f["stage"], f["role"], f["state"]) for kind, f in scene.events if kind == "stage.state"]
    roles = [WRITER, None, JUDGE, TEACHER, None]
    assert states == [
        (name, role, state)
        for name, role in zip(phases, roles, strict=True)
        for state in ("started", "finished")
    ]
    progress = [f for kind, f in scene.events if kind == "stage.progress" and f["stage"] == "generate"]
    assert [(f["done"], f["total"], f["tokens"]) for f in progress] == [(0, 4, 0), (4, 4, 8)]
    handed = [f for kind, f in scene.events if kind == "handover"]
    assert [(f["role"], f["direction"]) for f in handed] == [
        (one.role, str(one.direction)) for one in report.handovers
    ]
    assert all(f["batch"] == 0 and f["seconds"] > 0 for f in handed)


async def test_operation_ids_are_stable_and_name_batch_and_phase() -> None:
    scene = Scene()
    await scene.run()
    assert scene.coordinator.operations == [
        "batch-0/generate/activate",
        "batch-0/generate/deactivate",
        "batch-0/judge/activate",
        "batch-0/judge/deactivate",
        "batch-0/teacher/activate",
        "batch-0/teacher/deactivate",
    ]


async def test_a_stage_of_the_awake_role_needs_no_handover() -> None:
    scene = Scene()
    runner = scene.runner()

    async def student(samples: Sequence[Sample], context: StageContext) -> Scores:
        assert scene.roles[WRITER].awake
        return {sample.sample_id: {"student": 1.0} for sample in samples}

    stages = (
        Stage(name="student", role=WRITER, reads=frozenset(), writes=frozenset({"student"}), run=student),
    )
    runner._plan = StagePlan(generation_role=WRITER, generate=scene.generate, stages=stages)  # pyright: ignore
    await runner.run(ZERO, PROMPTS)
    assert scene.coordinator.operations == ["batch-0/generate/activate", "batch-0/student/deactivate"]
    assert scene.sink.partitions["train_0"][0]["reward"] is None


async def test_dropped_samples_leave_and_are_reported() -> None:
    scene = Scene()
    scene.returns["judge"] = lambda made: {**made, "p/1": None}
    report = await scene.run()
    assert report.dropped == {"p/1": "judge"}
    assert [row["sample_id"] for row in scene.sink.partitions["train_0"]] == ["p/0", "q/0", "q/1"]
    assert [sample.sample_id for sample in report.samples] == ["p/0", "q/0", "q/1"]


# --- something goes wrong -----------------------------------------------------------------


@pytest.mark.parametrize("phase", ["generate", "rules", "judge", "teacher"])
async def test_a_phase_that_raises_fails_the_batch_and_puts_its_role_to_sleep(phase: str) -> None:
    scene = Scene()
    scene.faults[phase] = raising(UpstreamError("engine m/replica-0 died"))
    failed = await scene.failure()
    assert str(failed) == f"batch 0 failed in {phase}: engine m/replica-0 died"
    assert isinstance(failed.__cause__, UpstreamError)
    await scene.assert_nothing_published(first_reason=f"{phase}: engine m/replica-0 died")
    scene.assert_all_asleep()
    assert scene.log.count(f"run {phase}") == 1
    assert not any(entry.startswith(("put", "clear")) for entry in scene.log)


@pytest.mark.parametrize(
    ("phase", "result", "message"),
    [
        ("judge", lambda made: {**made, "p/0": {"reward:judge": float("nan")}}, "nan"),
        ("judge", lambda made: dict(list(made.items())[1:]), "1 of 4 samples were not scored"),
        ("teacher", lambda made: {**made, "q/1": {}}, '"teacher_log_probs" is declared but was not written'),
        ("rules", dict.fromkeys, "dropped the last of 4 samples"),
    ],
)
async def test_scores_that_do_not_validate_fail_the_batch(phase: str, result: Any, message: str) -> None:
    scene = Scene()
    scene.returns[phase] = result
    failed = await scene.failure()
    assert message in str(failed)
    assert isinstance(failed.__cause__, ScoringError)
    await scene.assert_nothing_published(first_reason=phase)
    scene.assert_all_asleep()
    assert all(sample.scores == {} for sample in scene.made)


async def test_an_incomplete_group_fails_the_batch() -> None:
    scene = Scene()
    scene.returns["generate"] = lambda made: made[:3]
    failed = await scene.failure()
    assert 'group "q" has 1 of 2 samples' in str(failed)
    await scene.assert_nothing_published(first_reason="generate")
    scene.assert_all_asleep()


async def test_a_batch_that_does_not_fit_is_refused_before_it_begins() -> None:
    scene = Scene()
    with pytest.raises(ScoringError, match="4 samples do not fit the staging area of 3"):
        await scene.run(staging_samples=3)
    assert scene.log == []


async def test_a_put_that_fails_never_commits() -> None:
    scene = Scene()
    scene.sink.faults["put"] = raising(SinkError("disk full"))
    failed = await scene.failure()
    assert str(failed) == "batch 0 failed in publish: disk full"
    await scene.assert_nothing_published(first_reason="publish: disk full")
    assert scene.log[-3:] == ["put train_0", "clear train_0", "fail"]
    assert scene.finalised == []
    scene.assert_all_asleep()


async def test_a_finaliser_that_fails_clears_the_partition_before_it_fails_the_batch() -> None:
    scene = Scene()
    scene.faults["finalise"] = raising(RuntimeError("no space for the dump"))
    failed = await scene.failure()
    assert str(failed) == "batch 0 failed in publish: RuntimeError: no space for the dump"
    await scene.assert_nothing_published(first_reason="no space for the dump")
    assert scene.log[-4:] == ["put train_0", "finalise", "clear train_0", "fail"]


async def test_a_partition_that_can_not_be_cleared_is_named() -> None:
    scene = Scene()
    scene.faults["finalise"] = raising(RuntimeError("no dump"))
    scene.sink.faults["clear"] = raising(SinkError("disk gone"))
    failed = await scene.failure()
    assert "partition train_0 could not be cleared: disk gone" in str(failed)
    assert scene.log[-2:] == ["clear train_0", "fail"]
    assert "commit" not in scene.log


async def test_the_first_activate_that_fails_leaves_nobody_awake() -> None:
    scene = Scene()
    scene.roles[WRITER].faults["onload"] = raising(RuntimeError("no device"))
    failed = await scene.failure()
    assert "batch 0 failed in onload of writer" in str(failed)
    await scene.assert_nothing_published(first_reason="onload of writer")
    scene.assert_all_asleep()
    # Its lease is fenced by the coordinator's word, so nobody asks the role to sleep.
    assert scene.log == ["begin", "onload writer", "fail"]


async def test_an_activate_whose_answer_is_lost_is_followed_by_a_sleep() -> None:
    scene = Scene()

    async def lost() -> None:
        scene.coordinator.faults.clear()
        raise ConnectionError("coordinator went away")

    scene.coordinator.faults["activate"] = lost
    failed = await scene.failure()
    assert "ConnectionError: coordinator went away" in str(failed)
    scene.assert_all_asleep()
    await scene.assert_nothing_published(first_reason="coordinator went away")


async def test_a_release_that_is_not_confirmed_fails_the_batch_and_stays_fenced() -> None:
    scene = Scene()
    scene.roles[JUDGE].faults["offload"] = lambda: False
    failed = await scene.failure()
    assert "role judge was not confirmed asleep, its devices stay fenced until it is reconciled" in str(
        failed
    )
    assert "memory is still held" in str(failed)
    assert isinstance(failed.__cause__, LeaseError)
    await scene.assert_nothing_published(first_reason="offload of judge")
    assert scene.log.count("offload judge") == 1
    assert "onload teacher" not in scene.log
    leases = (await scene.coordinator.status())["leases"]
    assert {role: lease["state"] for role, lease in leases.items()} == {
        WRITER: "SLEEPING",
        JUDGE: "BLOCKED",
        TEACHER: "SLEEPING",
    }


async def test_a_stage_failure_is_the_first_reason_although_the_release_fails_too() -> None:
    scene = Scene()
    scene.faults["judge"] = raising(UpstreamError("no verdict"))
    scene.roles[JUDGE].faults["offload"] = lambda: False
    failed = await scene.failure()
    assert str(failed).startswith("batch 0 failed in judge: no verdict; role judge was not confirmed asleep")
    await scene.assert_nothing_published(first_reason="judge: no verdict")


async def test_a_batch_that_can_not_begin_touches_nothing() -> None:
    scene = Scene()
    await scene.run()
    await scene.coordinator.begin_batch(BatchId(1))
    await scene.coordinator.fail_batch(BatchId(1), "earlier trouble")
    scene.log.clear()
    with pytest.raises(BatchFailedError, match="earlier trouble"):
        await scene.runner().run(BatchId(2), PROMPTS)
    assert scene.log == ["begin"]
    assert list(scene.sink.partitions) == ["train_0"]


# --- the commit ---------------------------------------------------------------------------


async def test_a_commit_whose_answer_is_lost_but_went_through_is_a_success() -> None:
    scene = Scene()
    commit = scene.coordinator._inner.commit_batch  # pyright: ignore

    async def lost() -> None:
        await commit(ZERO, acknowledged=True)
        raise ConnectionError("answer lost")

    scene.coordinator.faults["commit_batch"] = lost
    report = await scene.run()
    assert len(report.samples) == 4
    assert "train_0" in scene.sink.partitions
    assert "fail" not in scene.log


async def test_a_commit_that_is_refused_fails_the_batch_and_then_clears() -> None:
    scene = Scene()

    async def refused() -> None:
        raise LeaseError("role judge is not asleep")

    scene.coordinator.faults["commit_batch"] = refused
    failed = await scene.failure()
    assert str(failed) == "batch 0 failed in commit: role judge is not asleep"
    assert scene.log[-3:] == ["commit", "fail", "clear train_0"]
    assert scene.sink.partitions == {}


async def test_a_commit_of_unknown_result_keeps_the_rows() -> None:
    scene = Scene()

    async def gone() -> None:
        raise ConnectionError("coordinator died")

    for call in ("commit_batch", "wait_committed", "fail_batch"):
        scene.coordinator.faults[call] = gone
    # Never committed, so the real one would time out before its fault.
    scene.coordinator._inner.wait_committed = lambda *_: asyncio.sleep(0)  # type: ignore[method-assign]
    failed = await scene.failure()
    assert "the batch could not be failed: ConnectionError: coordinator died" in str(failed)
    assert "whether it is committed is unknown, so train_0 was not cleared" in str(failed)
    assert "train_0" in scene.sink.partitions


# --- cancelling ---------------------------------------------------------------------------


async def cancelled_while_waiting(scene: Scene) -> None:
    task = asyncio.create_task(scene.run())
    await scene.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("phase", ["generate", "judge", "finalise"])
async def test_cancelling_in_a_phase_cleans_up_like_a_failure(phase: str) -> None:
    scene = Scene()
    scene.waits.add(phase)
    await cancelled_while_waiting(scene)
    where = "publish" if phase == "finalise" else phase
    await scene.assert_nothing_published(first_reason=f"{where}: cancelled")
    scene.assert_all_asleep()


async def test_cancelling_again_does_not_cut_the_clean_up_short() -> None:
    scene = Scene()
    scene.waits.add("judge")
    task = asyncio.create_task(scene.run())
    await scene.waiting.wait()
    for _ in range(5):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    await scene.assert_nothing_published(first_reason="judge: cancelled")
    scene.assert_all_asleep()


async def test_cancelling_while_a_role_wakes_lets_it_wake_and_puts_it_to_sleep() -> None:
    scene = Scene()
    task = asyncio.create_task(scene.run())

    def cancel() -> bool:
        task.cancel()
        return True

    scene.roles[JUDGE].faults["onload"] = cancel
    with pytest.raises(asyncio.CancelledError):
        await task
    assert scene.log[-3:] == ["onload judge", "fail", "offload judge"]
    await scene.assert_nothing_published(first_reason="onload of judge: cancelled")
    scene.assert_all_asleep()


async def test_cancelling_during_a_put_waits_for_it_and_clears() -> None:
    scene = Scene()
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(scene.run())
    scene.sink.after_put = lambda: loop.call_soon_threadsafe(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert scene.log[-3:] == ["put train_0", "clear train_0", "fail"]
    await scene.assert_nothing_published(first_reason="publish: cancelled")


async def test_cancelling_during_the_commit_leaves_a_committed_batch() -> None:
    scene = Scene()
    task = asyncio.create_task(scene.run())

    async def cancel() -> None:
        task.cancel()
        await asyncio.sleep(0)

    scene.coordinator.faults["commit_batch"] = cancel
    with pytest.raises(asyncio.CancelledError):
        await task
    await scene.coordinator.wait_committed(ZERO, 0.0)
    assert "train_0" in scene.sink.partitions
    assert "fail" not in scene.log
