"""A replica over two real Ray nodes of one machine: two workers, one rendezvous, one head.

The engine is a plugin of this test: a process a node; the head's binds the rendezvous and serves once
the follower has come there, the follower's ends when the head's does.
"""

from __future__ import annotations

import os
import shutil
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
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rolecall.cluster.ray_cluster import create_pools, probe_pools, remove_pools
from rolecall.config.loader import load_config
from rolecall.discovery.registry_actor import create_registry
from rolecall.discovery.snapshot import decode_snapshot
from rolecall.engines.proof import Proof
from rolecall.engines.reaping import MARK_VARIABLE
from rolecall.engines.results import LifecycleResult
from rolecall.engines.role_service import RoleOrder, RoleService
from rolecall.events.hub_actor import start_hub
from rolecall.ids import EngineId, ModelId, RoleName
from rolecall.placement.binding import bind
from rolecall.placement.nodes import Nodes
from rolecall.placement.plan import Phase, PlacementPlan, Pool, ReplicaPlacement

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

NAMESPACE = "rolecall-nodes-test"
ROLE, ENGINE = RoleName("teacher"), EngineId("twin/replica-0")
PLAN = PlacementPlan(
    mode="by hand",
    pools=(Pool(pool_id="all", resource="device_slot", nodes=Nodes.equal(2, per_node=1)),),
    replicas=(
        ReplicaPlacement(engine=ENGINE, role=ROLE, model=ModelId("twin"), pool_id="all", bundles=(0, 1)),
    ),
    phases=(Phase(name="all", roles=(ROLE,)),),
)

JOB = """
[job]
name = "nodes-test"

[placement]
mode = "decoupled"
resource = "device_slot"
devices_per_node = 1

[lifecycle]
probe_interval_s = 0.3

[roles.teacher]
devices = 2

[roles.teacher.models.twin]
source = "weights"
engine = "twin"
devices_per_engine = 2

[sink]
name = "jsonl"
"""

BACKEND = '''
import asyncio
import sys

import httpx
import psutil
from attrs import frozen

from rolecall.api import (
    ROLECALL_API,
    Capability,
    ChildProcess,
    EngineFeatures,
    EngineHealth,
    EngineStartError,
    MemoryReport,
    hookimpl,
)


@frozen(kw_only=True)
class TwinOptions:
    """None."""


class TwinBackend:
    name = "twin"
    api_version = ROLECALL_API
    options = TwinOptions
    resource = None

    def features(self, options, *, static):
        return EngineFeatures(
            capabilities=frozenset({Capability.SEVERAL_NODES}),
            memory_tags=frozenset(),
            no_sleep_because="it has no memory to give back",
        )

    def environment(self, launch):
        return {}

    def create(self, launch):
        return TwinEngine(launch)


class TwinEngine:
    def __init__(self, launch):
        self.base_url = f"http://{launch.host}:{launch.port}"
        self.launch = launch
        command = [sys.executable, "-m", "twin_server", str(launch.port), str(launch.nodes)]
        command += [str(launch.node_rank), launch.rendezvous]
        self.process = ChildProcess(command, environment=launch.marks, log_path=launch.log_path)

    async def start(self, timeout_s):
        self.process.start()
        while "ready" not in self.process.log_tail():
            if self.process.exit_code() is not None:
                raise EngineStartError(self.process.log_tail())
            await asyncio.sleep(0.02)

    @property
    def pid(self):
        return self.process.pid

    def exit_code(self):
        return self.process.exit_code()

    async def health(self, *, generate, timeout_s):
        if not self.launch.is_head:
            return EngineHealth(alive=self.exit_code() is None, detail="")
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(self.base_url, timeout=timeout_s)
        return EngineHealth(alive=answer.is_success, detail="")

    async def running_requests(self):
        assert self.launch.is_head
        return 0

    async def memory(self):
        rss = psutil.Process(self.pid).memory_info().rss
        return MemoryReport(resident_tags=frozenset(), resident_bytes=rss)

    async def canary(self):
        assert self.launch.is_head
        return (-1.0, -2.0, -3.0)

    async def stop(self, timeout_s):
        await self.process.stop(timeout_s)


@hookimpl
def rolecall_engine_backend():
    return TwinBackend
'''

SERVER = """
import json
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

port, nodes, rank = map(int, sys.argv[1:4])
host, meeting = sys.argv[4].split(":")
if rank:
    while True:
        try:
            head = socket.create_connection((host, int(meeting)))
            break
        except OSError:
            time.sleep(0.02)
    head.sendall(str(rank).encode())
    print("ready", flush=True)
    head.recv(1)
    sys.exit("the head has gone")

with socket.create_server((host, int(meeting))) as place:
    followers = [place.accept()[0] for _ in range(nodes - 1)]
    ranks = [0, *(int(follower.recv(8)) for follower in followers)]


class Ranks(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(ranks).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = HTTPServer(("127.0.0.1", port), Ranks)
print("ready", flush=True)
server.serve_forever()
"""


