"""The first-party routing policies keep the contract of their kind; and what each promises beyond it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.api import Candidate, EngineId, RoutingPolicy, RoutingRequest, homes, rendezvous
from rolecall.routing.in_flight import InFlight
from rolecall.testing import RoutingPolicyContract
from rolecall.testing.routing_policy_contract import ScriptedLoad
from rolecall_routing.affinity import Affinity
from rolecall_routing.bounded_affinity import BoundedAffinity
from rolecall_routing.least_loaded import LeastLoaded
from rolecall_routing.round_robin import RoundRobin
from rolecall_routing.sglang_router import SglangRouterPolicy


class TestRoundRobin(RoutingPolicyContract):
    plugin = RoundRobin
    moved_share = 0.0


class TestAffinity(RoutingPolicyContract):
    plugin = Affinity
    moved_share = 0.0


class TestLeastLoaded(RoutingPolicyContract):
    plugin = LeastLoaded
    moved_share = 0.0


class TestBoundedAffinity(RoutingPolicyContract):
    plugin = BoundedAffinity
    moved_share = 0.0


class TestSglangRouter(RoutingPolicyContract):
    """What it brings is in test_router_sglang.py."""

    plugin = SglangRouterPolicy


def fleet(size: int) -> list[Candidate]:
    ids = sorted(f"m/replica-{n}" for n in range(size))
    return [Candidate(engine_id=EngineId(id), base_url=f"http://{id}", generation=1) for id in ids]


def request(key: str | None = None) -> RoutingRequest:
    return RoutingRequest(model="m", affinity_key=key)


@pytest.mark.parametrize("policy", [RoundRobin, Affinity, LeastLoaded, BoundedAffinity])
def test_a_key_is_at_home_where_rendezvous_says(policy: type[RoutingPolicy]) -> None:
    for key in ("a", "group-7", "猫"):
        assert policy().select(fleet(6), request(key)) == rendezvous(key, fleet(6))


def test_round_robin_gives_everyone_the_same_share() -> None:
    policy = RoundRobin()
    counts = Counter(policy.select(fleet(3), request()).engine_id for _ in range(30))
    assert set(counts.values()) == {10}


def test_requests_with_a_key_take_no_turn() -> None:
    policy = RoundRobin()
    turns: list[str] = []
    for _ in range(3):
        policy.select(fleet(3), request("key"))
        turns.append(policy.select(fleet(3), request()).engine_id)
    assert turns == [candidate.engine_id for candidate in fleet(3)]


@settings(max_examples=40)
@given(st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=30))
def test_no_one_is_served_twice_while_another_that_stayed_waits(history: list[set[int]]) -> None:
    """Between two turns of one replica, every replica that was there throughout has had one."""
    policy = RoundRobin()
    whole = fleet(6)
    served: list[str] = []
    for present in history:
        served.append(policy.select([whole[n] for n in sorted(present)], request()).engine_id)
    for later, id in enumerate(served):
        earlier = max((at for at in range(later) if served[at] == id), default=None)
        if earlier is None:
            continue
        stayed = set.intersection(*({whole[n].engine_id for n in p} for p in history[earlier : later + 1]))
        assert stayed <= set(served[earlier : later + 1])


# --- policies that know the load ----------------------------------------------------------

CAPACITY = 40


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, CAPACITY), min_size=2, max_size=12))
def test_least_loaded_never_takes_the_busier_of_a_pair(loads: list[int]) -> None:
    """The busiest replica gets something only if it ties: every pair has another one in it."""
    candidates = fleet(len(loads))
    load = ScriptedLoad({one.engine_id: count for one, count in zip(candidates, loads, strict=True)})
    policy = LeastLoaded()
    asked = RoutingRequest(model="m", load=load)
    counts = Counter(policy.select(candidates, asked).engine_id for _ in range(60))
    most = max(loads)
    if loads.count(most) == 1:
        busiest = candidates[loads.index(most)].engine_id
        assert counts[busiest] == 0


def test_least_loaded_evens_out_replicas_of_unequal_speed() -> None:
    """One of eight replicas answers eight times as slowly; it has no more under way than the others, where
    taking turns would pile up on it."""
    longest = {policy: _longest_queue(policy) for policy in (LeastLoaded, RoundRobin)}
    assert longest[LeastLoaded] < longest[RoundRobin] / 4, longest


def _longest_queue(policy: type[RoutingPolicy]) -> int:
    """Six requests come in every step; each replica ends one of its own, the first only every eighth step."""
    candidates = tuple(fleet(8))
    counts, chosen_by = InFlight(), policy()
    load = counts.of("m")
    running: dict[str, list[Callable[[], None]]] = {one.engine_id: [] for one in candidates}
    longest = 0
    for step in range(400):
        for _ in range(6):
            chosen = chosen_by.select(candidates, RoutingRequest(model="m", load=load))
            running[chosen.engine_id].append(counts.sent("m", chosen.engine_id, chosen.generation))
            longest = max(longest, load.at(chosen))
        for one in candidates[1:] if step % 8 else candidates:
            if running[one.engine_id]:
                running[one.engine_id].pop(0)()
    return longest


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.lists(st.sampled_from(["hot", "hot", "hot", "a", "b", None]), max_size=400))
def test_bounded_affinity_keeps_every_replica_under_the_bound(size: int, keys: list[str | None]) -> None:
    """None of the requests ends, most of them have one key: the worst that can come."""
    policy, candidates, counts = BoundedAffinity(), tuple(fleet(size)), InFlight()
    load = counts.of("m")
    for number, key in enumerate(keys):
        asked = RoutingRequest(model="m", affinity_key=key, load=load)
        limit = max(policy.always, policy.bound * (number + 1) / size + 1)
        chosen = policy.select(candidates, asked)
        counts.sent("m", chosen.engine_id, chosen.generation)
        if key is not None:
            assert load.at(chosen) <= limit


def test_bounded_affinity_sends_a_key_home_while_there_is_room_and_on_in_the_same_order() -> None:
    policy, candidates = BoundedAffinity(), tuple(fleet(6))
    order = homes("group-1", candidates)
    assert order[0] == rendezvous("group-1", candidates)
    assert sorted(one.engine_id for one in order) == [one.engine_id for one in candidates]
    full: dict[EngineId, int] = {}
    for expected in order[:3]:
        asked = RoutingRequest(model="m", affinity_key="group-1", load=ScriptedLoad(full))
        assert policy.select(candidates, asked) == expected
        full[expected.engine_id] = 1000


def test_bounded_affinity_leaves_other_keys_where_they_are_when_one_is_hot() -> None:
    policy, candidates, counts = BoundedAffinity(), tuple(fleet(8)), InFlight()
    load = counts.of("m")
    keys = [f"group-{number}" for number in range(200)]
    for _ in range(400):
        hot = policy.select(candidates, RoutingRequest(model="m", affinity_key="hot", load=load))
        counts.sent("m", hot.engine_id, hot.generation)
    at_home = [
        key
        for key in keys
        if policy.select(candidates, RoutingRequest(model="m", affinity_key=key, load=load))
        == rendezvous(key, candidates)
    ]
    filled = [one for one in candidates if load.at(one) >= 60]
    assert len(filled) < len(candidates), "the hot key left room somewhere"
    elsewhere = [key for key in keys if rendezvous(key, candidates) not in filled]
    assert set(elsewhere) <= set(at_home)


def test_requests_of_an_engine_that_left_do_not_shut_out_the_others() -> None:
    """They count in the total only, so the bound is looser, never tighter."""
    policy, candidates, counts = BoundedAffinity(), tuple(fleet(3)), InFlight()
    for _ in range(100):
        counts.sent("m", EngineId("m/gone"), 1)
    asked = RoutingRequest(model="m", affinity_key="k", load=counts.of("m"))
    assert policy.select(candidates, asked) == rendezvous("k", candidates)
