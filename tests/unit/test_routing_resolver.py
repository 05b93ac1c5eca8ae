"""The resolver: selectors, readiness and policies, in the order of the contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from attrs import evolve

from rolecall.api import (
    ROLECALL_API,
    Candidate,
    ModelUnavailableError,
    Need,
    PayloadError,
    RoutingRequest,
)
from rolecall.discovery.registry import Registry
from rolecall.discovery.snapshot import Snapshot
from rolecall.discovery.source import SnapshotSource
from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import PluginContractError, RegistryUnavailableError
from rolecall.routing.fresh import resolve_fresh
from rolecall.routing.resolver import RouteResolver, routable, select_model
from rolecall.routing.standing import is_routable
from rolecall.testing.snapshots import OTHER_EPOCH, model_entry, snapshot_of

MATH = model_entry("math", ["http://h:1", "http://h:2", "http://h:3"])
CODE = model_entry("code", ["http://h:4"])


class Turns:
    """Takes turns; keeps what it was asked."""

    name: ClassVar[str] = "turns"
    api_version: ClassVar[int] = ROLECALL_API
    needs: ClassVar[frozenset[Need]] = frozenset()
    router: ClassVar[None] = None

    def __init__(self) -> None:
        self.count = 0

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate:
        self.count += 1
        return candidates[(self.count - 1) % len(candidates)]


class Keyed(Turns):
    name: ClassVar[str] = "keyed"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.AFFINITY_KEY})
    router: ClassVar[None] = None


class Rogue(Turns):
    name: ClassVar[str] = "rogue"

    def select(self, candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate:
        return evolve(candidates[0], base_url="http://elsewhere:1")


def snapshot(**changes: Any) -> Snapshot:
    values: dict[str, Any] = {
        "policy": "turns",
        "default_model": "math",
        "route_keys": {"code-data": "code"},
        "aliases": {"org/code": "code"},
    }
    return snapshot_of({"math": MATH, "code": CODE}, **{**values, **changes})


@pytest.mark.parametrize(
    ("selectors", "model"),
    [
        ({}, "math"),
        ({"model": "code"}, "code"),
        ({"model": "org/code"}, "code"),
        ({"route_key": "code-data"}, "code"),
        ({"model": "math", "route_key": "code-data"}, "math"),
        ({"model": "org/code", "route_key": "code-data"}, "code"),
    ],
)
def test_a_model_wins_over_a_route_key_over_the_default(selectors: dict[str, Any], model: str) -> None:
    target = RouteResolver(Turns).resolve(snapshot(), **selectors)
    assert target.model == model
    assert target.served_model_name == f"served/{model}"


@pytest.mark.parametrize(
    ("selectors", "field", "said"),
    [
        ({"model": ""}, "model", "non-empty"),
        ({"model": 5}, "model", "non-empty"),
        ({"model": ["math"]}, "model", "non-empty"),
        ({"route_key": ""}, "route_key", "non-empty"),
        ({"model": "math", "route_key": ""}, "route_key", "non-empty"),
        ({"model": "maths"}, "model", "did you mean 'math'"),
        ({"model": "math "}, "model", "unknown"),
        ({"route_key": "poetry"}, "route_key", "unknown"),
        ({"route_key": "math"}, "route_key", "unknown"),
        ({"model": "math", "route_key": "nonsense"}, "route_key", "knows: code-data"),
        ({"model": "maths", "route_key": "nonsense"}, "model", "did you mean 'math'"),
    ],
)
def test_a_wrong_selector_is_the_callers_fault(selectors: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(PayloadError, match=said) as refusal:
        RouteResolver(Turns).resolve(snapshot(), **selectors)
    assert refusal.value.field == field


def test_without_a_default_a_request_names_its_model() -> None:
    two = snapshot_of({"math": MATH, "code": CODE}, policy="turns")
    with pytest.raises(PayloadError, match="models: math, code") as refusal:
        select_model(two)
    assert refusal.value.field == "model"


@pytest.mark.parametrize("state", [state for state in ReplicaState if state is not ReplicaState.READY])
def test_a_model_that_is_not_ready_is_unavailable(state: ReplicaState) -> None:
    entry = model_entry("math", ["http://h:1"], state=state)
    with pytest.raises(ModelUnavailableError, match=state):
        RouteResolver(Turns).resolve(snapshot_of({"math": entry}, policy="turns"))
    assert not routable(entry)


def test_only_eligible_replicas_are_candidates_and_they_are_sorted() -> None:
    mixed = evolve(
        MATH,
        engines=(
            MATH.engines[2],
            evolve(MATH.engines[1], direct_eligible=False),
            evolve(MATH.engines[0], state=ReplicaState.DRAINING, direct_eligible=False),
        ),
    )
    resolver = RouteResolver(Turns)
    shown = snapshot_of({"math": mixed}, policy="turns")
    assert {resolver.resolve(shown).engine_id for _ in range(5)} == {"math/replica-2"}
    resolver = RouteResolver(Turns)
    in_order = [resolver.resolve(snapshot_of({"math": MATH}, policy="turns")).base_url for _ in range(4)]
    assert in_order == ["http://h:1", "http://h:2", "http://h:3", "http://h:1"]


def test_no_eligible_replica_is_unavailable() -> None:
    entry = evolve(MATH, engines=tuple(evolve(engine, direct_eligible=False) for engine in MATH.engines))
    with pytest.raises(ModelUnavailableError, match="no replica"):
        RouteResolver(Turns).resolve(snapshot_of({"math": entry}, policy="turns"))
    assert not routable(entry)


def test_a_router_takes_every_request_whatever_the_policy_needs() -> None:
    entry = model_entry("math", ["http://worker:1"], router_url="http://router:1")
    target = RouteResolver(Keyed).resolve(snapshot_of({"math": entry}, policy="keyed"))
    assert (target.base_url, target.engine_id, target.generation) == ("http://router:1", None, None)
    assert routable(entry)


def test_a_policy_that_needs_a_key_refuses_a_request_without_even_while_asleep() -> None:
    entry = model_entry("math", ["http://h:1"], state=ReplicaState.SLEEPING)
    asleep = snapshot_of({"math": entry}, policy="keyed")
    with pytest.raises(PayloadError, match="affinity key") as refusal:
        RouteResolver(Keyed).resolve(asleep)
    assert refusal.value.field == "X-SMG-Routing-Key"
    with pytest.raises(ModelUnavailableError):
        RouteResolver(Keyed).resolve(asleep, affinity_key="a")


def test_a_turn_is_counted_per_model_and_starts_anew_with_an_epoch() -> None:
    resolver = RouteResolver(Turns)
    first = [resolver.resolve(snapshot(), model=name).engine_id for name in ("math", "code", "math")]
    assert first == ["math/replica-0", "code/replica-0", "math/replica-1"]
    later = snapshot(revision=2)
    assert resolver.resolve(later).engine_id == "math/replica-2"
    reborn = snapshot(epoch=OTHER_EPOCH)
    assert resolver.resolve(reborn).engine_id == "math/replica-0"


def test_a_client_with_another_policy_than_the_role_is_told() -> None:
    with pytest.raises(PluginContractError, match=r"'turns'.*'keyed'"):
        RouteResolver(Keyed).resolve(snapshot(), affinity_key="a")


def test_a_policy_may_only_choose_a_candidate() -> None:
    with pytest.raises(PluginContractError, match="no candidate"):
        RouteResolver(Rogue).resolve(snapshot(policy="rogue"))


# --- against a live source --------------------------------------------------------------


class Reads:
    """A registry that changes after the first read."""

    def __init__(self, *snapshots: Snapshot) -> None:
        self.registry = Registry()
        self.left = list(snapshots)
        self.count = 0

    async def read(self, etag: str | None, wait_s: float) -> Any:
        self.count += 1
        if self.left:
            self.registry.publish("critic", self.left.pop(0).to_json())
        return await self.registry.read("critic", etag, wait_s)

    async def aclose(self) -> None: ...


ASLEEP = snapshot_of({"m": model_entry("m", ["http://h:1"], state=ReplicaState.SLEEPING)}, policy="turns")
AWAKE = snapshot_of({"m": model_entry("m", ["http://h:1"])}, policy="turns", revision=2)


async def test_an_unavailable_model_is_looked_up_once_more() -> None:
    reads = Reads(ASLEEP, AWAKE)
    target = await resolve_fresh(RouteResolver(Turns), SnapshotSource(reads))
    assert target.base_url == "http://h:1"
    assert reads.count == 2


async def test_once_more_and_not_again() -> None:
    reads = Reads(ASLEEP)
    with pytest.raises(ModelUnavailableError, match="SLEEPING"):
        await resolve_fresh(RouteResolver(Turns), SnapshotSource(reads))
    assert reads.count == 2


async def test_a_wrong_request_refreshes_nothing() -> None:
    reads = Reads(AWAKE)
    with pytest.raises(PayloadError):
        await resolve_fresh(RouteResolver(Turns), SnapshotSource(reads), model="other")
    assert reads.count == 1


async def test_without_a_registry_nothing_resolves() -> None:
    reads = Reads()
    with pytest.raises(RegistryUnavailableError):
        await resolve_fresh(RouteResolver(Turns), SnapshotSource(reads))
    assert reads.count == 1


def test_a_target_stands_as_long_as_its_incarnation() -> None:
    shown = snapshot()
    target = RouteResolver(Turns).resolve(shown)
    assert is_routable(None, target)
    assert is_routable(shown, target)
    restarted = snapshot_of({"math": model_entry("math", ["http://h:1"], generation=2)}, policy="turns")
    assert not is_routable(restarted, target)
    assert not is_routable(snapshot_of({"code": CODE}, policy="turns"), target)
    routed = snapshot_of({"math": model_entry("math", router_url="http://router:1")}, policy="turns")
    assert is_routable(routed, RouteResolver(Turns).resolve(routed))
