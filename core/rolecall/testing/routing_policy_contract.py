"""Contract of routing policies, as a test class to inherit.

    class TestSticky(RoutingPolicyContract):
        plugin = Sticky

A policy that brings a router never chooses itself: tests of ``select`` are skipped for it, and its router
has a contract of its own, :class:`~rolecall.testing.router_contract.RouterContract`.
"""

from __future__ import annotations

import inspect
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
from attrs import evolve, frozen, has

from rolecall.ids import EngineId, ModelId, engine_id
from rolecall.interfaces.routing_policy import IDLE, Candidate, Load, Need, RoutingPolicy, RoutingRequest
from rolecall.plugins.host import PluginHost
from rolecall.plugins.kinds import PluginKind
from rolecall.testing.other_process import answer_elsewhere
from rolecall.testing.plugin_contract import PluginContract

_MODEL = "m"
_ODD_KEYS = ("", " ", "0", "clé 猫 \U0001f431", "\ud800", "a\x00b", "k" * 10_000)
"""A key is any text that a header or a JSON body can hold."""
_ODD_PROMPTS = (None, "", (), "\ud800 猫", (7,), (10**40, 0), "long " * 20_000, tuple(range(20_000)))
"""A prompt is whatever JSON can hold; engines refuse what is no token id, not policies."""


