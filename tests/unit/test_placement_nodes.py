"""Runs of nodes against the nodes written out one by one, in any order of sizes."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.api import Nodes, place_role, stop_of_role
from rolecall.testing import placement_oracle as oracle
from rolecall.testing.demands import role_demand

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=8)


@given(SIZES)
def test_nodes_are_kept_as_runs_and_given_back_one_by_one(sizes: list[int]) -> None:
    nodes = Nodes.of(sizes)
    assert list(nodes.sizes()) == oracle.node_sizes(nodes) == sizes
    assert (nodes.devices, nodes.largest) == (sum(sizes), max(sizes))
    assert len(nodes.runs) == len(list(groupby(sizes)))


@given(SIZES)
def test_each_bundle_is_on_its_node_and_none_is_beyond(sizes: list[int]) -> None:
    nodes = Nodes.of(sizes)
    places = oracle.places(sizes)
    for bundle, (node, number) in enumerate(places):
        assert nodes.node_of(bundle) == (node, range(bundle - number, bundle - number + sizes[node]))
    for bundle in (-1, len(places)):
        with pytest.raises(IndexError, match=f"no node has bundle {bundle}"):
            nodes.node_of(bundle)


@given(SIZES)
def test_whole_says_where_an_engine_may_lie_and_parts_what_it_covers(sizes: list[int]) -> None:
    nodes, places = Nodes.of(sizes), oracle.places(sizes)
    for first in range(len(places)):
        for stop in range(first + 1, len(places) + 1):
            where = places[first:stop]
            assert nodes.whole(range(first, stop)) == oracle.holds_an_engine(where, sizes)
            of_each = [len(list(same)) for _, same in groupby(node for node, _ in where)]
            assert list(nodes.parts(range(first, stop)).sizes()) == of_each


@given(sizes=SIZES, free_from=st.integers(0, 20), devices=st.integers(1, 13))
def test_the_first_start_is_the_first_place_that_holds_the_engine(
    sizes: list[int], free_from: int, devices: int
) -> None:
    places = oracle.places(sizes)
    starts = (
        first
        for first in range(free_from, len(places) - devices + 1)
        if oracle.holds_an_engine(places[first : first + devices], sizes)
    )
    assert Nodes.of(sizes).first_start(free_from, devices) == next(starts, None)


@given(
    sizes=SIZES,
    start=st.integers(0, 9),
    engines=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8)), min_size=1, max_size=3),
)
def test_engines_start_where_each_for_itself_would(
    sizes: list[int], start: int, engines: list[tuple[int, int]]
) -> None:
    nodes, role = Nodes.of(sizes), role_demand("writer", *engines)
    expected: list[tuple[int, ...]] = []
    stop: int | None = start
    for _, _, devices in oracle.engines(role):
        first = None if stop is None else nodes.first_start(stop, devices)
        stop = None if first is None else first + devices
        expected.append(tuple(range(first or 0, stop or 0)))
    laid = place_role(role, pool_id="pool", start=start, nodes=nodes)
    assert stop_of_role(role, start=start, nodes=nodes) == stop
    assert (laid and laid.stop) == stop
    if laid is not None:
        assert [replica.bundles for replica in laid.replicas] == expected


@given(per_node=st.integers(1, 6), free_from=st.integers(0, 20), devices=st.integers(1, 13))
def test_nodes_without_end_are_as_many_as_are_wanted(per_node: int, free_from: int, devices: int) -> None:
    endless, many = Nodes.endless(per_node), Nodes.of([per_node] * 40)
    assert endless.devices is None
    assert endless.first_start(free_from, devices) == many.first_start(free_from, devices)
    assert endless.node_of(free_from) == many.node_of(free_from)
    assert endless.parts(range(free_from, free_from + devices)) == many.parts(
        range(free_from, free_from + devices)
    )


@given(devices=st.integers(1, 40), per_node=st.integers(1, 9))
def test_equal_nodes_are_full_but_for_the_last(devices: int, per_node: int) -> None:
    *full, last = Nodes.equal(devices, per_node=per_node).sizes()
    assert full == [per_node] * len(full)
    assert last <= per_node
    assert sum(full) + last == devices
