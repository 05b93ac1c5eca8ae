from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from attrs import evolve
from rolecall_prefix_routing import PrefixAware
from rolecall_prefix_routing.prefixes import (
    CHUNK_CHARACTERS,
    CHUNK_TOKENS,
    MOST_CHUNKS,
    MOST_PREFIXES,
    MOST_SERVERS,
    ServedPrefixes,
    prefix_keys,
)

from rolecall.api import Candidate, EngineId, RoutingRequest, rendezvous
from rolecall.testing import RoutingPolicyContract
from rolecall.testing.routing_policy_contract import ScriptedLoad


class TestPrefixAware(RoutingPolicyContract):
    plugin = PrefixAware


class Fleet(list[Candidate]):
    """Replicas, each with so many requests under way."""

    def __init__(self, *loads: int) -> None:
        super().__init__(
            Candidate(engine_id=EngineId(f"m/replica-{index}"), base_url=f"http://h-{index}:1", generation=1)
            for index in range(len(loads))
        )
        self.load = ScriptedLoad({one.engine_id: load for one, load in zip(self, loads, strict=True)})


def ask(policy: PrefixAware, candidates: Fleet, prompt: str | Sequence[int] | None) -> int:
    request = RoutingRequest(model="m", prompt=prompt, load=candidates.load)
    return candidates.index(policy.select(candidates, request))


def tokens(*parts: int) -> list[int]:
    """A prompt with a chunk for each part; equal numbers give equal chunks."""
    return [part for part in parts for _ in range(CHUNK_TOKENS)]


IDLE = Fleet(0, 0, 0, 0)


# --- prefixes -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [tokens(1, 2, 3), "x" * CHUNK_CHARACTERS * 3])
def test_prompts_share_a_key_for_each_chunk_that_they_share(kind: str | list[int]) -> None:
    longer = kind + kind  # type: ignore[operator]
    assert prefix_keys(longer)[:3] == prefix_keys(kind)
    assert len(prefix_keys(kind)) == 3
    assert not set(prefix_keys(longer)[3:]) & set(prefix_keys(kind))


def test_a_chunk_in_another_place_is_another_prefix() -> None:
    assert not set(prefix_keys(tokens(1, 2))) & set(prefix_keys(tokens(2, 1)))
    assert prefix_keys([1, 23]) != prefix_keys([12, 3])


@pytest.mark.parametrize("prompt", ["", [], None])
def test_an_empty_prompt_has_no_prefix(prompt: str | list[int] | None) -> None:
    assert prefix_keys(prompt) == []


def test_what_json_allows_has_a_key() -> None:
    assert prefix_keys([10**40]) != prefix_keys("\ud800")


def test_only_the_start_of_a_very_long_prompt_is_looked_at() -> None:
    assert len(prefix_keys(list(range(10**6)))) == MOST_CHUNKS


# --- the choice ---------------------------------------------------------------------------


def test_equal_prompts_meet_the_same_replica() -> None:
    policy = PrefixAware()
    for prompt in ("2 + 2?", "3 + 3?", [1, 2, 3]):
        assert len({ask(policy, IDLE, prompt) for _ in range(5)}) == 1


def test_a_conversation_stays_where_its_longest_part_is() -> None:
    """Four conversations begin alike; each goes on where it was last, not where the first of them is."""
    policy = PrefixAware()
    homes = [
        ask(policy, Fleet(*(9 * (index != home) for index in range(4))), tokens(0, home)) for home in range(4)
    ]
    assert homes == [0, 1, 2, 3]
    assert [ask(policy, IDLE, tokens(0, home, 9)) for home in range(4)] == homes
    assert [ask(policy, IDLE, tokens(0, home, 9, 9)) for home in range(4)] == homes


