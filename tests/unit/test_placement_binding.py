"""Plans bound to probed bundles: every refusal, and that the order of bundles never matters."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from rolecall.api import (
    EngineId,
    ModelId,
    Nodes,
    Phase,
    PlacementPlan,
    Pool,
    Refusal,
    ReplicaPlacement,
    RoleName,
    TrainingPlacement,
)
from rolecall.errors import PlacementRefused
from rolecall.placement.binding import bind
from rolecall.placement.bound import BoundPlan, BundleProbe


def replica(role: str, *bundles: int, index: int = 0, pool: str = "p") -> ReplicaPlacement:
    return ReplicaPlacement(
        engine=EngineId(f"m/replica-{index}"),
        role=RoleName(role),
        model=ModelId("m"),
        pool_id=pool,
        bundles=bundles,
    )


def training(role: str, *bundles: int, on: str | None = None, pool: str = "p") -> TrainingPlacement:
    return TrainingPlacement(role=RoleName(role), process=RoleName(on or role), pool_id=pool, bundles=bundles)


def plan(
    *tenants: ReplicaPlacement | TrainingPlacement,
    devices: int = 8,
    per_node: int = 8,
    resource: str = "GPU",
    pools: str = "p",
) -> PlacementPlan:
    roles = dict.fromkeys(one.role for one in tenants)
    return PlacementPlan(
        mode="some",
        pools=tuple(
            Pool(pool_id=pool, resource=resource, nodes=Nodes.equal(devices, per_node=per_node))
            for pool in pools
        ),
        replicas=tuple(one for one in tenants if isinstance(one, ReplicaPlacement)),
        training=tuple(one for one in tenants if isinstance(one, TrainingPlacement)),
        phases=tuple(Phase(name=role, roles=(role,)) for role in roles),
    )


def probes(*nodes: Sequence[int | str | None], pool: str = "p") -> list[BundleProbe]:
    """Bundles counted through the nodes; each node is given as its bundles' device ids."""
    found: list[BundleProbe] = []
    for number, devices in enumerate(nodes):
        for device in devices:
            found.append(
                BundleProbe(
                    pool_id=pool,
                    bundle=len(found),
                    node_id=f"node{number}",
                    node_ip=f"10.0.0.{number + 1}",
                    device_ids=() if device is None else (str(device),),
                )
            )
    return found


def refusals(planned: PlacementPlan, found: Sequence[BundleProbe]) -> list[Refusal]:
    with pytest.raises(PlacementRefused) as refused:
        bind(planned, found)
    return list(refused.value.refusals)


def bound_or_codes(planned: PlacementPlan, found: Sequence[BundleProbe]) -> BoundPlan | set[str]:
    try:
        return bind(planned, found)
    except PlacementRefused as refused:
        return {refusal.code for refusal in refused.refusals}


def shuffled(found: Sequence[BundleProbe], seed: int) -> list[BundleProbe]:
    """The same devices behind other bundle indices, reported in another order."""
    indices = [probe.bundle for probe in found]
    chance = random.Random(seed)
    chance.shuffle(indices)
    renumbered = [evolve(probe, bundle=index) for probe, index in zip(found, indices, strict=True)]
    chance.shuffle(renumbered)
    return renumbered


def devices(bound: BoundPlan) -> list[list[tuple[str, tuple[str, ...]]]]:
    return [[(worker.node_id, worker.device_ids) for worker in one.workers] for one in bound.replicas]


# --- binding ----------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000))
def test_devices_do_not_depend_on_the_order_of_bundles(seed: int) -> None:
    planned = plan(
        replica("writer", 0, 1, 2, 3), replica("writer", *range(4, 8), index=1), replica("judge", 8, 9),
        replica("judge", 11, index=1), devices=12, per_node=8,
    )  # fmt: skip
    found = probes([4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7])
    bound = bind(planned, shuffled(found, seed))
    assert devices(bound) == [
        [("node1", ("0", "1", "2", "3"))],
        [("node1", ("4", "5", "6", "7"))],
        [("node0", ("4", "5"))],
        [("node0", ("7",))],
    ]


@given(seed=st.integers(0, 10_000))
def test_a_worker_names_the_real_bundles_of_its_devices(seed: int) -> None:
    found = shuffled(probes(range(8)), seed)
    by_bundle = {probe.bundle: probe.device_ids[0] for probe in found}
    bound = bind(plan(replica("writer", 2, 3, 4)), found)
    (worker,) = bound.replicas[0].workers
    assert worker.device_ids == ("2", "3", "4")
    assert tuple(by_bundle[bundle] for bundle in worker.bundles) == worker.device_ids


