"""Deaths around real SGLang: real Ray, a role service, one replica, killed piece by piece.

The tests follow one another on one started role, since each start of SGLang takes half a minute; each
leaves what the next one kills.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import ray
from attrs import asdict, define

from rolecall.discovery.snapshot import decode_snapshot
from rolecall.engines.reaping import EngineMark, marked_processes
from rolecall.engines.results import LifecycleResult
from rolecall.events.event import Event
from rolecall.ids import EngineId, FencingToken, ModelId, RoleName
from rolecall.interfaces.engine_backend import FromDisk
from rolecall.placement.nodes import Nodes
from rolecall.placement.plan import Phase, PlacementPlan, Pool, ReplicaPlacement
from rolecall_plugins.engines.sglang import SglangOptions

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

NAMESPACE = "rolecall-sglang-recovery"
ROLE, ENGINE = RoleName("rollout"), EngineId("policy/replica-0")
PLAN = PlacementPlan(
    mode="by hand",
    pools=(Pool(pool_id="own", resource="device_slot", nodes=Nodes.equal(1, per_node=1)),),
    replicas=(
        ReplicaPlacement(engine=ENGINE, role=ROLE, model=ModelId("policy"), pool_id="own", bundles=(0,)),
    ),
    phases=(Phase(name="all", roles=(ROLE,)),),
)


@define
class Plane:
    """The started role."""

    service: Any
    registry: Any
    hub: Any

    def replica(self) -> dict[str, Any]:
        (entry,) = ray.get(self.service.status.remote())["replicas"]
        return entry

    def model(self) -> Any:
        """The role's only model as discovery shows it."""
        return decode_snapshot(ray.get(self.registry.handle.read.remote(ROLE, None, 0.0)).body).models[
            "policy"
        ]

    def serves(self, generation: int) -> bool:
        (engine,) = self.model().engines
        return engine.generation == generation and engine.direct_eligible

    def events(self, kind: str) -> list[Event]:
        return [event for event in ray.get(self.hub.tail.remote(0, 0.0))[1] if event.kind == kind]

    def processes(self) -> list[psutil.Process]:
        """What carries the mark of the present start."""
        incarnation = self.replica()["incarnation"]
        return marked_processes(
            EngineMark(namespace=NAMESPACE, role=ROLE, engine=ENGINE, incarnation=incarnation)
        )


def until(what: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.1)


def gone(processes: list[psutil.Process]) -> bool:
    return not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes)


def generate(url: str, prompt: list[int], tokens: int) -> dict[str, Any]:
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    payload = {"input_ids": prompt, "sampling_params": sampling}
    answer = httpx.post(f"{url}/generate", json=payload, timeout=200, trust_env=False)
    return answer.raise_for_status().json()


def job_text(model: Path, options: SglangOptions) -> str:
    """A job file; JSON's scalars are TOML's."""

    def table(values: Mapping[str, Any]) -> str:
        return "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items())

    engine = asdict(options)
    return f"""
[job]
name = "sglang-recovery"

[placement]
mode = "decoupled"
resource = "device_slot"
devices_per_node = 1

[lifecycle]
drain_grace_s = 0.5
probe_interval_s = 0.5

[roles.rollout]
devices = 1

[roles.rollout.models.policy]
source = {json.dumps(str(model))}
engine = "sglang"

[roles.rollout.models.policy.engine_options]
python = {json.dumps(engine["python"])}
device = {json.dumps(engine["device"].value)}

[roles.rollout.models.policy.engine_options.server_args]
{table(engine["server_args"])}

[roles.rollout.models.policy.engine_options.environment]
{table(engine["environment"])}

[sink]
name = "jsonl"
"""