@frozen
class ScriptedLoad:
    """A :class:`~rolecall.interfaces.routing_policy.Load` that is what a test says, by engine."""

    counts: Mapping[EngineId, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def at(self, candidate: Candidate) -> int:
        return self.counts.get(candidate.engine_id, 0)


class RoutingPolicyContract(PluginContract):
    """What every routing policy has to do.

    Requests have the affinity key that a test gives them. Those without one are left out for a policy
    whose ``needs`` ask for it, as the core refuses them before they get there.

    Attributes:
        fairness: the most that one of several equal replicas may be asked more often than another.
        moved_share: share of the keys that may change their replica although it stayed.
    """

    kind: ClassVar[PluginKind] = PluginKind.ROUTING_POLICY
    fairness: ClassVar[float] = 2.0
    moved_share: ClassVar[float] = 0.1

    def fresh(self) -> RoutingPolicy:
        """Return a new instance, as the core makes one for each (role, registry epoch, model)."""
        if self.plugin.router is not None:
            pytest.skip("its router chooses; select is never called")
        return self.plugin()

    def make_request(self, key: str | None, number: int = 0) -> RoutingRequest:
        """Return a request with that affinity key and what else the policy's ``needs`` ask for.

        Requests with another number have another prompt; a key has the same home whatever the prompt.
        """
        prompt = f"Question {number}" if Need.PROMPT in self.plugin.needs else None
        return RoutingRequest(model=_MODEL, affinity_key=key, prompt=prompt)

    def fleet(self, size: int) -> tuple[Candidate, ...]:
        """Return replicas 0 to ``size`` - 1 of one model, sorted by engine id as policies get them."""
        return _sorted(
            Candidate(
                engine_id=engine_id(ModelId(_MODEL), index),
                base_url=f"http://host-{index}:30000",
                generation=1,
            )
            for index in range(size)
        )

    def takes_any_request(self) -> bool:
        """Whether the policy is asked about requests without a key."""
        return Need.AFFINITY_KEY not in self.plugin.needs

    # --- what it says of itself -----------------------------------------------------------

    def test_its_needs_and_its_router_are_known_to_the_core(self) -> None:
        """``needs`` has members of ``Need`` only; a router's class names its options."""
        assert self.plugin.needs <= frozenset(Need), f"unknown needs: {self.plugin.needs - frozenset(Need)}"
        if self.plugin.router is not None:
            assert has(self.plugin.router.options), "options of the router is an attrs class"

    # --- one choice -----------------------------------------------------------------------

    @pytest.mark.parametrize("size", [1, 2, 3, 8, 1024])
    def test_the_choice_is_one_of_the_candidates(self, size: int) -> None:
        """With and without a key, in fleets from one replica to a thousand; and it is no awaitable."""
        policy, fleet = self.fresh(), self.fleet(size)
        for request in self._requests(10):
            self._check_choice(policy.select(fleet, request), fleet)

    def test_any_text_is_a_key(self) -> None:
        """Keys come from callers: empty, with lone surrogates, very long; each has a home."""
        policy, fleet = self.fresh(), self.fleet(3)
        for key in _ODD_KEYS:
            self._check_choice(policy.select(fleet, self.make_request(key)), fleet)

    def test_anything_is_a_prompt(self) -> None:
        """Prompts come from callers, as text or as token ids, or there is none; a policy that asked for them
        gets along with all."""
        policy, fleet = self.fresh(), self.fleet(3)
        for prompt in _ODD_PROMPTS:
            for request in self._requests(1):
                self._check_choice(policy.select(fleet, evolve(request, prompt=prompt)), fleet)

    def test_the_candidates_are_left_as_they_were(self) -> None:
        """The list is the caller's; every request of a snapshot is given the same one."""
        policy, fleet = self.fresh(), list(self.fleet(5))
        for request in self._requests(10):
            policy.select(fleet, request)
            assert fleet == list(self.fleet(5)), "select changed the candidates"

    def test_what_it_needs_is_all_that_it_needs(self) -> None:
        """A request with what ``needs`` names and nothing else can be routed."""
        key = None if self.takes_any_request() else "key"
        fleet = self.fleet(4)
        self._check_choice(self.fresh().select(fleet, self.make_request(key)), fleet)

    # --- the same choice everywhere ---------------------------------------------------------

    def test_a_key_has_the_same_home_in_every_instance(self) -> None:
        """Whatever an instance was asked before, and in whatever order: gateways and clients agree."""
        fleet, keys = self.fleet(5), _keys(200)
        homes = self._homes(self.fresh(), fleet, keys)
        assert self._homes(self.fresh(), fleet, keys) == homes, "another instance chooses otherwise"
        used = self.fresh()
        for request in self._requests(50):
            used.select(self.fleet(3), request)
        again = {key: used.select(fleet, self.make_request(key, 1)).engine_id for key in reversed(keys)}
        assert again == homes, "what an instance was asked before changes the home of a key"

    def test_a_key_has_the_same_home_in_every_process(self) -> None:
        """Python's ``hash`` of text differs from process to process; a key's home must not."""
        requests = [self.make_request(key) for key in _keys(64)]
        fleet = self.fleet(5)
        policy = self.fresh()
        homes = [policy.select(fleet, request).engine_id for request in requests]
        elsewhere = answer_elsewhere(_choices, self.plugin.name, fleet, requests)
        assert elsewhere == homes, "another process chooses otherwise"

    def test_an_instance_has_counters_of_its_own(self) -> None:
        """``select`` depends on the instance's own past and on nothing else: no clock, no chance, no
        counter that models share."""
        if not self.takes_any_request():
            pytest.skip("every request has a key")
        fleet = self.fleet(4)
        requests = [self.make_request(None, number) for number in range(40)]
        policy, one, other = self.fresh(), self.fresh(), self.fresh()
        alone = [policy.select(fleet, request).engine_id for request in requests]
        beside: list[EngineId] = []
        for request in requests:
            beside.append(one.select(fleet, request).engine_id)
            other.select(fleet, request)
        assert beside == alone, "instances of one class disturb each other, or choose by chance"

    # --- fairness ---------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [2, 3, 8])
    def test_equal_replicas_get_an_equal_share(self, size: int) -> None:
        """Of many requests without a key, no replica gets ``fairness`` times another's share."""
        if not self.takes_any_request():
            pytest.skip("every request has a key")
        self._check_shares(self._turns(self.fresh(), self.fleet(size), 100 * size), size)

    @pytest.mark.parametrize("size", [2, 3, 8])
    def test_keys_are_spread_over_the_replicas(self, size: int) -> None:
        """Of many keys, no replica is home to ``fairness`` times as many as another."""
        homes = self._homes(self.fresh(), self.fleet(size), _keys(100 * size))
        self._check_shares(list(homes.values()), size)

    def test_who_stays_is_not_starved_by_who_comes_and_goes(self) -> None:
        """A replica that is there all the time gets requests, however the others change."""
        if not self.takes_any_request():
            pytest.skip("every request has a key")
        whole = self.fleet(4)
        for present in range(1, 2 ** len(whole)):
            part = tuple(one for index, one in enumerate(whole) if present >> index & 1)
            policy = self.fresh()
            served: set[EngineId] = set()
            for number in range(0, 120, 2):
                served.add(policy.select(whole, self.make_request(None, number)).engine_id)
                served.add(policy.select(part, self.make_request(None, number + 1)).engine_id)
            starved = sorted({one.engine_id for one in part} - served)
            names = ", ".join(one.engine_id for one in part)
            assert not starved, f"{starved} got nothing while all and only {names} took turns"

    def test_who_is_busy_is_asked_less(self) -> None:
        """A policy that asks for the load uses it: a replica with far more in flight gets less than its
        share of the requests without a key."""
        if Need.LOAD not in self.plugin.needs:
            pytest.skip("it does not ask for the load")
        if not self.takes_any_request():
            pytest.skip("every request has a key")
        fleet = self.fleet(4)
        for busy in fleet:
            load = ScriptedLoad({busy.engine_id: 1000})
            served = Counter(self._turns(self.fresh(), fleet, 100, load))
            assert served[busy.engine_id] < 100 / len(fleet), (
                f"with 1000 requests in flight, {busy.engine_id} got {served[busy.engine_id]} of 100 more"
            )

    # --- members that change ------------------------------------------------------------------

    def test_who_leaves_takes_only_its_own_keys(self) -> None:
        """When a replica leaves, keys of the others stay, but for ``moved_share``."""
        fleet, keys = self.fleet(8), _keys(400)
        homes = self._homes(self.fresh(), fleet, keys)
        for gone in fleet[::3]:
            left = tuple(one for one in fleet if one is not gone)
            after = self._homes(self.fresh(), left, keys)
            stayed = [key for key in keys if homes[key] != gone.engine_id]
            self._check_moved([key for key in stayed if after[key] != homes[key]], stayed)

    def test_who_joins_takes_its_share_and_no_more(self) -> None:
        """A replica that joins n others takes about 1/(n+1) of the keys; the rest stay, but for
        ``moved_share``."""
        keys = _keys(400)
        whole = self.fleet(8)
        for joins in whole[::3]:
            before = self._homes(self.fresh(), tuple(one for one in whole if one is not joins), keys)
            after = self._homes(self.fresh(), whole, keys)
            taken = [key for key in keys if after[key] == joins.engine_id]
            fair = len(keys) / len(whole)
            assert fair / self.fairness <= len(taken) <= fair * self.fairness, (
                f"{joins.engine_id} joined {len(whole) - 1} others and took {len(taken)} of {len(keys)} keys"
            )
            rest = [key for key in keys if after[key] != joins.engine_id]
            self._check_moved([key for key in rest if after[key] != before[key]], rest)

    def test_a_replica_that_came_back_is_met_at_its_new_address(self) -> None:
        """A restart changes URL and generation: keys keep their replica, and nobody gets the old URL."""
        fleet, keys = self.fleet(5), _keys(200)
        policy = self.fresh()
        homes = self._homes(policy, fleet, keys)
        moved = tuple(evolve(one, base_url=f"{one.base_url}1", generation=2) for one in fleet)
        for key in keys:
            self._check_choice(policy.select(moved, self.make_request(key)), moved)
        after = self._homes(policy, moved, keys)
        self._check_moved([key for key in keys if after[key] != homes[key]], keys)

    def test_a_fleet_may_change_with_every_request(self) -> None:
        """Replicas join, leave and restart between any two requests, down to a single one."""
        policy, chance = self.fresh(), random.Random(7)
        whole = self.fleet(12)
        busiest = 50 if Need.LOAD in self.plugin.needs else 0
        for turn in range(300):
            fleet = tuple(
                evolve(one, generation=chance.randint(1, 9))
                for one in sorted(
                    chance.sample(whole, chance.randint(1, len(whole))), key=lambda one: one.engine_id
                )
            )
            load = ScriptedLoad({one.engine_id: chance.randint(0, busiest) for one in fleet})
            key = f"key-{turn % 7}" if turn % 2 or not self.takes_any_request() else None
            request = evolve(self.make_request(key, turn), load=load)
            self._check_choice(policy.select(fleet, request), fleet)

    # --- shared by the tests ------------------------------------------------------------------

    def _requests(self, count: int) -> list[RoutingRequest]:
        """Return so many requests with a key, and as many without if the policy is asked about those."""
        keyed = [self.make_request(key) for key in _keys(count)]
        if not self.takes_any_request():
            return keyed
        return [*keyed, *(self.make_request(None, number) for number in range(count))]

    def _turns(
        self, policy: RoutingPolicy, fleet: Sequence[Candidate], count: int, load: Load = IDLE
    ) -> list[EngineId]:
        requests = [evolve(self.make_request(None, number), load=load) for number in range(count)]
        return [policy.select(fleet, request).engine_id for request in requests]

    def _homes(
        self, policy: RoutingPolicy, fleet: Sequence[Candidate], keys: Sequence[str]
    ) -> dict[str, EngineId]:
        return {key: policy.select(fleet, self.make_request(key)).engine_id for key in keys}

    def _check_choice(self, choice: Any, fleet: Sequence[Candidate]) -> None:
        assert not inspect.isawaitable(choice), "select is called without await"
        assert choice in fleet, f"{choice!r} is none of the {len(fleet)} candidates"

    def _check_shares(self, served: Sequence[EngineId], size: int) -> None:
        counts = Counter(served)
        assert len(counts) == size, f"{size - len(counts)} of {size} replicas got nothing"
        most, least = max(counts.values()), min(counts.values())
        assert most <= self.fairness * least, (
            f"of {len(served)}, one replica got {most} and another {least};"
            f" allowed is {self.fairness:g} times as many"
        )

    def _check_moved(self, moved: Sequence[str], of: Sequence[str]) -> None:
        assert len(moved) <= self.moved_share * len(of), (
            f"{len(moved)} of {len(of)} keys moved although their replica stayed; "
            f"allowed is {self.moved_share:.0%}"
        )


def _sorted(candidates: Any) -> tuple[Candidate, ...]:
    return tuple(sorted(candidates, key=lambda one: one.engine_id))


def _keys(count: int) -> list[str]:
    return [f"group-{number}" for number in range(count)]


def _choices(name: str, fleet: Sequence[Candidate], requests: Sequence[RoutingRequest]) -> list[EngineId]:
    """What the installed policy of that name chooses; runs in another process."""
    policy = PluginHost.from_environment().load(PluginKind.ROUTING_POLICY, name)()
    return [policy.select(fleet, request).engine_id for request in requests]