def test_physical_ids_need_not_start_at_zero() -> None:
    bound = bind(plan(replica("writer", 0, 1), replica("judge", 2, 3), devices=4), probes([4, 5, 6, 7]))
    assert devices(bound) == [[("node0", ("4", "5"))], [("node0", ("6", "7"))]]


def test_ten_comes_after_nine() -> None:
    found = probes(["10", "9", "8", "11"])
    bound = bind(plan(replica("writer", 0, 1, 2, 3), devices=4), found)
    assert devices(bound) == [[("node0", ("8", "9", "10", "11"))]]


def test_a_replica_across_nodes_gets_a_worker_a_node() -> None:
    planned = plan(replica("writer", *range(8)), replica("judge", 8, 9, 10, 11), devices=12, per_node=4)
    bound = bind(planned, probes(range(4), range(4), range(4)))
    assert devices(bound)[0] == [
        ("node0", ("0", "1", "2", "3")),
        ("node1", ("0", "1", "2", "3")),
    ]
    assert [one.placement.role for one in bound.replicas_of(RoleName("judge"))] == ["judge"]


def test_workers_reserve_what_the_plan_says_for_their_own_bundle() -> None:
    """The worker's actor sits on its first bundle: planned 0 is shared, 2 is not."""
    planned = plan(replica("writer", 0, 1), replica("writer", 2, index=1), replica("judge", 0), devices=3)
    bound = bind(planned, shuffled(probes(range(3)), 7))
    assert [one.workers[0].reservation for one in bound.replicas] == [0.5, 1.0, 0.5]


def test_devices_that_ray_does_not_name_are_numbered_on_each_node_over_all_pools() -> None:
    planned = plan(
        replica("writer", 0, 1), replica("judge", 0, 1, pool="q"), devices=2, resource="slot", pools="pq"
    )
    found = [*probes([None, None]), *probes([None, None], pool="q")]
    bound = bind(planned, found[::-1])
    assert devices(bound) == [[("node0", ("0", "1"))], [("node0", ("2", "3"))]]
    assert bound == bind(planned, found)


# --- training ---------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000))
def test_training_roles_get_the_devices_of_the_plan_and_an_actors_share_of_each(seed: int) -> None:
    """The reference model is inside the actor, so bundles 0 and 1 have two actors each: a writer and that."""
    planned = plan(
        replica("writer", 0, 1), replica("judge", 4, 5),
        training("actor", 0, 1, 2, 3), training("reference", 0, 1, on="actor"), training("critic", 4),
        devices=6, per_node=4,
    )  # fmt: skip
    found = shuffled(probes([0, 1], [4, 5, 6, 7]), seed)
    bound = bind(planned, found)
    actor, reference, critic = bound.training
    assert [(one.node_id, one.device_id, one.reservation) for one in actor.devices] == [
        ("node1", "4", 0.5), ("node1", "5", 0.5), ("node1", "6", 1.0), ("node1", "7", 1.0)
    ]  # fmt: skip
    assert reference.devices == actor.devices[:2]
    assert [(one.node_id, one.device_id, one.reservation) for one in critic.devices] == [("node0", "0", 0.5)]
    where = {probe.bundle: (probe.node_id, probe.node_ip, probe.device_ids[0]) for probe in found}
    for one in (*actor.devices, *critic.devices):
        assert where[one.bundle] == (one.node_id, one.node_ip, one.device_id)


def test_a_trainer_may_straddle_nodes_and_have_scattered_devices() -> None:
    bound = bind(plan(training("actor", 0, 1, 2, 3), devices=4, per_node=4), probes([0, 5], [1, 7]))
    assert [one.device_id for one in bound.training[0].devices] == ["0", "5", "1", "7"]


# --- refusals ---------------------------------------------------------------------------


def test_a_duplicate_bundle_is_refused() -> None:
    found = probes([0, 1])
    (refusal,) = refusals(
        plan(replica("writer", 0), devices=2), [*found, evolve(found[1], device_ids=("5",))]
    )
    assert refusal.code == "duplicate-bundle"
    assert 'bundle 1 of pool "p" reported 2 times' in refusal.message