@pytest.fixture(scope="module")
def plane(checkpoints: tuple[Path, Path], sglang_options: SglangOptions, role_plane: Any) -> Iterator[Plane]:
    # Short: Ray puts sockets below it.
    with tempfile.TemporaryDirectory(prefix="rc-sr-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        job = job_text(checkpoints[0], sglang_options)
        with role_plane(Path(folder), job, PLAN, namespace=NAMESPACE, num_cpus=2) as made:
            service = made.services[ROLE]
            started: LifecycleResult = ray.get(service.start.remote())
            assert started.confirmed, started.problem
            yield Plane(service, made.registry, made.hub)


def test_a_busy_prefill_is_not_called_dead(plane: Plane) -> None:
    """Pitfall 23"""
    url = plane.model().engines[0].base_url
    looks = 0
    with ThreadPoolExecutor(12) as pool:
        prompts = [[7 + number, *range(10, 300), *range(10, 300)] * 6 for number in range(12)]
        answers = [pool.submit(generate, url, prompt, 1) for prompt in prompts]
        while not all(answer.done() for answer in answers):
            ray.get(plane.service.reconcile_once.remote())
            assert plane.serves(generation=1)
            looks += 1
    assert looks
    assert all(answer.result()["meta_info"]["prompt_tokens"] > 3000 for answer in answers)


def test_a_scheduler_killed_behind_its_server_is_replaced_with_the_current_weights(
    plane: Plane, checkpoints: tuple[Path, Path]
) -> None:
    """Pitfall 23, and 16: the replacement serves only once it has the weights of the last update"""
    update = FromDisk(path=checkpoints[1])
    updated: LifecycleResult = ray.get(plane.service.update_weights.remote(None, update, "step-1", 120.0))
    assert updated.confirmed, updated.problem
    expected = generate(plane.model().engines[0].base_url, [5, 6, 7], 8)
    assert expected["meta_info"]["weight_version"] == "step-1"
    old = plane.processes()
    (scheduler,) = [process for process in old if "scheduler" in process.name() + " ".join(process.cmdline())]
    scheduler.kill()
    until(lambda: plane.serves(generation=2))
    assert gone(old)
    assert plane.model().weight_version == "step-1"
    answer = generate(plane.model().engines[0].base_url, [5, 6, 7], 8)
    assert answer["meta_info"]["weight_version"] == "step-1"
    assert answer["output_ids"] == expected["output_ids"]


def test_a_worker_killed_while_serving_leaves_no_process_and_is_replaced(plane: Plane) -> None:
    """Pitfall 24"""
    old, pid = plane.processes(), plane.replica()["pid"]
    assert len(old) >= 3, "server, scheduler and detokenizer carry the mark"
    url = plane.model().engines[0].base_url
    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(generate, url, [5, 6, 7], 4000)
        time.sleep(0.5)
        psutil.Process(pid).parent().kill()
        assert caller.exception(60.0) is not None
    until(lambda: plane.serves(generation=3))
    assert gone(old)
    (reaped,) = plane.events("engine.reaped")
    assert (reaped.fields["vacant"], reaped.fields["left"]) == (True, [])
    assert (
        generate(plane.model().engines[0].base_url, [5, 6, 7], 2)["meta_info"]["weight_version"] == "step-1"
    )


def test_a_worker_killed_asleep_leaves_no_process_and_a_shutdown_is_confirmed(plane: Plane) -> None:
    """Pitfall 24"""
    slept: LifecycleResult = ray.get(plane.service.offload.remote(FencingToken(1), 120.0))
    assert slept.confirmed, slept.problem
    old, pid = plane.processes(), plane.replica()["pid"]
    os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
    until(lambda: len(plane.events("engine.reaped")) == 2)
    assert gone(old)
    assert plane.events("engine.reaped")[-1].fields["vacant"]
    # By now the replacement is starting: a stop at that moment leaves nothing either.
    until(lambda: bool(plane.processes()))
    starting = plane.processes()
    ended: LifecycleResult = ray.get(plane.service.shutdown.remote(60.0))
    assert ended.confirmed, ended.problem
    assert gone(starting)
    assert plane.model().engines == ()
