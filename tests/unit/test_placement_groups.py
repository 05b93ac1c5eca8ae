"""Ownership of placement groups: created together or not at all, removed or pending, never lost."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from rolecall.api import Nodes, Pool
from rolecall.cluster.pool_groups import CLEAN_UP_S, INTERRUPTIBLE_S, SETTLE_S, PoolGroups
from rolecall.errors import CleanupPendingError, ClusterError, PlacementRefused
from rolecall.placement.group_port import ResourceOffer
from rolecall.placement.node_choice import choose_nodes
from rolecall.testing.fake_groups import FakeGroups, FaultyGroups


def pool(pool_id: str, devices: int) -> Pool:
    return Pool(pool_id=pool_id, resource="device_slot", nodes=Nodes.equal(devices, per_node=4))


def groups_on(
    cluster: FakeGroups, *pools: Pool, port: object = None, borrowed: dict[str, object] | None = None
) -> PoolGroups:
    return PoolGroups(
        pools, job="job", borrowed=borrowed or {}, port=port or cluster, clock=cluster.clock  # type: ignore[arg-type]
    )  # fmt: skip


def test_groups_are_named_after_job_and_pool_and_differ_between_jobs_of_one_name() -> None:
    cluster = FakeGroups(nodes={"a": 4})
    first, second = (groups_on(cluster, pool("writer", 2)) for _ in range(2))
    first.create(10)
    second.create(10)
    names = cluster.live_names
    assert all(name.startswith("rolecall-job-writer-") for name in names)
    assert len(set(names)) == 2
    first.remove(10)
    assert cluster.live_names == [names[1]]


def test_groups_that_do_not_fit_are_refused_with_what_is_there_and_none_is_left() -> None:
    cluster = FakeGroups(nodes={"a": 2, "b": 1})
    groups = groups_on(cluster, pool("writer", 2), pool("judge", 2))
    with pytest.raises(ClusterError) as failed:
        groups.create(7)
    message = str(failed.value)
    assert "not ready within 7 s" in message
    assert 'pool "judge" asked for 2 bundles of 1 device_slot' in message
    assert 'pool "writer"' not in message
    assert "3 device_slot (a: 2, b: 1), 1 of them free" in message
    assert cluster.clock.now_s() == 7
    assert cluster.live_names == []


def test_a_resource_that_no_node_has_is_named() -> None:
    cluster = FakeGroups(nodes={"a": 2})
    groups = groups_on(cluster, Pool(pool_id="p", resource="other", nodes=Nodes.equal(1, per_node=1)))
    with pytest.raises(ClusterError, match="The cluster has no other"):
        groups.create(1)


@pytest.mark.parametrize("error", [ClusterError("no"), ValueError("no"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("method", "at"), [("offer", 1), ("create", 1), ("create", 2), ("wait_ready", 1), ("wait_ready", 2)]
)
def test_an_error_at_any_step_of_creation_leaves_no_group(
    method: str, at: int, after: bool, error: BaseException
) -> None:
    cluster = FakeGroups(nodes={"a": 4})
    port = FaultyGroups(port=cluster, method=method, at=at, after=after, error=error)
    groups = groups_on(cluster, pool("writer", 2), pool("judge", 2), port=port)
    with pytest.raises(type(error)) as failed:
        groups.create(10)
    assert failed.value is error
    assert port.calls >= at
    assert cluster.live_names == []
    assert groups.owned_names == ()


def test_a_creation_that_is_given_up_ends_at_the_next_look_and_leaves_no_group() -> None:
    cluster = FakeGroups(nodes={"a": 2})
    groups = groups_on(cluster, pool("writer", 3))
    groups.give_up()
    with pytest.raises(ClusterError, match='waiting for pool "writer" was given up'):
        groups.create(3600)
    assert cluster.clock.now_s() <= INTERRUPTIBLE_S + SETTLE_S
    assert cluster.live_names == []


def test_a_group_that_is_just_being_made_is_not_removed_before_it_is_there() -> None:
    """Ray loses devices for good where that is done."""
    cluster = FakeGroups(nodes={"a": 4})
    port = FaultyGroups(port=cluster, method="create", at=2, after=True, error=ClusterError("injected"))
    with pytest.raises(ClusterError, match="injected"):
        groups_on(cluster, pool("writer", 2), pool("judge", 2), port=port).create(10)
    assert all(group.removed and group.places is not None for group in cluster.groups)


@pytest.mark.parametrize("method", ["remove", "is_removed"])
def test_one_removal_that_fails_does_not_keep_the_others(method: str) -> None:
    cluster = FakeGroups(nodes={"a": 4})
    port = FaultyGroups(port=cluster, method=method, error=ClusterError("no connection"))
    groups = groups_on(cluster, pool("writer", 2), pool("judge", 2), port=port)
    groups.create(10)
    with pytest.raises(CleanupPendingError, match=r"rolecall-job-writer-.*no connection"):
        groups.remove(5)
    assert len(groups.owned_names) == 1
    assert cluster.find(cluster.groups[1].name) is None
    groups.remove(5)
    assert cluster.live_names == []


def test_a_clean_up_that_fails_after_a_failed_creation_names_both() -> None:
    cluster = FakeGroups(nodes={"a": 4}, unremovable={"-writer-"})
    fault = ClusterError("lost")
    port = FaultyGroups(port=cluster, method="wait_ready", error=fault)
    groups = groups_on(cluster, pool("writer", 2), port=port)
    with pytest.raises(CleanupPendingError) as pending:
        groups.create(10)
    assert pending.value.__cause__ is fault
    assert cluster.clock.now_s() == pytest.approx(CLEAN_UP_S, abs=1)
    cluster.unremovable.clear()
    groups.remove(5)
    assert cluster.live_names == []


# --- which nodes ------------------------------------------------------------------------


def test_small_pools_share_a_node_so_that_a_large_engine_finds_one_whole() -> None:
    """A cluster that is left to itself gives the first two the emptiest nodes, one each."""
    cluster = FakeGroups(nodes={"a": 4, "b": 4})
    groups = groups_on(cluster, pool("judge", 2), pool("scorer", 2), pool("writer", 4))
    groups.create(10)
    on = {probe.pool_id: probe.node_id for probe in groups.probe(10)}
    assert on["judge"] == on["scorer"] != on["writer"]
    assert len({(probe.pool_id, probe.node_id) for probe in groups.probe(10)}) == 3


class Late(FakeGroups):
    """A cluster that shows devices as taken until a second after they were given back."""

    def offer(self, resource: str) -> ResourceOffer:
        offer = super().offer(resource)
        if self.clock.now_s() >= 1:
            return offer
        return ResourceOffer(nodes=tuple(evolve(node, free=0) for node in offer.nodes))


def test_devices_that_were_just_given_back_are_waited_for() -> None:
    cluster = Late(nodes={"a": 4, "b": 4})
    groups = groups_on(cluster, pool("judge", 2), pool("writer", 4))
    groups.create(10)
    assert 1 <= cluster.clock.now_s() < 1.2
    assert len({(probe.pool_id, probe.node_id) for probe in groups.probe(10)}) == 2


def test_where_no_choice_is_found_the_cluster_finds_the_nodes() -> None:
    cluster = FakeGroups(nodes={"a": 3, "b": 3})
    groups = groups_on(cluster, pool("writer", 4))
    groups.create(10)
    assert {probe.node_id for probe in groups.probe(10)} == {"a", "b"}


@given(
    sizes=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4),
    free=st.lists(st.integers(0, 6), min_size=1, max_size=6),
)
def test_chosen_nodes_have_room_and_a_pools_parts_are_apart(sizes: list[list[int]], free: list[int]) -> None:
    pools = [
        Pool(pool_id=f"p{number}", resource="device_slot", nodes=Nodes.of(parts))
        for number, parts in enumerate(sizes)
    ]
    rooms = {f"n{number}": count for number, count in enumerate(free)}
    chosen = choose_nodes(pools, rooms)
    if chosen is None:
        return
    for one, parts in zip(pools, sizes, strict=True):
        names = iter(chosen[one.pool_id])
        on = [{next(names) for _ in range(size)} for size in parts]
        assert all(len(nodes) == 1 for nodes in on)
        assert len(set[str]().union(*on)) == len(parts)
        assert next(names, None) is None
    taken = Counter(name for nodes in chosen.values() for name in nodes)
    assert all(taken[name] <= room for name, room in rooms.items())


@given(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_a_pool_that_takes_every_node_always_finds_them(sizes: list[int], seed: int) -> None:
    free = list(sizes)
    random.Random(seed).shuffle(free)
    every = Pool(pool_id="all", resource="device_slot", nodes=Nodes.of(sizes))
    chosen = choose_nodes([every], {str(number): count for number, count in enumerate(free)})
    assert chosen is not None
    assert Counter(Counter(chosen["all"]).values()) == Counter(sizes)


# --- borrowed groups --------------------------------------------------------------------


def test_a_borrowed_group_is_used_and_never_removed() -> None:
    cluster = FakeGroups(nodes={"a": 4})
    lent = cluster.create("trainer", [{"device_slot": 1.0}] * 2)
    groups = groups_on(cluster, pool("writer", 2), pool("judge", 2), borrowed={"writer": lent})
    groups.create(10)
    assert groups.handles["writer"] is lent
    assert len(cluster.live_names) == 2, "nothing is made for a pool that has a group already"
    assert {probe.pool_id for probe in groups.probe(10)} == {"writer", "judge"}
    groups.remove(5)
    assert cluster.live_names == ["trainer"]


def test_a_borrowed_group_survives_a_failed_creation() -> None:
    cluster = FakeGroups(nodes={"a": 4})
    lent = cluster.create("trainer", [{"device_slot": 1.0}] * 2)
    groups = groups_on(cluster, pool("writer", 2), pool("judge", 3), borrowed={"writer": lent})
    with pytest.raises(ClusterError):
        groups.create(10)
    assert cluster.live_names == ["trainer"]


def test_a_borrowed_group_must_have_bundles_of_one_device() -> None:
    cluster = FakeGroups(nodes={"a": 4})
    lent = cluster.create("trainer", [{"device_slot": 1.0}, {"device_slot": 2.0}, {"device_slot": 0.5}])
    with pytest.raises(PlacementRefused) as refused:
        groups_on(cluster, pool("writer", 3), borrowed={"writer": lent}).create(10)
    (refusal,) = refused.value.refusals
    assert refusal.code == "borrowed-bundle-size"
    assert "bundle 1-2 has 2, 0.5" in refusal.message
    assert cluster.live_names == ["trainer"]


def test_a_group_lent_for_a_pool_that_is_not_planned_is_an_error() -> None:
    cluster = FakeGroups(nodes={"a": 4})
    lent = cluster.create("trainer", [{"device_slot": 1.0}])
    with pytest.raises(ClusterError, match='pool "ghost", which the plan has not; its pools: writer'):
        groups_on(cluster, pool("writer", 1), borrowed={"ghost": lent}).create(10)
    assert cluster.live_names == ["trainer"]
