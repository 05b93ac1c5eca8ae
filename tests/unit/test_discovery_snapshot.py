"""Schema 2: what is accepted comes back unchanged; what is refused names the field."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.discovery.snapshot import (
    EngineEntry,
    ModelEntry,
    ModelState,
    RouteMode,
    Routing,
    Snapshot,
    decode_snapshot,
    parse_snapshot,
)
from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import SnapshotError
from rolecall.ids import EngineId
from rolecall.interfaces.role import WeightSource

SPEC_EXAMPLE: dict[str, Any] = {
    "schema_version": 2,
    "role": "teacher",
    "registry_epoch": "3b241101-e2bb-4255-8caf-4136c566a962",
    "topology_revision": 3,
    "routing": {
        "default_model": "math",
        "route_key_map": {"math-data": "math"},
        "aliases": {"teacher-checkpoint": "math"},
        "policy": "round_robin",
        "policy_revision": 0,
    },
    "models": {
        "math": {
            "state": "READY",
            "route_mode": "DIRECT",
            "router_url": None,
            "weight_source": "STATIC",
            "weight_version": None,
            "served_model_name": "Qwen/Qwen3-0.6B",
            "engines": [
                {
                    "engine_id": "math/replica-0",
                    "base_url": "http://head:8000",
                    "state": "READY",
                    "direct_eligible": True,
                    "generation": 1,
                }
            ],
        }
    },
}


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The example with one value replaced (``...`` removes it)."""
    result = copy.deepcopy(SPEC_EXAMPLE)
    part: Any = result
    for step in path[:-1]:
        part = part[step]
    if value is ...:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return result


def test_the_specs_example_is_read_and_written_unchanged() -> None:
    snapshot = parse_snapshot(SPEC_EXAMPLE)
    assert snapshot.to_dict() == SPEC_EXAMPLE
    assert snapshot.etag == "3b241101-e2bb-4255-8caf-4136c566a962:3"
    assert snapshot.models["math"].engines[0].state is ReplicaState.READY


ENGINE = ("models", "math", "engines", 0)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("schema_version",), 1, "schema_version"),
        (("schema_version",), True, "schema_version"),
        (("schema_version",), 2.0, "schema_version"),
        (("role",), ..., "role: is missing"),
        (("surplus",), 1, "surplus: is not a field"),
        (("role",), " teacher", "role"),
        (("role",), "", "role"),
        (("role",), "a\nb", "role"),
        (("registry_epoch",), "epoch-1", "registry_epoch"),
        (("registry_epoch",), "3B241101-E2BB-4255-8CAF-4136C566A962", "registry_epoch"),
        (("topology_revision",), True, "topology_revision"),
        (("topology_revision",), "3", "topology_revision"),
        (("topology_revision",), -1, "topology_revision"),
        (("topology_revision",), 3.0, "topology_revision"),
        (("routing",), [], "routing: must be an object"),
        (("routing", "policy"), None, "routing.policy"),
        (("routing", "policy_revision"), False, "routing.policy_revision"),
        (("routing", "default_model"), "poetry", "routing.default_model"),
        (("routing", "aliases"), {"math": "math"}, "routing.aliases.math: shadows"),
        (("routing", "aliases"), {"a": "poetry"}, "routing.aliases.a"),
        (("routing", "aliases"), {"a": 1}, "routing.aliases.a: must be text"),
        (("routing", "aliases"), {" a": "math"}, "routing.aliases key"),
        (("routing", "route_key_map"), {"x.y": "poetry"}, 'routing.route_key_map["x.y"]'),
        (("routing", "route_key_map"), [["x", "math"]], "routing.route_key_map: must be an object"),
        (("models",), [], "models: must be an object"),
        (("models", "math"), None, "models.math: must be an object"),
        (("models", "math", "state"), "ready", "models.math.state"),
        (("models", "math", "state"), 1, "models.math.state"),
        (("models", "math", "route_mode"), "ROUTER", "models.math.route_mode"),
        (("models", "math", "router_url"), "http://router:1", "models.math.router_url"),
        (("models", "math", "router_url"), ..., "models.math.router_url: is missing"),
        (("models", "math", "weight_version"), "7", "models.math.weight_version: must be null"),
        (("models", "math", "weight_source"), "DISK", "models.math.weight_source"),
        (("models", "math", "served_model_name"), "x ", "models.math.served_model_name"),
        (("models", "math", "engines"), {}, "models.math.engines: must be a list"),
        (("models", "math", "engines"), "", "models.math.engines: must be a list"),
        ((*ENGINE, "engine_id"), 5, "models.math.engines[0].engine_id"),
        ((*ENGINE, "pid"), 5, "models.math.engines[0].pid: is not a field"),
        ((*ENGINE, "generation"), True, "models.math.engines[0].generation"),
        ((*ENGINE, "direct_eligible"), 1, "models.math.engines[0].direct_eligible"),
        ((*ENGINE, "base_url"), None, "models.math.engines[0].direct_eligible"),
        ((*ENGINE, "state"), "SLEEPING", "models.math.engines[0].direct_eligible"),
        ((*ENGINE, "state"), "UNKNOWN", "models.math.engines[0].state"),
        (ENGINE, None, "models.math.engines[0]: must be an object"),
    ],
)
def test_a_wrong_field_is_refused_by_its_path(path: tuple[Any, ...], value: Any, named: str) -> None:
    with pytest.raises(SnapshotError) as refusal:
        parse_snapshot(changed(path, value))
    assert str(refusal.value).startswith(named)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@head:1",
        "http://user@head:1",
        "http://head:1?x=1",
        "http://head:1?",
        "http://head:1#here",
        "http://head:1/",
        "http://head:port",
        "http://head:0",
        "http://head:99999",
        "http://head:",
        "http://:1",
        "http:///generate",
        "ftp://head:1",
        "head:1",
        "//head:1",
        " http://head:1",
        "http://head:1\n",
        "http://he ad:1",
        "http://[::1",
        "",
    ],
)
def test_a_url_that_is_more_or_less_than_an_address_is_refused(url: str) -> None:
    with pytest.raises(SnapshotError) as refusal:
        parse_snapshot(changed((*ENGINE, "base_url"), url))
    assert str(refusal.value).startswith("models.math.engines[0].base_url")
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1:8000", "https://[::1]:8000", "http://host", "http://h:1/engine"]
)
def test_an_address_is_accepted(url: str) -> None:
    assert parse_snapshot(changed((*ENGINE, "base_url"), url)).models["math"].engines[0].base_url == url


