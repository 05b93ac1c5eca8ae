"""Routing policies that break a promise, and one that breaks none."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, ClassVar

import pytest
from attrs import evolve

from rolecall.api import ROLECALL_API, Candidate, Need, RoutingRequest, rendezvous
from rolecall.testing import RoutingPolicyContract


class Sound:
    """Takes turns by engine id; keys live where rendezvous says."""

    name: ClassVar[str] = "sound"
    api_version: ClassVar[int] = ROLECALL_API
    needs: ClassVar[frozenset[Any]] = frozenset()
    router: ClassVar[None] = None

    def __init__(self) -> None:
        self.last = ""

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate:
        if request.affinity_key is not None:
            return self.home(request.affinity_key, candidates)
        return self.turn(candidates)

    def home(self, key: str, candidates: Sequence[Candidate]) -> Candidate:
        return rendezvous(key, candidates)

    def turn(self, candidates: Sequence[Candidate]) -> Candidate:
        chosen = next((one for one in candidates if one.engine_id > self.last), candidates[0])
        self.last = chosen.engine_id
        return chosen


class TestSound(RoutingPolicyContract):
    plugin = Sound
    fails: ClassVar = {}


class KeyContract(RoutingPolicyContract):
    """What a policy that is wrong about keys could fail."""

    concerns: ClassVar = "key|home|joins|leaves|came_back|may_change|choice|prompt|entry_point"


class TurnContract(RoutingPolicyContract):
    """What a policy that is wrong about requests without a key could fail."""

    concerns: ClassVar = "share|starved|counters|choice|needs|may_change|busy|prompt|candidates|entry_point"


class OtherApi(Sound):
    name = "other_api"
    api_version = 99


class TestOtherApi(RoutingPolicyContract):
    plugin = OtherApi
    fails: ClassVar = {
        "test_its_entry_point_leads_to_it": '"api_version" is 99; this rolecall supports 1 only',
        "test_a_key_has_the_same_home_in_every_process": '"api_version" is 99',
    }


class Vague(Sound):
    """Needs something that the core has never heard of."""

    name = "vague"
    needs: ClassVar[frozenset[Any]] = frozenset({"weather"})


class TestVague(RoutingPolicyContract):
    plugin = Vague
    fails: ClassVar = {
        "test_its_entry_point_leads_to_it": '"needs" must be frozenset',
        "test_its_needs_and_its_router_are_known_to_the_core": "unknown needs",
        "test_a_key_has_the_same_home_in_every_process": '"needs" must be frozenset',
    }


class ByChance(Sound):
    """Every instance draws its own lots."""

    name = "by_chance"

    def turn(self, candidates: Sequence[Candidate]) -> Candidate:
        return random.choice(candidates)


class TestByChance(TurnContract):
    plugin = ByChance
    fails: ClassVar = {"test_an_instance_has_counters_of_its_own": "or choose by chance"}


class SharedCounter(Sound):
    """All models of a process take turns together."""

    name = "shared_counter"
    turns: ClassVar = itertools.count()

    def turn(self, candidates: Sequence[Candidate]) -> Candidate:
        n = next(self.turns)
        return min(candidates, key=lambda one: blake2b(f"{n} {one.engine_id}".encode()).digest())


class TestSharedCounter(TurnContract):
    plugin = SharedCounter
    fails: ClassVar = {
        "test_an_instance_has_counters_of_its_own": "instances of one class disturb each other"
    }


class ByHash(Sound):
    """Python's own hash of text differs from process to process."""

    name = "by_hash"

    def home(self, key: str, candidates: Sequence[Candidate]) -> Candidate:
        return max(candidates, key=lambda one: hash(f"{key} {one.engine_id}"))


class TestByHash(KeyContract):
    plugin = ByHash
    fails: ClassVar = {"test_a_key_has_the_same_home_in_every_process": "another process chooses otherwise"}


class Modulo(Sound):
    """A new number of replicas gives nearly every key another one."""

    name = "modulo"

    def home(self, key: str, candidates: Sequence[Candidate]) -> Candidate:
        digest = blake2b(key.encode("utf-8", "surrogatepass")).digest()
        return candidates[int.from_bytes(digest) % len(candidates)]


