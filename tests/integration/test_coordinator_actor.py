"""The coordinator on a real Ray: calls, errors, waiters and callers in other processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import psutil
import pytest
import ray
from attrs import frozen
from ray.exceptions import ActorDiedError, RayTaskError

from rolecall.engines.proof import Proof
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult, ReplicaOutcome
from rolecall.errors import (
    BatchFailedError,
    CommitTimeoutError,
    JobError,
    LeaseBlockedError,
    LeaseError,
    OperationReuseError,
    PayloadError,
    SinkError,
    TransitionError,
)
from rolecall.events.event import Event
from rolecall.events.hub import SenderOrder
from rolecall.ids import BatchId, EngineId, FencingToken, OperationId, RoleName
from rolecall.leases.coordinator import LeaseCoordinator
from rolecall.leases.coordinator_actor import (
    NamedActor,
    RayCoordinator,
    RayRoleLifecycle,
    create_coordinator,
    find_coordinator,
)
from rolecall.leases.lease_state import LeaseState, OpeningLease
from rolecall.leases.reconciliation import Claim

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

# Workers can't import this file: what they run of it goes to them by value.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

WRITER, JUDGE, GUEST = (RoleName(name) for name in ("writer", "judge", "guest"))
ZERO = BatchId(0)
STUBS = "stubs"


def op(name: str) -> OperationId:
    return OperationId(name)


class ServiceStub:
    """Stands where the role's service stands; does as told, or waits, or raises."""

    def __init__(self, role: RoleName) -> None:
        self._role = role
        self._forget()

    def _forget(self) -> None:
        self._error: Exception | None = None
        self._calls: list[tuple[str, int]] = []
        self._arrived = asyncio.Event()
        self._go = asyncio.Event()
        self._go.set()
        self._busy = asyncio.Lock()
        self._stands = ReplicaState.SLEEPING

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._act("onload", token, ReplicaState.READY)

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._act("offload", token, ReplicaState.SLEEPING)

    async def account(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return await self._act("account", token, None)

    async def vacate(self, token: FencingToken, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        return await self._act(f"vacate, {proof}", token, ReplicaState.SLEEPING)

    async def _act(self, name: str, token: FencingToken, state: ReplicaState | None) -> LifecycleResult:
        async with self._busy:
            self._calls.append((name, token))
            self._arrived.set()
            await self._go.wait()
            if self._error is not None:
                raise self._error
            self._stands = state or self._stands
        outcome = ReplicaOutcome(engine=EngineId("m/replica-0"), state=self._stands, confirmed=True)
        return LifecycleResult(role=self._role, outcomes=(outcome,))

    async def reset(self) -> None:
        self._forget()

    async def hold(self) -> None:
        self._go.clear()
        self._arrived.clear()

    async def release(self) -> None:
        self._go.set()

    async def recover(self) -> None:
        self._error = None

    async def arrival(self) -> None:
        await self._arrived.wait()

    async def fail_with(self, kind: Callable[[], Exception]) -> None:
        self._error = kind()

    async def calls(self) -> list[tuple[str, int]]:
        return self._calls


class EventsStub:
    """Stands where the event hub stands."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Mapping[str, Any]]] = []
        self._news = asyncio.Condition()

        self._order = SenderOrder(self._take)

    async def emit(self, sender: str, number: int, events: list[Event]) -> None:
        async with self._news:
            self._order.take(sender, number, events)
            self._news.notify_all()

    def _take(self, event: Event) -> None:
        assert event.time_s > 1e9
        if event.kind in {"lease.state", "batch.state"}:
            self._events.append((event.kind, event.fields))

    async def reset(self) -> None:
        self._events.clear()

    async def first(self, count: int) -> list[tuple[str, Mapping[str, Any]]]:
        async with self._news:
            await self._news.wait_for(lambda: len(self._events) >= count)
        return self._events[:count]


@frozen
class Job:
    namespace: str
    coordinator: RayCoordinator
    services: Mapping[RoleName, Any]
    events: Any

    async def lease(self, role: RoleName) -> Mapping[str, Any]:
        return (await self.coordinator.status())["leases"][role]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="rc", dir="/tmp")
    ray.init(
        num_cpus=4, include_dashboard=False, _temp_dir=folder, log_to_driver=False, logging_level="ERROR"
    )
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def start(stub: type[Any], *arguments: Any) -> Any:
    return ray.remote(num_cpus=0)(stub).remote(*arguments)


@pytest.fixture(scope="module")
def stubs(cluster: None) -> dict[str, Any]:
    """The roles' services and the event hub; a process each, so made once."""
    made = {WRITER: (ServiceStub, WRITER), JUDGE: (ServiceStub, JUDGE), "events": (EventsStub,)}
    return {
        name: ray.remote(num_cpus=0)(stub).options(name=name, namespace=STUBS).remote(*arguments)
        for name, (stub, *arguments) in made.items()
    }


@pytest.fixture
async def job(stubs: dict[str, Any], tmp_path: Path) -> AsyncIterator[Job]:
    """A fresh coordinator, and services and event hub that remember nothing."""
    await asyncio.gather(*(stub.reset.remote() for stub in stubs.values()))
    namespace = f"rolecall-{uuid.uuid4().hex[:8]}"
    services = {role: stubs[role] for role in (WRITER, JUDGE)}
    events = stubs["events"]
    asleep = OpeningLease(state=LeaseState.SLEEPING, reason="measured")
    coordinator = create_coordinator(
        namespace=namespace,
        services={role: NamedActor(name=role, namespace=STUBS) for role in services},
        events=NamedActor(name="events", namespace=STUBS),
        conflicts={WRITER: {JUDGE}, JUDGE: {WRITER}, GUEST: frozenset()},
        opening={
            WRITER: asleep,
            JUDGE: asleep,
            GUEST: OpeningLease(state=LeaseState.ACTIVE, reason="measured"),
        },
        timeout_s=60.0,
        journal=tmp_path / "job.journal",
        run="this",
    )
    await coordinator.begin_batch(ZERO)
    yield Job(namespace, coordinator, services, events)
    ray.kill(coordinator.handle)


async def test_a_batch_goes_round_through_the_actor(job: Job) -> None:
    assert await job.coordinator.activate(ZERO, GUEST, op("resident")) > 0
    granted: list[int] = []
    for role in (WRITER, JUDGE):
        granted.append(await job.coordinator.activate(ZERO, role, op(f"wake {role}")))
        await job.coordinator.deactivate(ZERO, role, op(f"put {role}"))
    await job.coordinator.commit_batch(ZERO, acknowledged=True)
    await job.coordinator.wait_committed(ZERO, 0.0)
    calls = [call for service in job.services.values() for call in await service.calls.remote()]
    assert [name for name, _ in calls] == ["onload", "offload"] * 2
    tokens = [token for _, token in calls]
    assert tokens == sorted(set(tokens))
    assert granted == [tokens[0], tokens[2]]
    events = await job.events.first.remote(13)
    changes = [
        (fields.get("role", fields.get("batch")), fields["to"]) for _, fields in events if fields["from"]
    ]
    cycle = ["ONLOADING", "ACTIVE", "DRAINING", "SLEEPING"]
    assert changes == [(role, state) for role in (WRITER, JUDGE) for state in cycle] + [(0, "COMMITTED")]


async def raised(call: Awaitable[Any]) -> Exception:
    try:
        await call
    except Exception as error:
        return error
    pytest.fail("nothing was raised")


async def test_every_error_arrives_as_what_it_was(job: Job) -> None:
    client = job.coordinator
    await client.activate(ZERO, WRITER, op("wake"))
    found = [
        await raised(client.activate(ZERO, JUDGE, op("a"))),
        await raised(client.deactivate(ZERO, WRITER, op("wake"))),
        await raised(client.commit_batch(ZERO, acknowledged=False)),
        await raised(client.commit_batch(BatchId(9), acknowledged=True)),
        await raised(client.wait_committed(ZERO, 0.0)),
    ]
    await client.fail_batch(ZERO, "disk full")
    found.append(await raised(client.begin_batch(BatchId(1))))
    assert [type(error) for error in found] == [
        LeaseError,
        OperationReuseError,
        SinkError,
        TransitionError,
        CommitTimeoutError,
        BatchFailedError,
    ]
    assert all(isinstance(error.__cause__, RayTaskError) for error in found), "the far traceback is kept"
    assert "writer is ACTIVE (batch 0" in str(found[0])
    assert "batch 1" in str(found[-1])
    assert "disk full" in str(found[-1])


async def test_an_error_with_a_constructor_of_its_own_comes_through_two_processes(job: Job) -> None:
    judge = job.services[JUDGE]
    await judge.fail_with.remote(lambda: PayloadError("no text", field="payload.text"))
    error = await raised(RayRoleLifecycle(JUDGE, judge).onload(FencingToken(1), 1.0))
    assert type(error) is PayloadError
    assert (str(error), error.field) == ("no text", "payload.text")
    with pytest.raises(LeaseBlockedError, match="activate raised PayloadError: no text"):
        await job.coordinator.activate(ZERO, JUDGE, op("wake"))


async def test_a_foreign_error_is_told_in_our_words(job: Job) -> None:
    judge = job.services[JUDGE]
    await judge.fail_with.remote(lambda: ZeroDivisionError("by zero"))
    with pytest.raises(JobError, match="judge's onload broke: ZeroDivisionError: by zero") as caught:
        await RayRoleLifecycle(JUDGE, judge).onload(FencingToken(1), 1.0)
    assert isinstance(caught.value.__cause__, RayTaskError)


async def test_a_caller_that_gives_up_leaves_the_operation_running(job: Job) -> None:
    judge = job.services[JUDGE]
    await judge.hold.remote()
    call = asyncio.create_task(job.coordinator.activate(ZERO, JUDGE, op("wake")))
    await judge.arrival.remote()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await job.lease(JUDGE))["state"] == "ONLOADING"
    await judge.release.remote()
    token = await job.coordinator.activate(ZERO, JUDGE, op("wake"))
    assert await judge.calls.remote() == [("onload", token)]


class Caller:
    """Another process that talks to the coordinator."""

    def __init__(self, namespace: str) -> None:
        self._coordinator = find_coordinator(namespace)

    async def activate(self, role: RoleName, operation: OperationId) -> int:
        return await self._coordinator.activate(ZERO, role, operation)

    async def outcome(self, batch: BatchId, timeout_s: float) -> str:
        try:
            await self._coordinator.wait_committed(batch, timeout_s)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "committed"

    async def ready(self) -> None:
        await self._coordinator.status()


async def test_a_caller_that_is_killed_leaves_the_operation_running(job: Job) -> None:
    judge = job.services[JUDGE]
    await judge.hold.remote()
    caller = start(Caller, job.namespace)
    call = caller.activate.remote(JUDGE, op("wake"))
    await judge.arrival.remote()
    ray.kill(caller)
    with pytest.raises(ActorDiedError):
        await call
    await judge.release.remote()
    token = await job.coordinator.activate(ZERO, JUDGE, op("wake"))
    assert await judge.calls.remote() == [("onload", token)]
    assert (await job.lease(JUDGE))["state"] == "ACTIVE"


async def test_waiters_in_another_process_hear_commit_failure_and_timeout(job: Job) -> None:
    consumer = start(Caller, job.namespace)
    waits = {number: consumer.outcome.remote(BatchId(number), 100.0) for number in (0, 1)}
    hopeless = consumer.outcome.remote(BatchId(2), 0.05)
    assert "CommitTimeoutError: batch 2 was not committed within 0.05 s: it has not begun" in await hopeless
    await consumer.ready.remote()
    await job.coordinator.commit_batch(ZERO, acknowledged=True)
    assert await waits[0] == "committed"
    await job.coordinator.begin_batch(BatchId(1))
    await job.coordinator.fail_batch(BatchId(1), "the sink refused train_1")
    assert await waits[1] == "BatchFailedError: batch 1 failed: the sink refused train_1"
    assert "the sink refused train_1" in await consumer.outcome.remote(BatchId(5), 100.0)


async def test_hundreds_of_waiters_do_not_keep_a_command_out(job: Job) -> None:
    waiters = [asyncio.create_task(job.coordinator.wait_committed(ZERO, 100.0)) for _ in range(1500)]
    await job.coordinator.activate(ZERO, JUDGE, op("wake"))
    await job.coordinator.deactivate(ZERO, JUDGE, op("put"))
    await job.coordinator.commit_batch(ZERO, acknowledged=True)
    await asyncio.gather(*waiters)


async def test_a_dead_coordinator_is_the_end_of_the_job_for_everyone(job: Job) -> None:
    waiter = asyncio.create_task(job.coordinator.wait_committed(ZERO, 100.0))
    await job.coordinator.status()
    ray.kill(job.coordinator.handle)
    with pytest.raises(JobError, match="the actor is gone and the job can't go on") as caught:
        await waiter
    assert isinstance(caught.value.__cause__, ActorDiedError)
    with pytest.raises(JobError, match=r"begin_batch\(1\)"):
        await job.coordinator.begin_batch(BatchId(1))


async def kill_coordinator(job: Job) -> None:
    """SIGKILL the actor's process; Ray restarts it."""
    pid: int = await job.coordinator.handle.__ray_call__.remote(lambda _: os.getpid())
    psutil.Process(pid).kill()


async def test_a_coordinator_killed_while_all_sleep_commits_all_the_same(job: Job) -> None:
    waiter = asyncio.create_task(job.coordinator.wait_committed(ZERO, 100.0))
    first = await job.coordinator.activate(ZERO, JUDGE, op("wake"))
    await job.coordinator.deactivate(ZERO, JUDGE, op("put"))
    await kill_coordinator(job)
    assert await job.coordinator.activate(ZERO, JUDGE, op("wake")) == first, "a fate outlives the coordinator"
    await job.coordinator.commit_batch(ZERO, acknowledged=True)
    await waiter
    assert await job.services[JUDGE].calls.remote() == [("onload", 2), ("offload", 3), ("account", ANY)]


async def test_a_coordinator_killed_while_a_role_is_awake_leaves_it_its_lease(job: Job) -> None:
    before = await job.coordinator.activate(ZERO, JUDGE, op("wake"))
    await kill_coordinator(job)
    with pytest.raises(LeaseError, match="judge is ACTIVE"):
        await job.coordinator.activate(ZERO, WRITER, op("too early"))
    lease = await job.lease(JUDGE)
    assert (lease["state"], lease["batch"]) == ("ACTIVE", 0)
    assert lease["token"] > before
    await job.coordinator.deactivate(ZERO, JUDGE, op("put"))
    await job.coordinator.commit_batch(ZERO, acknowledged=True)


@pytest.mark.parametrize(("method", "reached"), [("activate", "ACTIVE"), ("deactivate", "SLEEPING")])
async def test_a_coordinator_killed_in_a_hand_over_tells_its_caller_how_that_ended(
    job: Job, method: str, reached: str
) -> None:
    judge = job.services[JUDGE]
    if method == "deactivate":
        await job.coordinator.activate(ZERO, JUDGE, op("wake"))
    await judge.hold.remote()
    call = asyncio.create_task(getattr(job.coordinator, method)(ZERO, JUDGE, op("change")))
    await judge.arrival.remote()
    await kill_coordinator(job)
    await judge.release.remote()
    await call
    assert (await job.lease(JUDGE))["state"] == reached
    commands = [name for name, _ in await judge.calls.remote()]
    assert commands[-2:] == ["onload" if method == "activate" else "offload", "account"], "sent once"


async def test_a_coordinator_killed_while_a_role_is_fenced_keeps_the_fence(job: Job) -> None:
    judge = job.services[JUDGE]
    await judge.fail_with.remote(lambda: PayloadError("no text", field="payload.text"))
    with pytest.raises(LeaseBlockedError):
        await job.coordinator.activate(ZERO, JUDGE, op("wake"))
    await kill_coordinator(job)
    with pytest.raises(LeaseBlockedError, match="no text"):
        await job.coordinator.activate(ZERO, WRITER, op("next"))
    with pytest.raises(LeaseBlockedError, match="no text"):
        await job.coordinator.activate(ZERO, JUDGE, op("wake"))


async def test_a_fence_is_lifted_from_any_process_and_the_record_outlives_the_coordinator(job: Job) -> None:
    judge, claim = job.services[JUDGE], Claim(proof=Proof.NODE_GONE, by="ada@login-1", note="off")
    await judge.fail_with.remote(lambda: PayloadError("no text", field="payload.text"))
    with pytest.raises(LeaseBlockedError):
        await job.coordinator.activate(ZERO, JUDGE, op("wake"))
    with pytest.raises(LeaseBlockedError, match=r"the fence stays.*no text"):
        await job.coordinator.reconcile(JUDGE, op("early"), claim=claim)
    await judge.recover.remote()
    record = await job.coordinator.reconcile(JUDGE, op("lift"), claim=claim)
    assert (record.claim, set(record.evidence)) == (claim, {"m/replica-0"})
    assert (await judge.calls.remote())[-1][0] == "vacate, node-gone"
    assert (await job.lease(JUDGE))["state"] == "SLEEPING"
    await kill_coordinator(job)
    assert await job.coordinator.reconcile(JUDGE, op("lift"), claim=claim) == record
    with pytest.raises(LeaseBlockedError, match="no text"):
        await job.coordinator.reconcile(JUDGE, op("early"), claim=claim)
    await job.coordinator.activate(ZERO, WRITER, op("next"))
    await job.coordinator.deactivate(ZERO, WRITER, op("next, back"))


async def test_a_role_that_dies_in_its_onload_leaves_the_lease_blocked(cluster: None) -> None:
    services = {role: start(ServiceStub, role) for role in (WRITER, JUDGE)}
    judge = services[JUDGE]
    await judge.hold.remote()
    lifecycles = {role: RayRoleLifecycle(role, service) for role, service in services.items()}
    asleep = OpeningLease(state=LeaseState.SLEEPING, reason="measured")
    coordinator = LeaseCoordinator(
        lifecycles,
        conflicts={WRITER: {JUDGE}, JUDGE: {WRITER}},
        opening={WRITER: asleep, JUDGE: asleep},
    )
    await coordinator.begin_batch(ZERO)
    call = asyncio.create_task(coordinator.activate(ZERO, JUDGE, op("wake")))
    await judge.arrival.remote()
    ray.kill(judge)
    with pytest.raises(LeaseBlockedError, match="judge's onload failed, the actor is gone"):
        await call
    with pytest.raises(LeaseBlockedError, match="judge is BLOCKED"):
        await coordinator.activate(ZERO, WRITER, op("next"))
    ray.kill(services[WRITER])


async def test_no_coordinator_in_the_namespace_is_said(cluster: None) -> None:
    with pytest.raises(JobError, match="no coordinator runs in Ray namespace 'rolecall-nobody'"):
        find_coordinator("rolecall-nobody")


async def test_a_setup_that_contradicts_itself_shows_on_the_first_call(stubs: dict[str, Any]) -> None:
    coordinator = create_coordinator(
        namespace="rolecall-bad",
        services={},
        events=NamedActor(name="events", namespace=STUBS),
        conflicts={WRITER: {JUDGE}},
        opening={WRITER: OpeningLease(state=LeaseState.SLEEPING, reason="measured")},
    )
    with pytest.raises(JobError, match="'writer' conflicts with 'judge' but not the other way round"):
        await coordinator.status()


class Stuck:
    """A coordinator that never answers."""

    async def begin_batch(self, batch: BatchId) -> None:
        await asyncio.Event().wait()

    async def wait_committed(self, batch: BatchId, timeout_s: float) -> None:
        await asyncio.Event().wait()


async def test_a_coordinator_that_hangs_hangs_nobody_else(cluster: None) -> None:
    stuck = start(Stuck)
    client = RayCoordinator(stuck, answer_timeout_s=0.2, wait_grace_s=0.1)
    with pytest.raises(JobError, match=r"did not answer begin_batch\(0\) within 0.2 s.*repeating it"):
        await client.begin_batch(ZERO)
    with pytest.raises(CommitTimeoutError, match=r"batch 0 was not seen committed.*within 0.2 s"):
        await client.wait_committed(ZERO, 0.1)
    ray.kill(stuck)
