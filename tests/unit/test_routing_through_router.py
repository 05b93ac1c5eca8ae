"""Requests to a model's router: what it would lose is refused, and who may be at work behind it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from rolecall.errors import PayloadError
from rolecall.interfaces.routing_policy import Need
from rolecall.routing.resolver import RouteResolver, Target
from rolecall.routing.through_router import check_fields, engines_behind
from rolecall.testing.fake_router import FakeRouterBackend
from rolecall.testing.snapshots import model_entry, snapshot_of


class Routed:
    name: ClassVar[str] = "routed"
    api_version: ClassVar[int] = 1
    needs: ClassVar[frozenset[Need]] = frozenset()
    router: ClassVar[Any] = FakeRouterBackend

    def select(self, candidates: Any, request: Any) -> Any:
        raise AssertionError("the router chooses")


class RidLoser(FakeRouterBackend):
    def lost_fields(self, path: str, payload: Any) -> tuple[str, ...]:
        return ("rid", *super().lost_fields(path, payload))


class RoutedWithoutIds(Routed):
    router: ClassVar[Any] = RidLoser


HEADS = ["http://a:1", "http://b:1"]
BEHIND = snapshot_of({"m": model_entry("m", HEADS, router_url="http://router:1")}, policy="routed")


def resolved() -> Target:
    return RouteResolver(Routed).resolve(BEHIND)


def test_what_the_router_loses_is_refused_by_name() -> None:
    assert resolved().base_url == "http://router:1"
    assert check_fields(Routed, resolved(), "/generate", {"rid": "r", "text": "x"})
    with pytest.raises(PayloadError, match=r"lost: the router of model 'm' \(routing policy 'routed'\)") as e:
        check_fields(Routed, resolved(), "/generate", {"lost": 1})
    assert e.value.field == "lost"


def test_an_id_alone_may_be_lost_and_is_told() -> None:
    assert not check_fields(RoutedWithoutIds, resolved(), "/generate", {"text": "x"})
    with pytest.raises(PayloadError, match=r"^lost:"):
        check_fields(RoutedWithoutIds, resolved(), "/generate", {"lost": 1})


def test_an_engine_that_is_asked_itself_gets_everything() -> None:
    direct = snapshot_of({"m": model_entry("m", HEADS[:1])}, policy="routed")
    entry = direct.models["m"].engines[0]
    target = Target(
        model="m",
        served_model_name="m",
        base_url=HEADS[0],
        engine_id=entry.engine_id,
        generation=entry.generation,
    )
    assert check_fields(Routed, target, "/generate", {"lost": 1})
    assert engines_behind(BEHIND, target) == (HEADS[0],)
    assert engines_behind(None, target) == (HEADS[0],)


def test_behind_a_router_are_the_heads_that_discovery_shows_now() -> None:
    target = resolved()
    assert engines_behind(BEHIND, target) == tuple(HEADS)
    pairs = snapshot_of({"m": model_entry("m", [], router_url="http://router:1")}, policy="routed")
    assert engines_behind(pairs, target) == ()
    assert engines_behind(None, target) == ()
    other = snapshot_of({"other": model_entry("other", HEADS)}, policy="routed")
    assert engines_behind(other, target) == ()