class TestModulo(KeyContract):
    plugin = Modulo
    fails: ClassVar = {
        "test_who_leaves_takes_only_its_own_keys": "keys moved although their replica stayed",
        "test_who_joins_takes_its_share_and_no_more": "keys moved although their replica stayed",
    }


class ByUrl(Sound):
    """A replica that comes back at another address loses its keys."""

    name = "by_url"

    def home(self, key: str, candidates: Sequence[Candidate]) -> Candidate:
        text = key.encode("utf-8", "surrogatepass")
        return max(candidates, key=lambda one: blake2b(one.base_url.encode() + b"\0" + text).digest())


class TestByUrl(KeyContract):
    plugin = ByUrl
    fails: ClassVar = {
        "test_a_replica_that_came_back_is_met_at_its_new_address": "keys moved although their replica stayed"
    }


class Starving(Sound):
    """A counter over a fleet that changes: some are never its turn."""

    name = "starving"

    def __init__(self) -> None:
        self.turns = itertools.count()

    def turn(self, candidates: Sequence[Candidate]) -> Candidate:
        return candidates[next(self.turns) % len(candidates)]


class TestStarving(TurnContract):
    plugin = Starving
    fails: ClassVar = {
        "test_who_stays_is_not_starved_by_who_comes_and_goes": "got nothing while all and only"
    }


class Favouring(Starving):
    """Every other request goes to the first replica."""

    name = "favouring"

    def turn(self, candidates: Sequence[Candidate]) -> Candidate:
        n = next(self.turns)
        return candidates[0] if n % 2 else Sound.turn(self, candidates)

    def __init__(self) -> None:
        super().__init__()
        self.last = ""


class TestFavouring(TurnContract):
    plugin = Favouring
    fails: ClassVar = {"test_equal_replicas_get_an_equal_share": "one replica got .* and another"}


class Lumping(Sound):
    """Nearly all keys live on one replica."""

    name = "lumping"

    def home(self, key: str, candidates: Sequence[Candidate]) -> Candidate:
        return rendezvous(str(len(key) % 3), candidates)


class TestLumping(KeyContract):
    plugin = Lumping
    fails: ClassVar = {
        "test_keys_are_spread_over_the_replicas": "got nothing|one replica got",
        "test_who_joins_takes_its_share_and_no_more": "joined 7 others and took",
    }


class MakingUp(Sound):
    """Answers a candidate of its own, with a tidier URL."""

    name = "making_up"

    def home(self, key: str, candidates: Sequence[Candidate]) -> Candidate:
        chosen = super().home(key, candidates)
        return evolve(chosen, base_url=f"{chosen.base_url}/")


NO_CANDIDATE = r"is none of the \d+ candidates"


class TestMakingUp(KeyContract):
    plugin = MakingUp
    fails: ClassVar = {
        "test_the_choice_is_one_of_the_candidates": NO_CANDIDATE,
        "test_any_text_is_a_key": NO_CANDIDATE,
        "test_anything_is_a_prompt": NO_CANDIDATE,
        "test_a_replica_that_came_back_is_met_at_its_new_address": NO_CANDIDATE,
        "test_a_fleet_may_change_with_every_request": NO_CANDIDATE,
    }


class Remembering(Sound):
    """Keeps what it chose for a key, and so the address that the replica had then."""

    name = "remembering"

    def __init__(self) -> None:
        super().__init__()
        self.chosen: dict[tuple[str, str], Candidate] = {}

    def home(self, key: str, candidates: Sequence[Candidate]) -> Candidate:
        chosen = super().home(key, candidates)
        return self.chosen.setdefault((key, chosen.engine_id), chosen)


class TestRemembering(KeyContract):
    plugin = Remembering
    fails: ClassVar = {
        "test_a_replica_that_came_back_is_met_at_its_new_address": NO_CANDIDATE,
        "test_a_fleet_may_change_with_every_request": NO_CANDIDATE,
    }