@pytest.mark.parametrize("bundle", [-1, 2])
def test_an_unknown_bundle_is_refused(bundle: int) -> None:
    found = probes([0, 1, 2])
    (refusal,) = refusals(
        plan(replica("writer", 0), devices=2), [*found[:2], evolve(found[2], bundle=bundle)]
    )
    assert refusal.code == "unknown-bundle"
    assert f"bundle {bundle} reported" in refusal.message


def test_an_unknown_pool_is_refused() -> None:
    (refusal,) = refusals(
        plan(replica("writer", 0), devices=1), [*probes([0]), *probes([1], pool="stranger")]
    )
    assert refusal.code == "unknown-pool"
    assert 'pool "stranger"' in refusal.message


def test_a_slice_outside_the_group_is_refused_by_name() -> None:
    planned = plan(replica("writer", 0, 1), replica("judge", 2, 3), training("actor", 0, 1, 2), devices=4)
    (refusal,) = refusals(planned, probes([0, 1]))
    assert refusal.code == "slice-outside-group"
    assert "shows 2, without bundle 2-3" in refusal.message
    assert "outside it: judge's m/replica-0 (bundle 2-3), training role actor (bundle 0-2)" in refusal.message


@pytest.mark.parametrize(("resource", "ids"), [("GPU", ()), ("GPU", ("1", "2")), ("slot", ("1", "2"))])
def test_a_bundle_that_does_not_hold_exactly_one_device_is_refused(
    resource: str, ids: tuple[str, ...]
) -> None:
    found = probes([0, 1])
    (refusal,) = refusals(
        plan(replica("writer", 0), devices=2, resource=resource), [found[0], evolve(found[1], device_ids=ids)]
    )
    assert refusal.code == "bundle-device-count"
    assert "bundle 1" in refusal.message


def test_two_bundles_on_one_device_are_refused_also_across_pools() -> None:
    planned = plan(replica("writer", 0), replica("judge", 0, pool="q"), devices=1, pools="pq")
    (refusal,) = refusals(planned, [*probes([3]), *probes([3], pool="q")])
    assert refusal.code == "device-twice"
    assert (
        'device 3 of node 10.0.0.1/node0 is in several bundles: 0 of pool "p", 0 of pool "q"'
        in refusal.message
    )


@pytest.mark.parametrize(
    ("resource", "device", "addresses", "codes"),
    [
        ("GPU", 3, ("10.0.0.1", "10.0.0.1"), {"device-twice"}),
        ("GPU", 3, ("10.0.0.1", "10.0.0.2"), set[str]()),
        ("GPU", "GPU-1f", ("10.0.0.1", "10.0.0.1"), {"device-twice"}),
        ("GPU", "GPU-1f", ("10.0.0.1", "10.0.0.2"), {"device-twice"}),
        ("slot", None, ("10.0.0.1", "10.0.0.1"), set[str]()),
    ],
)
def test_ray_nodes_of_one_machine_may_not_offer_one_gpu_twice(
    resource: str, device: int | str | None, addresses: tuple[str, str], codes: set[str]
) -> None:
    planned = plan(replica("writer", 0), replica("judge", 1), devices=2, per_node=1, resource=resource)
    found = [
        evolve(probe, node_ip=address)
        for probe, address in zip(probes([device], [device]), addresses, strict=True)
    ]
    bound = bound_or_codes(planned, found)
    assert bound == codes if codes else isinstance(bound, BoundPlan)


def test_a_worker_on_two_nodes_is_refused() -> None:
    planned = plan(replica("writer", 0, 1, 2, 3), devices=4, per_node=4)
    (refusal,) = refusals(planned, probes([0, 1], [0, 1]))
    assert (refusal.code, refusal.key) == ("worker-split", "roles.writer.models.m")
    assert "node 10.0.0.1/node0 (device 0, 1) and node 10.0.0.2/node1 (device 0, 1)" in refusal.message


def test_device_ids_of_a_worker_must_follow_one_another() -> None:
    planned = plan(replica("writer", 0, 1), replica("judge", 2), devices=3)
    (refusal,) = refusals(planned, probes([0, 2, 3]))
    assert refusal.code == "devices-not-consecutive"
    assert "(device 0, 2)" in refusal.message
    bind(planned, probes([0, 1, 3]))


def test_ids_that_are_no_numbers_have_no_order() -> None:
    bound = bind(plan(replica("writer", 0, 1), devices=2), probes(["GPU-b", "GPU-a"]))
    assert devices(bound) == [[("node0", ("GPU-a", "GPU-b"))]]


