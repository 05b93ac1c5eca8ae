"""Placement groups on a real Ray: the port's contract, binding, and nothing left behind.

One cluster for the whole module: a head with four custom devices, and GPU nodes of unequal size
(Ray counts GPUs, it needs none), one of them under a restricted ``CUDA_VISIBLE_DEVICES``.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from attrs import evolve
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from rolecall.api import (
    EngineId,
    ModelId,
    Nodes,
    Phase,
    PlacementPlan,
    Pool,
    ReplicaPlacement,
    RoleName,
    TrainingPlacement,
)
from rolecall.cluster import ray_cluster
from rolecall.cluster.ray_cluster import create_pools, pools_of, probe_pools, remove_pools
from rolecall.cluster.ray_groups import RayGroups
from rolecall.cluster.scheduling import in_bundle
from rolecall.errors import ClusterError, PlacementRefused
from rolecall.job.training_devices import training_devices
from rolecall.placement.group_port import GroupPort, PoolGroup
from rolecall.testing.fake_groups import FakeGroups, FaultyGroups

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

RESTRICTED = "4,5,6,7"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    temp_dir = Path(tempfile.mkdtemp(prefix="rc", dir="/tmp"))
    # Ray's test cluster notes its address in the default folder, where it may mislead others.
    (temp_dir / "ray").mkdir()
    common: dict[str, Any] = {"num_cpus": 1, "include_dashboard": False, "temp_dir": str(temp_dir)}
    cluster = Cluster()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_TMPDIR", str(temp_dir))
        environment.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        try:
            cluster.add_node(**common, resources={"device_slot": 4})
            cluster.add_node(wait=False, **common, num_gpus=2, resources={"small": 4})
            environment.setenv("CUDA_VISIBLE_DEVICES", RESTRICTED)
            cluster.add_node(wait=False, **common, num_gpus=4, resources={"large": 4})
            environment.delenv("CUDA_VISIBLE_DEVICES")
            cluster.wait_for_nodes()
            ray.init(address=cluster.address, namespace="rolecall-test", log_to_driver=False)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(temp_dir, ignore_errors=True)


@pytest.fixture
def no_groups(cluster: Cluster) -> Iterator[None]:
    """The test starts and ends without a live placement group."""
    assert live_groups() == []
    yield
    assert live_groups() == []


def live_groups() -> list[str]:
    return [group["name"] for group in placement_group_table().values() if group["state"] != "REMOVED"]


def replica(role: str, *bundles: int, index: int = 0, pool: str = "shared") -> ReplicaPlacement:
    return ReplicaPlacement(
        engine=EngineId(f"m/replica-{index}"),
        role=RoleName(role),
        model=ModelId("m"),
        pool_id=pool,
        bundles=bundles,
    )


def training(role: str, *bundles: int) -> TrainingPlacement:
    return TrainingPlacement(role=RoleName(role), process=RoleName(role), pool_id="shared", bundles=bundles)


def plan(
    *tenants: ReplicaPlacement | TrainingPlacement,
    devices: dict[str, int],
    resource: str = "device_slot",
    per_node: int = 4,
) -> PlacementPlan:
    roles = dict.fromkeys(one.role for one in tenants)
    return PlacementPlan(
        mode="some",
        pools=tuple(
            Pool(pool_id=pool, resource=resource, nodes=Nodes.equal(count, per_node=per_node))
            for pool, count in devices.items()
        ),
        replicas=tuple(one for one in tenants if isinstance(one, ReplicaPlacement)),
        training=tuple(one for one in tenants if isinstance(one, TrainingPlacement)),
        phases=tuple(Phase(name=role, roles=(role,)) for role in roles),
    )


# --- the port's contract ----------------------------------------------------------------


@pytest.fixture(params=["ray", "fake"])
def port(request: pytest.FixtureRequest) -> GroupPort:
    if request.param == "fake":
        return FakeGroups(nodes={"a": 4})
    request.getfixturevalue("no_groups")
    return RayGroups()


SLOT = {"device_slot": 1.0}


def test_a_group_becomes_ready_is_found_and_is_removed(port: GroupPort) -> None:
    group = port.create("contract-a", [SLOT] * 2, None)
    assert port.wait_ready(group, 30)
    assert port.wait_ready(group, 0)
    assert port.bundles(group) == (SLOT, SLOT)
    found = port.find("contract-a")
    assert found is not None
    assert port.bundles(found) == (SLOT, SLOT)
    assert not port.is_removed(group)
    port.remove(found)
    assert port.is_removed(group)
    port.remove(group)
    assert port.find("contract-a") is None


def test_a_group_that_does_not_fit_is_not_ready_and_can_be_removed(port: GroupPort) -> None:
    group = port.create("contract-b", [SLOT] * 5, None)
    assert not port.wait_ready(group, 0)
    assert not port.wait_ready(group, 1)
    assert not port.is_removed(group)
    port.remove(group)
    assert port.is_removed(group)


def test_every_bundle_reports_once_from_its_node(port: GroupPort) -> None:
    group = port.create("contract-c", [SLOT] * 3, None)
    assert port.wait_ready(group, 30)
    request = PoolGroup(pool_id="pool", resource="device_slot", bundles=3, handle=group)
    probes = port.probe([request], 60)
    port.remove(group)
    assert sorted((probe.pool_id, probe.bundle) for probe in probes) == [
        ("pool", 0),
        ("pool", 1),
        ("pool", 2),
    ]
    assert len({(probe.node_id, probe.node_ip) for probe in probes}) == 1
    assert {probe.device_ids for probe in probes} == {()}


def test_bundles_without_a_place_do_not_answer(port: GroupPort) -> None:
    group = port.create("contract-d", [SLOT] * 5, None)
    request = PoolGroup(pool_id="pool", resource="device_slot", bundles=5, handle=group)
    with pytest.raises(ClusterError, match=r'no answer within 1 s from inside .*pool "pool"'):
        port.probe([request], 1)
    port.remove(group)


def test_what_the_cluster_has_is_told(port: GroupPort) -> None:
    (node,) = port.offer("device_slot").nodes
    assert (node.total, node.free) == (4, 4)
    assert port.offer("no_such_resource").nodes == ()


def test_bundles_come_to_lie_on_the_nodes_that_were_asked_for(port: GroupPort) -> None:
    (node,) = port.offer("device_slot").nodes
    group = port.create("contract-e", [SLOT] * 2, [node.node_id] * 2)
    assert port.wait_ready(group, 30)
    request = PoolGroup(pool_id="pool", resource="device_slot", bundles=2, handle=group)
    assert [probe.node_id for probe in port.probe([request], 60)] == [node.node_id] * 2
    port.remove(group)
    nowhere = port.create("contract-f", [SLOT], ["0" * 56])
    assert not port.wait_ready(nowhere, 1)
    port.remove(nowhere)
    assert port.is_removed(nowhere)


# --- binding on real bundles ------------------------------------------------------------


@pytest.mark.usefixtures("no_groups")
def test_roles_that_take_turns_get_actors_on_the_devices_of_the_plan() -> None:
    roles = ("writer", "judge", "scorer")
    planned = plan(
        *(replica(role, bundle, index=bundle) for role in roles for bundle in range(2)), devices={"shared": 2}
    )
    with pools_of(planned, job="turns") as pools:
        assert all(name.startswith("rolecall-turns-shared-") for name in live_groups())
        workers = [worker for one in pools.bound.replicas for worker in one.workers]
        assert [worker.device_ids for worker in workers] == [("0",), ("1",)] * 3
        assert {worker.reservation for worker in workers} == {0.3333}
        group = pools.groups.handles["shared"]
        actors = [
            Witness.options(**in_bundle(group, worker.bundles[0], "device_slot", worker.reservation)).remote()
            for worker in workers
        ]
        nodes = ray.get([actor.node_id.remote() for actor in actors], timeout=120)
        assert nodes == [worker.node_id for worker in workers]


@pytest.mark.usefixtures("no_groups")
def test_gpus_of_unequal_nodes_are_bound_by_physical_id() -> None:
    """The restricted node has four devices, so it is the first planned node, with ids from 4."""
    planned = plan(
        replica("writer", 0, 1, 2, 3), replica("judge", 4), replica("judge", 5, index=1),
        replica("scorer", 2, 3), devices={"shared": 6}, resource="GPU",
    )  # fmt: skip
    with pools_of(planned, job="gpus") as pools:
        writer, *judges, scorer = [one.workers[0] for one in pools.bound.replicas]
        assert writer.device_ids == tuple(RESTRICTED.split(","))
        assert [judge.device_ids for judge in judges] == [("0",), ("1",)]
        assert scorer.device_ids == ("6", "7")
        assert writer.node_id == scorer.node_id != judges[0].node_id == judges[1].node_id
        group = pools.groups.handles["shared"]
        for worker in (writer, *judges, scorer):
            options = in_bundle(group, worker.bundles[0], "GPU", worker.reservation)
            witness = Witness.options(**options).remote()
            assert ray.get(witness.node_id.remote(), timeout=60) == worker.node_id
            assert ray.get(witness.gpu_ids.remote(), timeout=60) == [worker.device_ids[0]]


@pytest.mark.usefixtures("no_groups")
def test_a_borrowed_group_with_bundles_in_any_order_is_bound_and_left_alone() -> None:
    bundles = [{"GPU": 1.0, node: 1.0} for node in ("large", "small", "large", "large", "small", "large")]
    lent = placement_group(bundles, name="trainer")
    try:
        planned = plan(
            replica("writer", 0, 1, 2, 3), replica("judge", 4, 5), devices={"shared": 6}, resource="GPU"
        )
        with pools_of(planned, job="lent", borrowed={"shared": lent}) as pools:
            assert live_groups() == ["trainer"]
            writer, judge = [one.workers[0] for one in pools.bound.replicas]
        assert sorted(writer.bundles) == [0, 2, 3, 5]
        assert writer.device_ids == tuple(RESTRICTED.split(","))
        assert sorted(judge.bundles) == [1, 4]
        assert judge.device_ids == ("0", "1")
        assert live_groups() == ["trainer"]
    finally:
        remove_placement_group(lent)


@pytest.mark.usefixtures("no_groups")
def test_small_pools_leave_a_node_whole_for_a_large_engine() -> None:
    """Without a choice of nodes, Ray gives the first two the emptiest node, and the third breaks in two."""
    planned = plan(
        replica("judge", 0, pool="judge"), replica("scorer", 0, pool="scorer"),
        replica("writer", 0, 1, 2, 3, pool="writer"),
        devices={"judge": 1, "scorer": 1, "writer": 4}, resource="GPU",
    )  # fmt: skip
    with pools_of(planned, job="beside") as pools:
        judge, scorer, writer = [one.workers[0] for one in pools.bound.replicas]
        assert judge.node_id == scorer.node_id != writer.node_id
        assert writer.device_ids == tuple(RESTRICTED.split(","))


@pytest.mark.usefixtures("no_groups")
def test_a_trainers_actor_and_an_engines_worker_share_a_bundle() -> None:
    """Each with the share that the one formula gives it; there is no room for a third."""
    planned = plan(
        replica("writer", 0, 1, 2, 3), training("actor", *range(6)), devices={"shared": 6}, resource="GPU"
    )
    with pools_of(planned, job="trainer") as pools:
        devices = training_devices(pools.bound, pools.groups.names)
        assert [one.device_id for one in devices] == [*RESTRICTED.split(","), "0", "1"]
        assert [one.reservation for one in devices] == [0.5] * 4 + [1.0] * 2
        trainers = [Witness.options(**one.actor_options()).remote() for one in devices]
        (worker,) = pools.bound.replicas[0].workers
        group = pools.groups.handles["shared"]
        options = in_bundle(group, worker.bundles[0], "GPU", worker.reservation)
        engine = Witness.options(**options).remote()
        everybody = [*trainers, engine]
        assert ray.get([one.gpu_ids.remote() for one in everybody], timeout=120) == [
            [device] for device in (*RESTRICTED.split(","), "0", "1", RESTRICTED[0])
        ]
        nodes = ray.get([one.node_id.remote() for one in everybody], timeout=60)
        assert nodes == [*(one.node_id for one in devices), worker.node_id]
        third = Witness.options(**options).remote()
        assert ray.wait([third.node_id.remote()], timeout=1)[0] == []


@pytest.mark.usefixtures("no_groups")
def test_cpus_are_devices_like_any_other() -> None:
    planned = plan(
        replica("writer", 0, 1), replica("judge", 2), devices={"shared": 3}, resource="CPU", per_node=1
    )
    with pools_of(planned, job="cpus") as pools:
        writer, judge = pools.bound.replicas
        assert len({worker.node_id for worker in (*writer.workers, *judge.workers)}) == 3
        assert [worker.device_ids for worker in writer.workers] == [("0",), ("0",)]
        group = pools.groups.handles["shared"]
        for worker in writer.workers:
            options = in_bundle(group, worker.bundles[0], "CPU", worker.reservation)
            assert ray.get(Witness.options(**options).remote().node_id.remote(), timeout=60) == worker.node_id


@pytest.mark.usefixtures("no_groups")
def test_two_ray_nodes_of_a_machine_that_offer_one_gpu_are_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    twin = cluster.add_node(
        num_cpus=0, num_gpus=1, include_dashboard=False, temp_dir=cluster.head_node.get_temp_dir_path()
    )
    try:
        planned = plan(replica("writer", 0, 1, 2, 3), devices={"shared": 7}, resource="GPU")
        with pytest.raises(PlacementRefused) as refused, pools_of(planned, job="twice"):
            pytest.fail("one device was bound twice")
        (refusal,) = refused.value.refusals
        assert refusal.code == "device-twice"
        assert refusal.message.startswith("device 5 of node ")
    finally:
        cluster.remove_node(twin)


@pytest.mark.usefixtures("no_groups")
def test_an_engine_planned_over_two_nodes_may_not_get_one_node_twice() -> None:
    planned = plan(replica("writer", 0, 1, 2, 3), devices={"shared": 4}, per_node=2)
    with pytest.raises(PlacementRefused) as refused, pools_of(planned, job="one-node"):
        pytest.fail("an engine has two workers on one node")
    assert [refusal.code for refusal in refused.value.refusals] == ["node-twice"]


@pytest.mark.usefixtures("no_groups")
def test_after_a_refusal_a_borrowed_group_stays_and_the_jobs_own_is_removed() -> None:
    lent = placement_group([{"device_slot": 1.0}] * 2, name="trainer")
    try:
        planned = plan(
            replica("judge", 0, 1, pool="lent"), replica("writer", *range(6), pool="own"),
            devices={"lent": 2, "own": 6}, per_node=6,
        )  # fmt: skip
        planned = evolve(planned, pools=(planned.pools[0], evolve(planned.pools[1], resource="GPU")))
        with (
            pytest.raises(PlacementRefused) as refused,
            pools_of(planned, job="guest", borrowed={"lent": lent}),
        ):
            pytest.fail("an engine over two nodes was bound")
        assert [refusal.code for refusal in refused.value.refusals] == ["worker-split"]
        assert live_groups() == ["trainer"]
    finally:
        remove_placement_group(lent)


@pytest.mark.usefixtures("no_groups")
def test_a_plan_that_the_nodes_can_not_hold_is_refused_and_its_group_removed() -> None:
    planned = plan(replica("writer", 0, 1, 2, 3, 4, 5), devices={"shared": 6}, resource="GPU", per_node=6)
    with pytest.raises(PlacementRefused) as refused, pools_of(planned, job="split"):
        pytest.fail("an engine over two nodes was bound")
    (refusal,) = refused.value.refusals
    assert refusal.code == "worker-split"
    assert "device 4, 5, 6, 7" in refusal.message


@pytest.mark.usefixtures("no_groups")
def test_a_cluster_that_is_too_small_says_what_was_asked_and_what_is_there() -> None:
    planned = plan(replica("writer", 0), devices={"shared": 5})
    with pytest.raises(ClusterError) as failed:
        create_pools(planned, job="large", timeout_s=1)
    assert 'pool "shared" asked for 5 bundles of 1 device_slot' in str(failed.value)
    assert "The cluster has 4 device_slot (node " in str(failed.value)
    assert "4 of them free" in str(failed.value)


@pytest.mark.usefixtures("no_groups")
def test_a_node_lost_before_probing_is_named_and_the_groups_are_removed(cluster: Cluster) -> None:
    extra = cluster.add_node(
        num_cpus=1,
        include_dashboard=False,
        resources={"fleeting": 2},
        temp_dir=cluster.head_node.get_temp_dir_path(),
    )
    planned = plan(replica("writer", 0), devices={"shared": 2}, resource="fleeting")
    groups = create_pools(planned, job="lost", timeout_s=60)
    try:
        cluster.remove_node(extra, allow_graceful=False)
        with pytest.raises(ClusterError, match=r'bundle.*pool "shared"|could not be probed'):
            probe_pools(groups, timeout_s=3)
    finally:
        remove_pools(groups)


# --- nothing is left behind -------------------------------------------------------------

TWO_POOLS = plan(replica("writer", 0, pool="a"), replica("judge", 0, pool="b"), devices={"a": 2, "b": 2})


@pytest.mark.usefixtures("no_groups")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("method", "at"),
    [
        ("offer", 1),
        ("create", 1),
        ("create", 2),
        ("wait_ready", 1),
        ("wait_ready", 2),
        ("bundles", 1),
        ("probe", 1),
    ],
)
def test_an_error_at_any_step_leaves_no_group(method: str, at: int, after: bool) -> None:
    """Pitfall 25"""
    error = ClusterError("injected")
    port = FaultyGroups(port=RayGroups(), method=method, at=at, after=after, error=error)
    with pytest.raises(ClusterError) as failed, pools_of(TWO_POOLS, job="faulty", port=port):
        pytest.fail("the injected error was swallowed")
    assert failed.value is error
    assert port.calls >= at


@pytest.mark.usefixtures("no_groups")
@pytest.mark.parametrize("error", [RuntimeError("injected"), KeyboardInterrupt()])
def test_an_error_in_binding_or_in_the_block_leaves_no_group(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        assert len(live_groups()) == 2
        raise error

    with pytest.raises(type(error)), pools_of(TWO_POOLS, job="faulty"):
        broken()
    assert live_groups() == []
    monkeypatch.setattr(ray_cluster, "bind", broken)
    with pytest.raises(type(error)), pools_of(TWO_POOLS, job="faulty"):
        pytest.fail("bound all the same")


@pytest.mark.usefixtures("no_groups")
def test_the_single_steps_may_be_called_one_by_one_and_removal_repeated() -> None:
    groups = create_pools(TWO_POOLS, job="steps")
    assert len(probe_pools(groups)) == 4
    assert len(live_groups()) == 2
    remove_pools(groups)
    remove_pools(groups)


@ray.remote(num_cpus=0)
class Witness:
    """An actor that tells where it runs."""

    def node_id(self) -> str:
        return ray.get_runtime_context().get_node_id()

    def gpu_ids(self) -> list[str]:
        return [str(device) for device in ray.get_gpu_ids()]