class Drifting(Sound):
    """Where a key lives depends on how many requests came without one."""

    name = "drifting"

    def home(self, key: str, candidates: Sequence[Candidate]) -> Candidate:
        return rendezvous(key + self.last, candidates)


class TestDrifting(KeyContract):
    plugin = Drifting
    fails: ClassVar = {
        "test_a_key_has_the_same_home_in_every_instance": "what an instance was asked before changes the home"
    }


class Reordering(Sound):
    """Sorts the caller's own list."""

    name = "reordering"

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate:
        if isinstance(candidates, list):
            candidates.sort(key=lambda one: one.base_url, reverse=True)
        return super().select(candidates, request)


class TestReordering(TurnContract):
    plugin = Reordering
    fails: ClassVar = {"test_the_candidates_are_left_as_they_were": "select changed the candidates"}


class Plain(Sound):
    """Takes a key for plain text."""

    name = "plain"

    def home(self, key: str, candidates: Sequence[Candidate]) -> Candidate:
        return rendezvous(key.encode("ascii").decode(), candidates)


class TestPlain(KeyContract):
    plugin = Plain
    fails: ClassVar = {"test_any_text_is_a_key": "UnicodeEncodeError"}


class Literate(Sound):
    """Takes a prompt for a text."""

    name = "literate"
    needs: ClassVar[frozenset[Any]] = frozenset({Need.PROMPT})

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate:
        if request.affinity_key is not None:
            return super().select(candidates, request)
        assert isinstance(request.prompt, str), "the prompt is no text"
        return rendezvous(request.prompt, candidates)


class TestLiterate(TurnContract):
    plugin = Literate
    fails: ClassVar = {"test_anything_is_a_prompt": "the prompt is no text"}


class Heedless(Sound):
    """Wants to know the load and takes turns all the same."""

    name = "heedless"
    needs: ClassVar[frozenset[Any]] = frozenset({Need.LOAD})


class TestHeedless(TurnContract):
    plugin = Heedless
    fails: ClassVar = {"test_who_is_busy_is_asked_less": "m/replica-0 got 25 of 100 more"}


class Needy(Sound):
    """Needs a key and does not say so."""

    name = "needy"

    def turn(self, candidates: Sequence[Candidate]) -> Candidate:
        raise ValueError("there is no key")


class TestNeedy(RoutingPolicyContract):
    plugin = Needy
    fails: ClassVar = dict.fromkeys(
        (
            "test_the_choice_is_one_of_the_candidates",
            "test_the_candidates_are_left_as_they_were",
            "test_anything_is_a_prompt",
            "test_what_it_needs_is_all_that_it_needs",
            "test_a_key_has_the_same_home_in_every_instance",
            "test_an_instance_has_counters_of_its_own",
            "test_equal_replicas_get_an_equal_share",
            "test_who_stays_is_not_starved_by_who_comes_and_goes",
            "test_a_fleet_may_change_with_every_request",
        ),
        "there is no key",
    )


class Asking(Sound):
    """Looks the load up first."""

    name = "asking"

    async def turn(self, candidates: Sequence[Candidate]) -> Candidate:  # type: ignore[override]
        return candidates[0]


class TestAsking(TurnContract):
    plugin = Asking
    fails: ClassVar = {
        "test_the_choice_is_one_of_the_candidates": "select is called without await",
        "test_anything_is_a_prompt": "select is called without await",
        "test_what_it_needs_is_all_that_it_needs": "select is called without await",
        "test_a_fleet_may_change_with_every_request": "select is called without await",
        "test_an_instance_has_counters_of_its_own": "no attribute 'engine_id'",
        "test_equal_replicas_get_an_equal_share": "no attribute 'engine_id'",
        "test_who_stays_is_not_starved_by_who_comes_and_goes": "no attribute 'engine_id'",
    }


class TestByChanceAndSayingSo(TurnContract):
    plugin = ByChance
    fails: ClassVar = {}

    @pytest.mark.xfail(reason="it draws lots on purpose")
    def test_an_instance_has_counters_of_its_own(self) -> None:
        super().test_an_instance_has_counters_of_its_own()
