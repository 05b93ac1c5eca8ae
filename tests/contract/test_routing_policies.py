"""What every first-party routing policy promises, and what each one promises beyond it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.api import ROLECALL_API, Candidate, EngineId, Need, RoutingRequest, rendezvous
from rolecall_routing import affinity, round_robin

POLICIES: list[Any] = [round_robin.rolecall_routing_policy(), affinity.rolecall_routing_policy()]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)


def fleet(size: int) -> list[Candidate]:
    ids = sorted(f"m/replica-{n}" for n in range(size))
    return [Candidate(engine_id=EngineId(id), base_url=f"http://{id}", generation=1) for id in ids]


def request(key: str | None = None) -> RoutingRequest:
    return RoutingRequest(model="m", affinity_key=key)


@every_policy
def test_it_says_what_it_is(policy: Any) -> None:
    assert policy.api_version == ROLECALL_API
    assert policy.needs <= set(Need)
    assert policy().select(fleet(1), request("key")) == fleet(1)[0]


@every_policy
@settings(max_examples=25)
@given(key=st.text(min_size=1, max_size=20), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_a_key_has_the_same_home_in_every_instance_and_at_any_time(
    policy: Any, key: str, sizes: list[int]
) -> None:
    used = policy()
    for size in sizes:
        assert used.select(fleet(size), request(key)) == policy().select(fleet(size), request(key))
        assert used.select(fleet(size), request(key)) == rendezvous(key, fleet(size))


def test_round_robin_gives_everyone_the_same_share() -> None:
    policy = round_robin.RoundRobin()
    counts = Counter(policy.select(fleet(3), request()).engine_id for _ in range(30))
    assert set(counts.values()) == {10}


def test_requests_with_a_key_take_no_turn() -> None:
    policy = round_robin.RoundRobin()
    turns: list[str] = []
    for _ in range(3):
        policy.select(fleet(3), request("key"))
        turns.append(policy.select(fleet(3), request()).engine_id)
    assert turns == [candidate.engine_id for candidate in fleet(3)]


@settings(max_examples=40)
@given(st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=30))
def test_no_one_is_served_twice_while_another_that_stayed_waits(history: list[set[int]]) -> None:
    """Between two turns of one replica, every replica that was there throughout has had one."""
    policy = round_robin.RoundRobin()
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