def test_a_replica_that_uses_one_node_twice_is_refused() -> None:
    planned = plan(replica("writer", *range(8)), devices=8, per_node=4)
    (refusal,) = refusals(planned, probes(range(8)))
    assert refusal.code == "node-twice"
    assert "over 2 nodes, but 2 of its workers are on node 10.0.0.1/node0" in refusal.message


def test_all_refusals_come_at_once() -> None:
    planned = plan(replica("writer", 0, 1), replica("judge", 2, 3), replica("scorer", 4, 5), devices=6)
    assert [refusal.code for refusal in refusals(planned, probes([0, 2, 4], [1, 1, 3]))] == [
        "device-twice",
        "devices-not-consecutive",
        "worker-split",
        "devices-not-consecutive",
    ]


@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    per_node=st.integers(1, 5),
    engine=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_whatever_is_bound_is_sound(counts: list[int], per_node: int, engine: int, seed: int) -> None:
    """Random clusters against random engine sizes: bound or refused, never bound wrongly."""
    total = sum(counts)
    engine = min(engine, per_node)
    starts = [start for start in range(0, total, engine) if start % per_node + engine <= per_node]
    planned = plan(
        *(
            replica("writer", *range(start, start + engine), index=index)
            for index, start in enumerate(starts)
            if start + engine <= total
        ),
        devices=total,
        per_node=per_node,
    )
    found = shuffled(probes(*(range(count) for count in counts)), seed)
    bound = bound_or_codes(planned, found)
    if not isinstance(bound, BoundPlan):
        assert bound == {"worker-split"}
        return
    where = {probe.bundle: (probe.node_id, probe.device_ids[0]) for probe in found}
    taken = [
        (worker.node_id, device)
        for one in bound.replicas
        for worker in one.workers
        for device in worker.device_ids
    ]
    assert len(taken) == len(set(taken))
    for one in bound.replicas:
        (worker,) = one.workers
        assert [where[bundle] for bundle in worker.bundles] == [
            (worker.node_id, device) for device in worker.device_ids
        ]
        numbers = [int(device) for device in worker.device_ids]
        assert numbers == list(range(numbers[0], numbers[0] + engine))


@given(
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    engines=st.lists(st.integers(1, 16), min_size=1, max_size=6),
    trainer=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_nodes_of_the_planned_sizes_always_do_in_whatever_order_they_come(
    sizes: list[int], engines: list[int], trainer: int, seed: int
) -> None:
    """Unequal nodes, engines across nodes, engines that start in mid-node, a trainer over all of them."""
    nodes = Nodes.of(sizes)
    replicas: list[ReplicaPlacement] = []
    free_from = 0
    for size in engines:
        start = nodes.first_start(free_from, size)
        if start is not None:
            free_from = start + size
            replicas.append(replica("writer", *range(start, free_from), index=len(replicas)))
    actor = training("actor", *range(min(trainer, sum(sizes))))
    planned = evolve(plan(*replicas, actor), pools=(Pool(pool_id="p", resource="GPU", nodes=nodes),))
    real = list(sizes)
    random.Random(seed).shuffle(real)
    found = shuffled(probes(*(range(4, 4 + count) for count in real)), seed)
    bound = bind(planned, found)
    where = {probe.bundle: (probe.node_id, probe.device_ids[0]) for probe in found}
    of_bundle: dict[int, tuple[str, str]] = {}
    for one in bound.replicas:
        assert len({worker.node_id for worker in one.workers}) == len(one.workers)
        assert len({len(worker.bundles) for worker in one.workers}) == 1
        devices = [
            (worker.node_id, device, bundle)
            for worker in one.workers
            for device, bundle in zip(worker.device_ids, worker.bundles, strict=True)
        ]
        for planned_bundle, (node, device, bundle) in zip(one.placement.bundles, devices, strict=True):
            assert where[bundle] == (node, device)
            of_bundle[planned_bundle] = (node, device)
    assert len(set(of_bundle.values())) == len(of_bundle)
    for planned_bundle, one in zip(actor.bundles, bound.training[0].devices, strict=True):
        assert where[one.bundle] == (one.node_id, one.device_id)
        assert of_bundle.get(planned_bundle, where[one.bundle]) == where[one.bundle], "the same device"
        assert one.reservation == (0.5 if planned_bundle in of_bundle else 1.0)
