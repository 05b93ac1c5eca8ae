"""RoleTopology: revisions rise with visible changes only, and never lie about a replica."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.discovery.snapshot import ModelState, RouteMode, parse_snapshot
from rolecall.discovery.topology import EngineView, ModelView, RoleTopology, build_routing, new_epoch
from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import SnapshotError
from rolecall.ids import EngineId, RoleName
from rolecall.interfaces.engine_backend import Disaggregation
from rolecall.interfaces.role import WeightSource
from rolecall.testing.snapshots import EPOCH

ROUTING = build_routing(
    served_names={"math": "org/math"}, default_model=None, route_keys={}, aliases={}, policy="turns"
)


def topology() -> RoleTopology:
    return RoleTopology(RoleName("critic"), ROUTING, EPOCH)


def engine(
    index: int = 0, state: ReplicaState = ReplicaState.READY, url: str | None = "", generation: int = 1
) -> EngineView:
    return EngineView(
        engine_id=EngineId(f"math/replica-{index}"),
        base_url=f"http://host:{index + 1}" if url == "" else url,
        state=state,
        generation=generation,
    )


def model(*engines: EngineView, state: ModelState | None = None) -> dict[str, ModelView]:
    return {
        "math": ModelView(
            served_model_name="org/math", weight_source=WeightSource.STATIC, engines=engines, state=state
        )
    }


def test_the_revision_rises_with_a_visible_change_and_only_then() -> None:
    roles = topology()
    first, changed = roles.update(model(engine()))
    assert (first.topology_revision, changed) == (1, True)
    same, changed = roles.update(model(engine()))
    assert same is first
    assert not changed
    second, changed = roles.update(model(engine(state=ReplicaState.DRAINING)))
    assert (second.topology_revision, changed) == (2, True)
    assert second.registry_epoch == first.registry_epoch


def test_a_restart_on_the_same_url_is_a_visible_change() -> None:
    roles = topology()
    before, _ = roles.update(model(engine()))
    after, changed = roles.update(model(engine(generation=2)))
    assert changed
    assert after.etag != before.etag


def test_order_of_replicas_is_no_change() -> None:
    roles = topology()
    roles.update(model(engine(0), engine(1)))
    _, changed = roles.update(model(engine(1), engine(0)))
    assert not changed


@pytest.mark.parametrize("state", ReplicaState)
def test_only_a_ready_replica_with_a_url_is_eligible(state: ReplicaState) -> None:
    snapshot, _ = topology().update(model(engine(state=state), engine(1, state, url=None)))
    with_url, without = snapshot.models["math"].engines
    assert with_url.direct_eligible == (state is ReplicaState.READY)
    assert not without.direct_eligible


@pytest.mark.parametrize("state", [ReplicaState.STARTING, ReplicaState.FAILED, ReplicaState.STOPPING])
def test_a_replica_that_can_not_be_trusted_publishes_no_url(state: ReplicaState) -> None:
    snapshot, _ = topology().update(model(engine(state=state)))
    assert snapshot.models["math"].engines[0].base_url is None


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], ModelState.STARTING),
        (["READY"], ModelState.READY),
        (["FAILED", "READY"], ModelState.READY),
        (["FAILED", "SLEEPING"], ModelState.SLEEPING),
        (["SLEEPING", "ONLOADING"], ModelState.ONLOADING),
        (["SLEEPING", "DRAINING"], ModelState.DRAINING),
        (["FAILED", "FAILED"], ModelState.FAILED),
        (["FAILED", "STOPPING"], ModelState.STOPPING),
    ],
)
def test_a_model_is_as_ready_as_its_readiest_replica(states: list[str], expected: ModelState) -> None:
    engines = [engine(index, ReplicaState(state)) for index, state in enumerate(states)]
    snapshot, _ = topology().update(model(*engines))
    assert snapshot.models["math"].state is expected


def test_a_ready_replica_without_url_does_not_make_its_model_ready() -> None:
    snapshot, _ = topology().update(model(engine(url=None)))
    assert snapshot.models["math"].state is ModelState.STARTING


def test_an_overruled_model_routes_nothing() -> None:
    snapshot, _ = topology().update(model(engine(), state=ModelState.FAILED))
    assert snapshot.models["math"].state is ModelState.FAILED
    assert not snapshot.models["math"].engines[0].direct_eligible


def test_a_replica_that_moves_needs_a_new_generation() -> None:
    roles = topology()
    before, _ = roles.update(model(engine()))
    with pytest.raises(SnapshotError, match="raises the generation"):
        roles.update(model(engine(url="http://elsewhere:1")))
    assert roles.snapshot is before
    _, changed = roles.update(model(engine(url="http://elsewhere:1", generation=2)))
    assert changed


def test_a_generation_never_goes_back() -> None:
    roles = topology()
    roles.update(model(engine(generation=2)))
    with pytest.raises(SnapshotError, match="went back from 2 to 1"):
        roles.update(model(engine(generation=1)))


def test_epochs_are_never_the_same() -> None:
    assert len({new_epoch() for _ in range(100)}) == 100


def test_a_router_is_shown_as_the_models_route() -> None:
    view = ModelView(
        served_model_name="org/math",
        weight_source=WeightSource.ACTOR,
        weight_version="7",
        engines=(engine(),),
        route_mode=RouteMode.SGLANG_ROUTER,
        router_url="http://router:1",
    )
    snapshot, _ = topology().update({"math": view})
    assert snapshot.models["math"].router_url == "http://router:1"
    assert snapshot.models["math"].weight_version == "7"


# --- routing ----------------------------------------------------------------------------


def test_a_single_model_is_the_default_and_answers_to_its_served_name() -> None:
    assert ROUTING.default_model == "math"
    assert ROUTING.aliases == {"org/math": "math"}


def test_a_served_name_that_means_two_models_is_no_alias() -> None:
    routing = build_routing(
        served_names={"a": "same", "b": "same", "c": "a", "d": "own"},
        default_model=None,
        route_keys={},
        aliases={"own": "a"},
        policy="turns",
    )
    assert routing.default_model is None
    assert routing.aliases == {"own": "a"}


# --- any history ------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(ReplicaState), st.integers(0, 2)), min_size=1, max_size=12))
def test_equal_tags_mean_equal_snapshots_through_any_history(steps: list[tuple[ReplicaState, int]]) -> None:
    roles = topology()
    generation = 0
    seen: dict[str, object] = {}
    revision = 0
    for state, rise in steps:
        generation += rise
        snapshot, changed = roles.update(model(engine(state=state, generation=generation)))
        assert parse_snapshot(snapshot.to_dict()) == snapshot
        assert snapshot.topology_revision == revision + changed
        revision = snapshot.topology_revision
        assert seen.setdefault(snapshot.etag, snapshot) == snapshot


# --- behind a router --------------------------------------------------------------------


def routed(*engines: EngineView) -> dict[str, ModelView]:
    view = model(*engines)["math"]
    return {"math": evolve(view, route_mode=RouteMode.SGLANG_ROUTER, router_url="http://router:1")}


def test_a_replica_that_the_router_does_not_know_yet_is_not_routable() -> None:
    roles = topology()
    known, unknown = engine(0), evolve(engine(1), reached=False)
    shown = roles.update(routed(known, unknown))[0].models["math"]
    assert shown.state is ModelState.READY
    assert [entry.direct_eligible for entry in shown.engines] == [True, False]
    assert roles.update(routed(unknown))[0].models["math"].state is ModelState.STARTING
    assert parse_snapshot(roles.snapshot.to_dict() if roles.snapshot else None) == roles.snapshot


@pytest.mark.parametrize(
    ("prefill", "decode", "state"),
    [
        ([ReplicaState.READY], [ReplicaState.READY], ModelState.READY),
        ([ReplicaState.READY, ReplicaState.FAILED], [ReplicaState.READY], ModelState.READY),
        ([ReplicaState.READY], [ReplicaState.STARTING], ModelState.STARTING),
        ([ReplicaState.FAILED], [ReplicaState.READY, ReplicaState.READY], ModelState.FAILED),
        ([ReplicaState.SLEEPING], [ReplicaState.SLEEPING], ModelState.SLEEPING),
        ([ReplicaState.READY], [], ModelState.STARTING),
    ],
)
def test_halves_are_never_shown_and_the_model_is_ready_with_one_of_each(
    prefill: list[ReplicaState], decode: list[ReplicaState], state: ModelState
) -> None:
    halves = [
        *((Disaggregation.PREFILL, each) for each in prefill),
        *((Disaggregation.DECODE, each) for each in decode),
    ]
    engines = [evolve(engine(index, each), half=half) for index, (half, each) in enumerate(halves)]
    shown = topology().update(routed(*engines))[0].models["math"]
    assert shown.engines == ()
    assert shown.state is state
