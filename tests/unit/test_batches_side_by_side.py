"""A batch whose roles do not all share devices: what runs at the same time, and what the first failure ends.

Two judges on disjoint halves of the writer's devices, over the real coordinator; stages are scripted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from rolecall.api import GenerationContext, Row, Stage, StageContext
from rolecall.batches.plan import StagePlan
from rolecall.batches.report import BatchReport, Direction
from rolecall.batches.runner import BatchRunner
from rolecall.batches.sample import Prompt, Sample, Scores
from rolecall.batches.schedule import order_stages
from rolecall.batches.sharing import Sharing
from rolecall.config.specs import BatchSection
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult, ReplicaOutcome
from rolecall.errors import BatchFailedError, ScoringError, UpstreamError
from rolecall.ids import BatchId, EngineId, FencingToken, RoleName
from rolecall.leases.coordinator import LeaseCoordinator
from rolecall.leases.lease_state import LeaseState, OpeningLease

WRITER, LEFT, RIGHT, GUEST = (RoleName(name) for name in ("writer", "left", "right", "guest"))
CONFLICTS: Mapping[RoleName, frozenset[RoleName]] = {
    WRITER: frozenset({LEFT, RIGHT}),
    LEFT: frozenset({WRITER}),
    RIGHT: frozenset({WRITER}),
    GUEST: frozenset(),
}
PROMPTS = tuple(Prompt(prompt_id=name, text=f"{name}?") for name in ("p", "q"))
ZERO = BatchId(0)

Body = Callable[[Sequence[Sample]], Awaitable[None]]


class Role:
    """Wakes and sleeps at once; ``proves`` says whether it can show that it sleeps."""

    def __init__(self, role: RoleName, log: list[str]) -> None:
        self.role = role
        self.log = log
        self.awake = False
        self.woken = asyncio.Event()
        self.proves = True
        self.ahead: Callable[[], Awaitable[None]] | None = None

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        self.log.append(f"wake {self.role}")
        self.awake = True
        self.woken.set()
        return self._says(ReplicaState.READY, confirmed=True)

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        self.log.append(f"sleep {self.role}")
        self.awake = not self.proves
        return self._says(ReplicaState.SLEEPING, confirmed=self.proves)

    async def prepare(self, timeout_s: float) -> None:
        self.log.append(f"prepare {self.role}")
        if self.ahead is not None:
            await self.ahead()

    def _says(self, state: ReplicaState, *, confirmed: bool) -> LifecycleResult:
        outcome = ReplicaOutcome(
            engine=EngineId("m/replica-0"), state=state, confirmed=confirmed, detail="memory is held"
        )
        return LifecycleResult(role=self.role, outcomes=(outcome,))


class Sink:
    def __init__(self) -> None:
        self.partitions: dict[str, list[Row]] = {}

    def put(self, partition: str, rows: Sequence[Row]) -> None:
        self.partitions[partition] = list(rows)

    def clear(self, partition: str) -> None:
        self.partitions.pop(partition, None)


class Scene:
    """Stages ``left``, ``right``, ``guest`` of the roles of these names, and ``rules`` of none."""

    def __init__(self, conflicts: Mapping[RoleName, frozenset[RoleName]] = CONFLICTS) -> None:
        self.log: list[str] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.conflicts = conflicts
        self.roles = {role: Role(role, self.log) for role, others in conflicts.items() if others}
        self.sink = Sink()
        self.coordinator = LeaseCoordinator(
            self.roles,  # type: ignore[arg-type]
            conflicts=conflicts,
            opening={role: opening(conflicts[role]) for role in conflicts},
        )
        self.bodies: dict[str, Body] = {}
        self.returns: dict[str, Any] = {}
        self.cancelled: list[str] = []

    def stage(self, name: str, role: str | None, reads: Sequence[str] = ()) -> Stage:
        async def run(samples: Sequence[Sample], context: StageContext) -> Scores:
            del context
            self.log.append(f"run {name}")
            assert all(fake.awake for name, fake in self.roles.items() if name == role)
            try:
                if name in self.bodies:
                    await self.bodies[name](samples)
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
            self.log.append(f"end {name}")
            return {
                sample.sample_id: self.returns.get(name, {}).get(sample.sample_id, {f"by_{name}": 1.0})
                for sample in samples
            }

        writes = frozenset({f"by_{name}"})
        return Stage(
            name=name, role=role, reads=frozenset(f"by_{other}" for other in reads), writes=writes, run=run
        )

    async def generate(self, prompts: Sequence[Prompt], context: GenerationContext) -> Sequence[Sample]:
        self.log.append("run generate")
        if "generate" in self.bodies:
            await self.bodies["generate"](())
        return [
            Sample(
                sample_id=prompt.prompt_id,
                group_id=prompt.prompt_id,
                prompt=prompt,
                prompt_ids=(1,),
                response="42",
                response_ids=(4,),
                rollout_log_probs=(-0.5,),
                finish_reason="stop",
                weight_version="0",
            )
            for prompt in prompts
        ]

    async def run(self, *stages: Stage) -> BatchReport:
        shared = Sharing(self.conflicts)
        chosen = stages or (self.stage("left", LEFT), self.stage("right", RIGHT))
        runner = BatchRunner(
            coordinator=self.coordinator,
            clients=lambda role: role,  # type: ignore[arg-type,return-value]
            plan=StagePlan(
                generation_role=WRITER,
                generate=self.generate,
                stages=order_stages(chosen, awake=WRITER, sharing=shared),
                sharing=shared,
            ),
            sink=self.sink,  # type: ignore[arg-type]
            settings=BatchSection(prompts="-", samples_per_prompt=1),
            emit=lambda kind, /, **fields: self.events.append((kind, fields)),
        )
        async with asyncio.timeout(10):
            return await runner.run(ZERO, PROMPTS)

    async def failure(self, *stages: Stage) -> str:
        with pytest.raises(BatchFailedError) as failed:
            await self.run(*stages)
        assert self.sink.partitions == {}
        assert [role for role, fake in self.roles.items() if fake.awake and fake.proves] == []
        return str(failed.value)


def opening(others: frozenset[RoleName]) -> OpeningLease:
    return OpeningLease(state=LeaseState.SLEEPING if others else LeaseState.ACTIVE, reason="measured")


def together(count: int) -> Body:
    """A body that ends only when ``count`` of them run at the same time."""
    barrier = asyncio.Barrier(count)

    async def body(samples: Sequence[Sample]) -> None:
        await barrier.wait()

    return body


def fails(error: BaseException, *, after: asyncio.Event | None = None) -> Body:
    async def body(samples: Sequence[Sample]) -> None:
        if after is not None:
            await after.wait()
        raise error

    return body


def hangs(entered: asyncio.Event) -> Body:
    async def body(samples: Sequence[Sample]) -> None:
        entered.set()
        await asyncio.Event().wait()

    return body


def wait_for(event: asyncio.Event) -> Body:
    async def body(samples: Sequence[Sample]) -> None:
        await event.wait()

    return body


# --- at the same time ---------------------------------------------------------------------


async def test_two_judges_on_disjoint_devices_judge_at_the_same_time() -> None:
    scene = Scene()
    scene.bodies |= dict.fromkeys(("left", "right"), together(2))
    report = await scene.run()
    spans = {phase.name: (phase.start_s, phase.end_s) for phase in report.phases}
    assert max(spans["left"][0], spans["right"][0]) < min(spans["left"][1], spans["right"][1])
    states = [(f["stage"], f["state"]) for kind, f in scene.events if kind == "stage.state"]
    begun = [states.index((name, "started")) for name in ("left", "right")]
    ended = [states.index((name, "finished")) for name in ("left", "right")]
    assert max(begun) < min(ended)
    assert scene.log.index("sleep writer") < min(scene.log.index(f"wake {role}") for role in (LEFT, RIGHT))
    assert [row["by_left"] + row["by_right"] for row in scene.sink.partitions["train_0"]] == [2.0, 2.0]


async def test_a_judge_that_shares_nothing_with_the_writer_wakes_while_it_writes() -> None:
    scene = Scene(
        {WRITER: frozenset(), LEFT: frozenset({RIGHT}), RIGHT: frozenset({LEFT}), GUEST: frozenset()}
    )
    scene.bodies["generate"] = wait_for(scene.roles[LEFT].woken)
    await scene.run()
    assert scene.log.index("wake left") < scene.log.index("run left")
    assert scene.log.index("sleep left") < scene.log.index("wake right")


async def test_a_role_without_conflicts_is_asked_for_and_never_handed_over() -> None:
    scene = Scene()
    report = await scene.run(scene.stage("guest", GUEST), scene.stage("left", LEFT))
    assert [(one.role, one.direction) for one in report.handovers] == [
        (WRITER, Direction.ONLOAD),
        (WRITER, Direction.OFFLOAD),
        (LEFT, Direction.ONLOAD),
        (LEFT, Direction.OFFLOAD),
    ]
    assert [phase.name for phase in report.phases if phase.role == GUEST] == ["guest"]


async def test_rules_run_while_devices_are_handed_over() -> None:
    scene = Scene()
    released = asyncio.Event()
    scene.bodies["rules"] = wait_for(released)

    async def release(samples: Sequence[Sample]) -> None:
        released.set()

    scene.bodies["left"] = release
    await scene.run(scene.stage("rules", None), scene.stage("left", LEFT))
    assert scene.log.index("run rules") < scene.log.index("sleep writer")


async def test_a_stage_waits_for_the_fields_it_reads_from_another_half() -> None:
    scene = Scene()
    await scene.run(scene.stage("left", LEFT, reads=["right"]), scene.stage("right", RIGHT))
    assert scene.log.index("end right") < scene.log.index("run left")
    assert scene.log.index("wake left") < scene.log.index("end right"), "its role is awake by then"


# --- what a stage sees --------------------------------------------------------------------


async def test_what_a_stage_sees_does_not_depend_on_how_fast_another_one_is() -> None:
    seen: dict[str, list[tuple[str, list[str]]]] = {}

    def remember(name: str, after: asyncio.Event | None = None) -> Body:
        async def body(samples: Sequence[Sample]) -> None:
            if after is not None:
                await after.wait()
            seen[name] = [(sample.sample_id, sorted(sample.scores)) for sample in samples]
            done[name].set()

        return body

    for slow, fast in (("left", "right"), ("right", "left")):
        done = {name: asyncio.Event() for name in ("left", "right", "last")}
        scene = Scene()
        scene.returns["right"] = {"q": None}
        scene.bodies |= {slow: remember(slow, done[fast]), fast: remember(fast), "last": remember("last")}
        report = await scene.run(
            scene.stage("left", LEFT), scene.stage("right", RIGHT), scene.stage("last", None, ["right"])
        )
        assert seen == {
            "left": [("p", []), ("q", [])],
            "right": [("p", []), ("q", [])],
            "last": [("p", ["by_right"])],
        }
        assert report.dropped == {"q": "right"}
        assert [row["sample_id"] for row in scene.sink.partitions["train_0"]] == ["p"]


async def test_a_sample_may_be_dropped_by_two_at_once() -> None:
    scene = Scene()
    scene.returns = {"left": {"q": None}, "right": {"q": None}}
    scene.bodies |= dict.fromkeys(("left", "right"), together(2))
    report = await scene.run()
    assert list(report.dropped) == ["q"]
    assert [row["sample_id"] for row in scene.sink.partitions["train_0"]] == ["p"]


async def test_two_that_drop_everything_between_them_fail_the_batch() -> None:
    scene = Scene()
    scene.returns = {"left": {"q": None}, "right": {"p": None}}
    scene.bodies |= dict.fromkeys(("left", "right"), together(2))
    assert "dropped the last of 2 samples" in await scene.failure()


# --- the first failure --------------------------------------------------------------------


async def test_the_first_failure_ends_the_others_and_everyone_is_put_to_sleep() -> None:
    scene = Scene()
    entered = asyncio.Event()
    scene.bodies = {"left": hangs(entered), "right": fails(UpstreamError("no verdict"), after=entered)}
    message = await scene.failure()
    assert message == "batch 0 failed in right: no verdict"
    assert scene.cancelled == ["left"]
    assert sorted(entry for entry in scene.log if entry.startswith("sleep")) == [
        "sleep left",
        "sleep right",
        "sleep writer",
    ]
    with pytest.raises(BatchFailedError, match="right: no verdict"):
        await scene.coordinator.wait_committed(ZERO, 0.0)
    leases = (await scene.coordinator.status())["leases"]
    assert {lease["state"] for lease in leases.values() if not lease["resident"]} == {"SLEEPING"}


async def test_what_fails_on_the_way_down_is_told_with_the_first_failure() -> None:
    scene = Scene()
    entered = asyncio.Event()
    scene.bodies = {"left": hangs(entered), "right": fails(UpstreamError("no verdict"), after=entered)}
    scene.roles[LEFT].proves = False
    message = await scene.failure()
    assert message.startswith("batch 0 failed in right: no verdict; role left was not confirmed asleep")


async def test_two_failures_of_one_moment_are_both_told() -> None:
    scene = Scene()
    go = asyncio.Event()
    scene.bodies = {
        "left": fails(UpstreamError("no left"), after=go),
        "right": fails(UpstreamError("no right"), after=go),
    }
    scene.bodies["rules"] = lambda _: _set(go)
    message = await scene.failure(
        scene.stage("left", LEFT), scene.stage("right", RIGHT), scene.stage("rules", None)
    )
    assert message == "batch 0 failed in left: no left; no right"


async def _set(event: asyncio.Event) -> None:
    event.set()


async def test_a_stage_that_is_cancelled_from_within_fails_the_batch() -> None:
    scene = Scene()
    scene.bodies["left"] = fails(asyncio.CancelledError())
    assert "left: it was cancelled from within" in await scene.failure()


async def test_cancelling_a_batch_names_all_that_ran() -> None:
    scene = Scene()
    entered = [asyncio.Event(), asyncio.Event()]
    scene.bodies = {"left": hangs(entered[0]), "right": hangs(entered[1])}
    batch = asyncio.create_task(scene.run())
    for event in entered:
        await event.wait()
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    assert sorted(scene.cancelled) == ["left", "right"]
    assert not any(fake.awake for fake in scene.roles.values())
    with pytest.raises(BatchFailedError, match="left and right: cancelled"):
        await scene.coordinator.wait_committed(ZERO, 0.0)


async def test_scores_that_do_not_validate_end_the_sibling() -> None:
    scene = Scene()
    entered = asyncio.Event()
    scene.bodies = {"left": hangs(entered), "right": wait_for(entered)}
    scene.returns["right"] = {"p": {"by_right": float("nan")}}
    with pytest.raises(BatchFailedError, match=r"right.*nan") as failed:
        await scene.run()
    assert isinstance(failed.value.__cause__, ScoringError)
    assert scene.cancelled == ["left"]


# --- a head start -------------------------------------------------------------------------


async def test_the_next_roles_are_prepared_while_the_one_before_is_awake() -> None:
    scene = Scene()
    ready = {role: asyncio.Event() for role in (LEFT, RIGHT)}
    for role, event in ready.items():
        scene.roles[role].ahead = lambda event=event: _set(event)

    async def until_prepared(samples: Sequence[Sample]) -> None:
        assert scene.roles[WRITER].awake
        for event in ready.values():
            await event.wait()

    scene.bodies["generate"] = until_prepared
    await scene.run()
    assert all(event.is_set() for event in ready.values())


@pytest.mark.parametrize("what", ["raises", "hangs"])
async def test_a_head_start_that_goes_wrong_costs_nothing_else(what: str) -> None:
    scene = Scene()
    ended: list[str] = []

    async def ahead() -> None:
        if what == "raises":
            raise RuntimeError("no disk")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("left")

    scene.roles[LEFT].ahead = ahead
    await scene.run()
    await scene.coordinator.wait_committed(ZERO, 0.0)
    assert ended == (["left"] if what == "hangs" else []), "it ends with the batch"
