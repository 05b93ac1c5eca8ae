"""The trainer's side of a job: its devices, and its turns on those that it shares."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from attrs import evolve

from rolecall.api import EngineId, ModelId, Nodes, Phase, PlacementPlan, Pool, ReplicaPlacement, RoleName
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult, ReplicaOutcome
from rolecall.errors import JobError, LeaseError
from rolecall.ids import BatchId, FencingToken, OperationId
from rolecall.job.paths import JobState, read_state, write_state
from rolecall.job.training_devices import training_devices
from rolecall.job.training_turn import training_turn
from rolecall.leases.coordinator import LeaseCoordinator
from rolecall.leases.lease_state import LeaseState, OpeningLease
from rolecall.leases.trainer import lease_conflicts, trainer_processes, trainers_opening_lease
from rolecall.placement.binding import bind
from rolecall.placement.bound import BundleProbe
from rolecall.placement.plan import TrainingPlacement

WRITER, JUDGE, ACTOR, CRITIC, REFERENCE = (
    RoleName(name) for name in ("writer", "judge", "actor", "critic", "reference")
)
ZERO, ONE = BatchId(0), BatchId(1)


def training(role: RoleName, bundles: range, process: RoleName | None = None) -> TrainingPlacement:
    return TrainingPlacement(role=role, process=process or role, pool_id="p", bundles=tuple(bundles))


def replica(role: RoleName, *bundles: int) -> ReplicaPlacement:
    return ReplicaPlacement(
        engine=EngineId(f"{role}/replica-0"), role=role, model=ModelId("m"), pool_id="p", bundles=bundles
    )


PLAN = PlacementPlan(
    mode="some",
    pools=(Pool(pool_id="p", resource="GPU", nodes=Nodes.of([4, 2])),),
    replicas=(replica(WRITER, 0, 1), replica(JUDGE, 4)),
    phases=(
        Phase(name="inference", roles=(WRITER, JUDGE)),
        Phase(name="training", roles=(ACTOR, CRITIC, REFERENCE)),
    ),
    training=(
        training(ACTOR, range(2)),
        training(CRITIC, range(2, 4)),
        training(REFERENCE, range(1), ACTOR),
    ),
)


class Obedient:
    """A role that does as told."""

    def __init__(self, role: RoleName) -> None:
        self._role = role

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return self._answer(ReplicaState.READY)

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return self._answer(ReplicaState.SLEEPING)

    def _answer(self, state: ReplicaState) -> LifecycleResult:
        outcome = ReplicaOutcome(engine=EngineId(f"{self._role}/replica-0"), state=state, confirmed=True)
        return LifecycleResult(role=self._role, outcomes=(outcome,))


@pytest.fixture
def coordinator() -> LeaseCoordinator:
    conflicts = lease_conflicts(PLAN, [WRITER, JUDGE])
    processes = trainer_processes(PLAN)
    opening = {role: trainers_opening_lease(shared=bool(conflicts[role])) for role in processes}
    return LeaseCoordinator(
        {WRITER: Obedient(WRITER)},
        conflicts=conflicts,
        opening={
            **opening,
            WRITER: OpeningLease(state=LeaseState.SLEEPING, reason="measured"),
            JUDGE: OpeningLease(state=LeaseState.ACTIVE, reason="measured"),
        },
        training=frozenset(processes),
    )


async def states(coordinator: LeaseCoordinator) -> dict[str, str]:
    leases = (await coordinator.status())["leases"]
    return {role: lease["state"] for role, lease in leases.items()}


async def committed(coordinator: LeaseCoordinator, batch: BatchId) -> None:
    await coordinator.begin_batch(batch)
    await coordinator.commit_batch(batch, acknowledged=True)


# --- leases -----------------------------------------------------------------------------


def test_roles_in_one_process_of_the_trainer_are_one_holder() -> None:
    assert lease_conflicts(PLAN, [WRITER, JUDGE]) == {
        WRITER: {ACTOR}, JUDGE: frozenset(), ACTOR: {WRITER}, CRITIC: frozenset()
    }  # fmt: skip


async def test_a_turn_holds_the_devices_for_the_block(coordinator: LeaseCoordinator) -> None:
    await committed(coordinator, ZERO)
    await coordinator.begin_batch(ONE)
    async with training_turn(coordinator, ZERO, [ACTOR, CRITIC]):
        assert await states(coordinator) == {
            WRITER: "SLEEPING", JUDGE: "ACTIVE", ACTOR: "ACTIVE", CRITIC: "ACTIVE"
        }  # fmt: skip
        with pytest.raises(LeaseError, match="actor is ACTIVE"):
            await coordinator.activate(ONE, WRITER, OperationId("too early"))
    await coordinator.activate(ONE, WRITER, OperationId("now"))
    with pytest.raises(LeaseError, match="writer is ACTIVE"):
        async with training_turn(coordinator, ZERO, [CRITIC, ACTOR]):
            pytest.fail("trained beside the writer")


async def test_a_turn_that_is_refused_half_way_holds_nothing(coordinator: LeaseCoordinator) -> None:
    await coordinator.begin_batch(ZERO)
    await coordinator.activate(ZERO, WRITER, OperationId("awake"))
    with pytest.raises(LeaseError, match="writer is ACTIVE"):
        async with training_turn(coordinator, ONE, [CRITIC, ACTOR]):
            pytest.fail("trained beside the writer")
    await coordinator.deactivate(ZERO, WRITER, OperationId("asleep"))
    assert (await states(coordinator))[ACTOR] == "SLEEPING"
    async with training_turn(coordinator, ONE, [CRITIC, ACTOR]):
        pass


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), asyncio.CancelledError()])
async def test_a_block_left_by_an_error_keeps_the_devices_until_one_ends_well(
    coordinator: LeaseCoordinator, error: BaseException
) -> None:
    """Nobody has said that the trainer's memory is free."""
    await committed(coordinator, ZERO)
    with pytest.raises(type(error)):
        async with training_turn(coordinator, ZERO, [ACTOR]):
            raise error
    await coordinator.begin_batch(ONE)
    with pytest.raises(LeaseError, match=r"actor is ACTIVE \(batch 0"):
        await coordinator.activate(ONE, WRITER, OperationId("too early"))
    async with training_turn(coordinator, ZERO, [ACTOR]):
        pass
    await coordinator.activate(ONE, WRITER, OperationId("now"))


