"""The first-party routing policies keep the contract of their kind; and what each promises beyond it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.api import Candidate, EngineId, RoutingPolicy, RoutingRequest, rendezvous
from rolecall.testing import RoutingPolicyContract
from rolecall_routing.affinity import Affinity
from rolecall_routing.round_robin import RoundRobin
from rolecall_routing.sglang_router import SglangRouterPolicy


class TestRoundRobin(RoutingPolicyContract):
    plugin = RoundRobin
    moved_share = 0.0


class TestAffinity(RoutingPolicyContract):
    plugin = Affinity
    moved_share = 0.0


class TestSglangRouter(RoutingPolicyContract):
    """What it brings is in test_router_sglang.py."""

    plugin = SglangRouterPolicy


def fleet(size: int) -> list[Candidate]:
    ids = sorted(f"m/replica-{n}" for n in range(size))
    return [Candidate(engine_id=EngineId(id), base_url=f"http://{id}", generation=1) for id in ids]


def request(key: str | None = None) -> RoutingRequest:
    return RoutingRequest(model="m", affinity_key=key)


@pytest.mark.parametrize("policy", [RoundRobin, Affinity])
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