@define
class Plane:
    """The started role; ``second`` is the cluster's second node."""

    cluster: Cluster
    second: Any
    service: Any
    registry: Any

    def replica(self) -> dict[str, Any]:
        (entry,) = ray.get(self.service.status.remote())["replicas"]
        return entry

    def shown(self) -> Any:
        page = ray.get(self.registry.handle.read.remote(ROLE, None, 0.0))
        (engine,) = decode_snapshot(page.body).models["twin"].engines
        return engine


def engine_processes() -> list[psutil.Process]:
    """Every process of an engine of this job, of any start, head first."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(MARK_VARIABLE, "")
            if mark.startswith(f"{NAMESPACE}/") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return sorted(found, key=lambda process: process.cmdline()[-2])


def until(what: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    # Short: Ray puts sockets below it.
    folder = Path(tempfile.mkdtemp(prefix="rc-en-", dir="/tmp"))
    (folder / "ray").mkdir()
    site = folder / "site"
    site.mkdir()
    (site / "twin.py").write_text(BACKEND, encoding="utf-8")
    (site / "twin_server.py").write_text(SERVER, encoding="utf-8")
    info = site / "twin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twin\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[rolecall.engine_backends]\ntwin = twin\n", encoding="utf-8")
    (folder / "weights").write_bytes(b"none")
    file = folder / "job.toml"
    file.write_text(JOB, encoding="utf-8")
    config = load_config(file)
    common: dict[str, Any] = {"num_cpus": 2, "include_dashboard": False, "temp_dir": str(folder)}
    cluster = Cluster()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_TMPDIR", str(folder))
        search = [str(site), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment.setenv("PYTHONPATH", os.pathsep.join(filter(None, search)))
        try:
            cluster.add_node(**common, resources={"device_slot": 1})
            ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False)
            # What watches the replica is on the first node: the second one is lost in the end.
            registry = create_registry(NAMESPACE)
            hub = start_hub(NAMESPACE, observers=(), log_path=None)
            first = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            ray.get([registry.handle.__ray_ready__.remote(), hub.__ray_ready__.remote()])
            second = cluster.add_node(**common, resources={"device_slot": 1})
            cluster.wait_for_nodes()
            pools = create_pools(PLAN, job=config.job.name)
            try:
                order = RoleOrder(
                    config=config,
                    file=file,
                    role=ROLE,
                    bound=bind(PLAN, probe_pools(pools)),
                    groups=pools.handles,
                    registry=registry,
                    events=hub,
                    run_dir=folder,
                    namespace=NAMESPACE,
                )
                actor: Any = ray.remote(RoleService)
                service = actor.options(num_cpus=0, scheduling_strategy=first).remote(order)
                yield Plane(cluster, second, service, registry)
            finally:
                remove_pools(pools)
                assert [g for g in placement_group_table().values() if g["state"] != "REMOVED"] == []
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
    until(lambda: engine_processes() == [], 20.0)


def test_two_workers_start_at_one_rendezvous_and_one_head_is_shown(plane: Plane) -> None:
    """Pitfall 12"""
    started: LifecycleResult = ray.get(plane.service.start.remote())
    assert started.confirmed, started.problem
    assert httpx.get(plane.shown().base_url, trust_env=False).json() == [0, 1]
    assert plane.shown().direct_eligible
    head, follower = engine_processes()
    assert plane.replica()["pid"] == head.pid
    assert head.ppid() != follower.ppid(), "each has a worker of its own"


def test_a_killed_follower_ends_the_replica_and_it_is_rebuilt_whole(plane: Plane) -> None:
    old = engine_processes()
    old[1].kill()
    until(lambda: plane.shown().generation == 2 and plane.shown().direct_eligible)
    assert not any(process.is_running() and process in engine_processes() for process in old)
    assert len(engine_processes()) == 2
    assert httpx.get(plane.shown().base_url, trust_env=False).json() == [0, 1]


def test_a_killed_worker_of_a_follower_is_reaped_on_its_node_and_replaced(plane: Plane) -> None:
    """Pitfall 24"""
    old = engine_processes()
    old[1].parent().kill()
    until(lambda: plane.shown().generation == 3 and plane.shown().direct_eligible)
    assert not set(old) & set(engine_processes())
    assert httpx.get(plane.shown().base_url, trust_env=False).json() == [0, 1]


def test_a_node_that_is_lost_is_fenced_and_its_record_stays(plane: Plane) -> None:
    """Pitfall 28"""
    plane.cluster.remove_node(plane.second, allow_graceful=False)
    until(lambda: "has left the cluster" in (plane.replica()["fence"] or ""))
    replica = plane.replica()
    assert (replica["state"], replica["vacant"]) == ("FAILED", False)
    assert plane.shown().base_url is None
    for _ in range(2):
        ended: LifecycleResult = ray.get(plane.service.shutdown.remote(20.0))
        assert not ended.confirmed
        assert "has left the cluster" in ended.problem
    lifted: LifecycleResult = ray.get(plane.service.lift_fences.remote(20.0, proof=Proof.PROCESS_GONE))
    assert not lifted.confirmed, "nobody can look there"
    lifted = ray.get(plane.service.lift_fences.remote(20.0, proof=Proof.NODE_GONE))
    assert lifted.confirmed, lifted.problem
    ended = ray.get(plane.service.shutdown.remote(20.0))
    assert ended.confirmed, ended.problem