def test_new_prompts_are_spread_and_every_process_agrees() -> None:
    prompts = [tokens(number) for number in range(400)]
    counts = Counter(ask(PrefixAware(), IDLE, prompt) for prompt in prompts)
    assert sorted(counts) == [0, 1, 2, 3]
    assert max(counts.values()) < 1.5 * min(counts.values())
    one, other = PrefixAware(), PrefixAware()
    homes = [ask(one, IDLE, prompt) for prompt in prompts]
    assert [ask(other, IDLE, prompt) for prompt in reversed(prompts)] == homes[::-1]


def test_a_replica_over_the_bound_is_left_out_and_the_next_best_remembered() -> None:
    policy = PrefixAware()
    home = ask(policy, IDLE, tokens(1, 2))
    loads = [3, 3, 3, 3]
    loads[home] = 4  # with this request the mean is 3.5, and 4.375 the bound: there is room for a fifth
    assert ask(policy, Fleet(*loads), tokens(1, 2)) == home
    loads[home] = 5
    second = ask(policy, Fleet(*loads), tokens(1, 2))
    assert second != home
    assert ask(policy, Fleet(*(9 * (index != second) for index in range(4))), tokens(1, 2)) == second
    others = Fleet(*(9 * (index in (home, second)) for index in range(4)))
    assert ask(policy, others, tokens(1, 2, 3)) not in (home, second)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_one_prompt_for_all_never_loads_a_replica_over_the_bound(size: int) -> None:
    """The worst case: all requests share their prompt, and none of them ends."""
    policy = PrefixAware()
    loads = [0] * size
    for count in range(1, 200):
        loads[ask(policy, Fleet(*loads), tokens(7))] += 1
        assert max(loads) <= (1 + PrefixAware.epsilon) * count / size + 1


def test_a_replica_that_was_started_again_has_served_nothing() -> None:
    policy = PrefixAware()
    again = Fleet(0, 0, 0, 0)
    again[0] = evolve(again[0], generation=2)
    prompt = next(tokens(number) for number in range(99) if ask(PrefixAware(), again, tokens(number)) != 0)
    assert ask(policy, Fleet(0, 9, 9, 9), prompt) == 0
    assert ask(policy, IDLE, prompt) == 0
    assert ask(policy, again, prompt) == ask(PrefixAware(), again, prompt)


def test_a_key_decides_whatever_the_prompt_and_the_load() -> None:
    policy = PrefixAware()
    for loads in ((0, 0, 0), (9, 0, 0), (0, 9, 9)):
        candidates = Fleet(*loads)
        keyed = RoutingRequest(model="m", affinity_key="group-1", prompt=tokens(1), load=candidates.load)
        assert policy.select(candidates, keyed) == rendezvous("group-1", candidates)


def test_requests_without_a_prompt_go_to_who_has_room() -> None:
    policy = PrefixAware()
    assert {ask(policy, IDLE, None) for _ in range(40)} == {0, 1, 2, 3}
    assert {ask(policy, Fleet(9, 0, 9, 9), None) for _ in range(20)} == {1}


# --- memory -------------------------------------------------------------------------------


def test_memory_is_bounded_and_keeps_what_is_used() -> None:
    served = ServedPrefixes()
    kept = prefix_keys(tokens(0))
    for number in range(MOST_PREFIXES):
        served.add(prefix_keys([number + 1]), IDLE[number % 4])
        if number % 1000 == 0:
            served.add(kept, IDLE[0])
    assert len(served) == MOST_PREFIXES
    assert served.longest(kept, IDLE) == [IDLE[0]]
    assert not served.longest(prefix_keys([1]), IDLE), "the oldest is forgotten"


def test_of_many_that_served_a_prefix_the_last_are_remembered() -> None:
    served = ServedPrefixes()
    many = Fleet(*[0] * (MOST_SERVERS + 3))
    keys = prefix_keys(tokens(1))
    for candidate in [*many, many[3]]:
        served.add(keys, candidate)
    assert served.longest(keys, many) == many[3:]