class Losing(LeaseCoordinator):
    """Carries an activate out, but its answer is lost."""

    async def activate(self, batch: BatchId, role: RoleName, operation: OperationId) -> FencingToken:
        await super().activate(batch, role, operation)
        raise JobError("no answer")


async def test_a_turn_whose_answer_is_lost_is_given_back(coordinator: LeaseCoordinator) -> None:
    coordinator.__class__ = Losing
    with pytest.raises(JobError, match="no answer"):
        async with training_turn(coordinator, ZERO, [ACTOR]):
            pytest.fail("nobody knows whether it is held")
    assert (await states(coordinator))[ACTOR] == "SLEEPING"


# --- devices ----------------------------------------------------------------------------


def test_devices_are_listed_by_rank_for_each_process_and_survive_the_state_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = [
        BundleProbe(pool_id="p", bundle=bundle, node_id=node, node_ip="10.0.0.1", device_ids=(device,))
        for bundle, (node, device) in enumerate(
            [("b", "0"), ("a", "7"), ("a", "4"), ("b", "1"), ("a", "6"), ("a", "5")]
        )
    ]
    found = training_devices(bind(PLAN, probes), {"p": "rolecall-job-p-1f"})
    assert [(one.role, one.rank, one.bundle, one.device_id, one.reservation) for one in found] == [
        ("actor", 0, 2, "4", 0.5), ("actor", 1, 5, "5", 0.5),
        ("critic", 0, 4, "6", 1.0), ("critic", 1, 1, "7", 1.0),
    ]  # fmt: skip
    assert {(one.group, one.resource, one.node_id) for one in found} == {("rolecall-job-p-1f", "GPU", "a")}
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state = JobState(
        name="demo", file="job.toml", pid=1, pid_started_s=0.0, run_dir="r", namespace="n",
        ray_address="a", gateway_url="u",
    )  # fmt: skip
    write_state(evolve(state, training=found))
    read = read_state("demo")
    assert read is not None
    assert read.training == found