def test_one_engine_id_stands_once_in_all_models() -> None:
    value = copy.deepcopy(SPEC_EXAMPLE)
    value["models"]["code"] = copy.deepcopy(value["models"]["math"])
    with pytest.raises(
        SnapshotError, match=r"models\.code\.engines\[0\]\.engine_id: .* models\.math\.engines\[0\]"
    ):
        parse_snapshot(value)


def test_a_failed_replica_shows_no_url() -> None:
    value = changed((*ENGINE, "state"), "FAILED")
    value["models"]["math"]["engines"][0]["direct_eligible"] = False
    with pytest.raises(SnapshotError, match=r"models\.math\.engines\[0\]\.base_url: must be null"):
        parse_snapshot(value)


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{", '{"a": 1, "a": 2}', "[" * 100_000, b"\xff", '"' + "x" * 10],
    ids=["empty", "null", "list", "torn", "key twice", "deep", "no UTF-8", "torn text"],
)
def test_text_that_is_no_snapshot_is_refused(text: str | bytes) -> None:
    with pytest.raises(SnapshotError):
        decode_snapshot(text)


def test_values_are_checked_when_they_are_made_too() -> None:
    with pytest.raises(SnapshotError, match="generation"):
        EngineEntry(
            engine_id=EngineId("m/replica-0"),
            base_url=None,
            state=ReplicaState.SLEEPING,
            direct_eligible=False,
            generation=True,
        )


# --- any snapshot -----------------------------------------------------------------------

names = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=12)
revisions = st.integers(0, 2**53)


@st.composite
def models(draw: st.DrawFn, name: str) -> ModelEntry:
    engines: list[EngineEntry] = []
    for index in range(draw(st.integers(0, 3))):
        state = draw(st.sampled_from(ReplicaState))
        url = None if state is ReplicaState.FAILED else draw(st.sampled_from([None, f"http://h:{index + 1}"]))
        ready = state is ReplicaState.READY and url is not None
        engines.append(
            EngineEntry(
                engine_id=EngineId(f"{name}/replica-{index}"),
                base_url=url,
                state=state,
                direct_eligible=ready and draw(st.booleans()),
                generation=draw(revisions),
            )
        )
    source = draw(st.sampled_from(WeightSource))
    mode = draw(st.sampled_from(RouteMode))
    return ModelEntry(
        state=draw(st.sampled_from(ModelState)),
        route_mode=mode,
        router_url=draw(st.sampled_from([None, "http://r:1"])) if mode is RouteMode.SGLANG_ROUTER else None,
        weight_source=source,
        weight_version=None if source is WeightSource.STATIC else draw(st.none() | names),
        served_model_name=draw(names),
        engines=tuple(engines),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    ids = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    targets = st.sampled_from(ids)
    return Snapshot(
        role=draw(names),
        registry_epoch=str(draw(st.uuids())),
        topology_revision=draw(revisions),
        routing=Routing(
            default_model=draw(st.none() | targets),
            route_key_map=draw(st.dictionaries(names, targets, max_size=3)),
            aliases=draw(st.dictionaries(names.filter(lambda name: name not in ids), targets, max_size=3)),
            policy=draw(names),
            policy_revision=draw(revisions),
        ),
        models={name: draw(models(name)) for name in ids},
    )


@settings(max_examples=20)
@given(snapshots())
def test_every_snapshot_survives_the_wire(snapshot: Snapshot) -> None:
    assert decode_snapshot(snapshot.to_json()) == snapshot


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside a JSON value."""
    steps = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    return [path for key, part in steps for path in ((*here, key), *places(part, (*here, key)))]


@settings(max_examples=80)
@given(st.sampled_from(places(SPEC_EXAMPLE)), json_values)
def test_any_value_anywhere_is_refused_or_accepted_as_it_is(path: tuple[Any, ...], value: Any) -> None:
    candidate = changed(path, value)
    try:
        snapshot = parse_snapshot(candidate)
    except SnapshotError:
        return
    assert json.dumps(snapshot.to_dict(), sort_keys=True) == json.dumps(candidate, sort_keys=True)
