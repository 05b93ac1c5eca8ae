"""Snapshot, schema 2: where a role's requests may go now.

A snapshot is the routing truth of one role, not a diagnosis of its workers: one entry a logical
replica (its head), never a follower or the worker of a prefill/decode pair. Managers build it
(:mod:`rolecall.discovery.topology`), the registry hands it on as JSON, gateways and direct clients
parse it. It holds no clock, no connection and no policy.

Both ends are strict. Every value is checked when it is made, and :func:`parse_snapshot` also refuses
unknown and missing fields; each :class:`~rolecall.errors.SnapshotError` starts with the path of the
field: ``models.math.engines[0].base_url: …``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit
from uuid import UUID

from attrs import field, frozen

from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import SnapshotError
from rolecall.ids import EngineId
from rolecall.interfaces.role import WeightSource

SCHEMA_VERSION = 2


class ModelState(StrEnum):
    """State of a model as a whole. Routable only in READY.

    UNKNOWN belongs to a registry that was invalidated: nothing is known, so nothing is routed.
    """

    STARTING = "STARTING"
    READY = "READY"
    DRAINING = "DRAINING"
    SLEEPING = "SLEEPING"
    ONLOADING = "ONLOADING"
    FAILED = "FAILED"
    STOPPING = "STOPPING"
    UNKNOWN = "UNKNOWN"


class RouteMode(StrEnum):
    """DIRECT: a policy picks a head. SGLANG_ROUTER: every request goes to the model's router."""

    DIRECT = "DIRECT"
    SGLANG_ROUTER = "SGLANG_ROUTER"


# --- checks of single values ------------------------------------------------------------


def _text(_: object, attribute: Any, value: object) -> None:
    _check_text(attribute.name, value)


def _optional_text(_: object, attribute: Any, value: object) -> None:
    if value is not None:
        _check_text(attribute.name, value)


def _check_text(path: str, value: object) -> None:
    if not isinstance(value, str):
        raise SnapshotError(f"{path}: must be text, found {_shown(value)}")
    if not value or value != value.strip() or not value.isprintable():
        raise SnapshotError(
            f"{path}: must be text without blanks around it or control characters, found {value!r}"
        )


def _at_least(least: int) -> Callable[[object, Any, object], None]:
    def check(_: object, attribute: Any, value: object) -> None:
        # bool is a subclass of int, but true is not a number in JSON.
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SnapshotError(f"{attribute.name}: must be an integer from {least}, found {_shown(value)}")

    return check


def _flag(_: object, attribute: Any, value: object) -> None:
    if not isinstance(value, bool):
        raise SnapshotError(f"{attribute.name}: must be true or false, found {_shown(value)}")


def _uuid(_: object, attribute: Any, value: object) -> None:
    try:
        canonical = isinstance(value, str) and str(UUID(value)) == value
    except ValueError:
        canonical = False
    if not canonical:
        raise SnapshotError(f"{attribute.name}: must be a UUID in lower case, found {_shown(value)}")


def _optional_url(_: object, attribute: Any, value: object) -> None:
    if value is None:
        return
    _check_text(attribute.name, value)
    url = cast(str, value)
    if "@" in url:
        # The value stays out of the message: messages end up in logs.
        raise SnapshotError(f"{attribute.name}: must carry no credentials")
    problem = _url_problem(url)
    if problem:
        raise SnapshotError(f"{attribute.name}: {problem}, found {url!r}")


_URL_CHARACTERS = re.compile(r"[!-~]+")


def _url_problem(url: str) -> str | None:
    if not _URL_CHARACTERS.fullmatch(url):
        return "must be printable ASCII without blanks"
    if "?" in url or "#" in url:
        return "must have no query and no fragment"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"is no URL ({error})"
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return "must be http:// or https:// with a host"
    if port == 0 or parts.netloc.endswith(":"):
        return "must name a real port or none"
    if url.endswith("/"):
        return "must not end with a slash"
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- values -----------------------------------------------------------------------------


@frozen(kw_only=True)
class EngineEntry:
    """One logical replica, shown by its head.

    generation: raised by every change of worker or endpoint, so a restart on the old URL shows.
    direct_eligible: may be picked by a policy; false unless READY and reachable.
    """

    engine_id: EngineId = field(validator=_text)
    base_url: str | None = field(validator=_optional_url)
    state: ReplicaState
    direct_eligible: bool = field(validator=_flag)
    generation: int = field(validator=_at_least(0))

    def __attrs_post_init__(self) -> None:
        if self.direct_eligible and (self.state is not ReplicaState.READY or self.base_url is None):
            raise SnapshotError(
                f"direct_eligible: only a READY replica with a base_url may be, this one is {self.state}"
            )
        if self.state is ReplicaState.FAILED and self.base_url is not None:
            raise SnapshotError("base_url: must be null while the replica is FAILED")


@frozen(kw_only=True)
class ModelEntry:
    """One logical model and its replicas."""

    state: ModelState
    route_mode: RouteMode
    router_url: str | None = field(validator=_optional_url)
    weight_source: WeightSource
    weight_version: str | None = field(validator=_optional_text)
    served_model_name: str = field(validator=_text)
    engines: tuple[EngineEntry, ...]

    def __attrs_post_init__(self) -> None:
        if self.weight_source is WeightSource.STATIC and self.weight_version is not None:
            raise SnapshotError("weight_version: must be null for STATIC weights, which never change")
        if self.route_mode is RouteMode.DIRECT and self.router_url is not None:
            raise SnapshotError("router_url: must be null in DIRECT mode")


@frozen(kw_only=True)
class Routing:
    """How a request finds its model, and which policy picks the replica.

    default_model: for requests that name neither model nor route key; None refuses them.
    route_key_map: route key → model.
    aliases: further names → model; none of them is itself a model.
    policy: name of the routing policy; policy_revision rises when its settings change.
    """

    default_model: str | None = field(validator=_optional_text)
    route_key_map: Mapping[str, str]
    aliases: Mapping[str, str]
    policy: str = field(validator=_text)
    policy_revision: int = field(default=0, validator=_at_least(0))

    def __attrs_post_init__(self) -> None:
        for name in ("route_key_map", "aliases"):
            for key, target in cast("Mapping[object, object]", getattr(self, name)).items():
                _check_text(f"{name} key", key)
                _check_text(f"{name}{_step(cast(str, key))}", target)


@frozen(kw_only=True)
class Snapshot:
    """The whole of one role at one moment.

    registry_epoch: one manager incarnation; revisions of different epochs don't compare.
    topology_revision: rises with every visible change within an epoch.
    """

    role: str = field(validator=_text)
    registry_epoch: str = field(validator=_uuid)
    topology_revision: int = field(validator=_at_least(0))
    routing: Routing
    models: Mapping[str, ModelEntry]

    def __attrs_post_init__(self) -> None:
        _check_engines_unique(self.models)
        routing = self.routing
        for alias in routing.aliases:
            if alias in self.models:
                raise SnapshotError(f"routing.aliases{_step(alias)}: shadows the model of that name")
        targets = {f"routing.aliases{_step(key)}": model for key, model in routing.aliases.items()}
        targets |= {f"routing.route_key_map{_step(key)}": m for key, m in routing.route_key_map.items()}
        if routing.default_model is not None:
            targets["routing.default_model"] = routing.default_model
        for path, model in targets.items():
            if model not in self.models:
                known = ", ".join(self.models) or "none"
                raise SnapshotError(f"{path}: there is no model {model!r}; models: {known}")

    @property
    def etag(self) -> str:
        """``epoch:revision``, without the quotes that HTTP puts around it."""
        return f"{self.registry_epoch}:{self.topology_revision}"

    def to_json(self) -> str:
        """Return schema 2 as JSON text; :func:`decode_snapshot` reverses it."""
        return json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":"))

    def to_dict(self) -> dict[str, Any]:
        """Return schema 2 as plain JSON values; :func:`parse_snapshot` reverses it."""
        routing = self.routing
        return {
            "schema_version": SCHEMA_VERSION,
            "role": self.role,
            "registry_epoch": self.registry_epoch,
            "topology_revision": self.topology_revision,
            "routing": {
                "default_model": routing.default_model,
                "route_key_map": dict(routing.route_key_map),
                "aliases": dict(routing.aliases),
                "policy": routing.policy,
                "policy_revision": routing.policy_revision,
            },
            "models": {
                name: {
                    "state": model.state.value,
                    "route_mode": model.route_mode.value,
                    "router_url": model.router_url,
                    "weight_source": model.weight_source.value,
                    "weight_version": model.weight_version,
                    "served_model_name": model.served_model_name,
                    "engines": [
                        {
                            "engine_id": engine.engine_id,
                            "base_url": engine.base_url,
                            "state": engine.state.value,
                            "direct_eligible": engine.direct_eligible,
                            "generation": engine.generation,
                        }
                        for engine in model.engines
                    ],
                }
                for name, model in self.models.items()
            },
        }


def _check_engines_unique(models: Mapping[str, ModelEntry]) -> None:
    seen: dict[str, str] = {}
    for name, model in models.items():
        for index, engine in enumerate(model.engines):
            path = f"models{_step(name)}.engines[{index}].engine_id"
            first = seen.setdefault(engine.engine_id, path)
            if first != path:
                raise SnapshotError(f"{path}: {engine.engine_id!r} is already at {first}")


# --- parsing ----------------------------------------------------------------------------

_T = TypeVar("_T")
_E = TypeVar("_E", bound=StrEnum)


def decode_snapshot(text: str | bytes) -> Snapshot:
    """Parse JSON text as schema 2.

    Raises:
        SnapshotError: not JSON, a key twice in one object, or anything :func:`parse_snapshot` refuses.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object_without_repeats)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"the snapshot is not JSON: {error}") from error
    return parse_snapshot(value)


def parse_snapshot(value: object) -> Snapshot:
    """Check parsed JSON as schema 2 and return it as values.

    Raises:
        SnapshotError: names the path of the first field that is wrong.
    """
    names = ("schema_version", "role", "registry_epoch", "topology_revision", "routing", "models")
    if not isinstance(value, Mapping):
        raise SnapshotError(f"the snapshot must be an object, found {_shown(value)}")
    fields = _fields(cast(object, value), names)
    version = fields.pop("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise SnapshotError(f"schema_version: must be {SCHEMA_VERSION}, found {_shown(version)}")
    fields["routing"] = _at("routing", _parse_routing, fields["routing"])
    fields["models"] = {
        _model_name(name): _at(f"models{_step(name)}", _parse_model, model)
        for name, model in _at("models", _mapping, fields["models"]).items()
    }
    return Snapshot(**fields)


def _parse_routing(value: object) -> Routing:
    fields = _fields(value, ("default_model", "route_key_map", "aliases", "policy", "policy_revision"))
    for name in ("route_key_map", "aliases"):
        fields[name] = _at(name, _mapping, fields[name])
    return Routing(**fields)


def _parse_model(value: object) -> ModelEntry:
    names = ("state", "route_mode", "router_url", "weight_source", "weight_version", "served_model_name")
    fields = _fields(value, (*names, "engines"))
    fields["state"] = _choice("state", ModelState, fields["state"])
    fields["route_mode"] = _choice("route_mode", RouteMode, fields["route_mode"])
    fields["weight_source"] = _choice("weight_source", WeightSource, fields["weight_source"])
    engines = fields["engines"]
    if not isinstance(engines, Sequence) or isinstance(engines, str | bytes):
        raise SnapshotError(f"engines: must be a list, found {_shown(engines)}")
    fields["engines"] = tuple(
        _at(f"engines[{index}]", _parse_engine, engine) for index, engine in enumerate(engines)
    )
    return ModelEntry(**fields)


def _parse_engine(value: object) -> EngineEntry:
    fields = _fields(value, ("engine_id", "base_url", "state", "direct_eligible", "generation"))
    fields["state"] = _choice("state", ReplicaState, fields["state"])
    return EngineEntry(**fields)


def _at(path: str, parse: Callable[[object], _T], value: object) -> _T:
    """Parse a part; errors inside it get ``path`` in front of theirs."""
    try:
        return parse(value)
    except SnapshotError as error:
        joint = "" if str(error).startswith(":") else "."
        raise SnapshotError(f"{path}{joint}{error}") from None


def _fields(value: object, names: tuple[str, ...]) -> dict[str, Any]:
    fields = _mapping(value)
    for name in names:
        if name not in fields:
            raise SnapshotError(f"{name}: is missing")
    for name in fields:
        if name not in names:
            raise SnapshotError(f"{name}: is not a field here; fields: {', '.join(names)}")
    return fields


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise SnapshotError(f": must be an object, found {_shown(value)}")
    return dict(cast("Mapping[str, Any]", value))


def _choice(name: str, choices: type[_E], value: object) -> _E:
    if isinstance(value, str) and value in choices.__members__:
        return choices[value]
    raise SnapshotError(f"{name}: must be one of {', '.join(choices)}, found {_shown(value)}")


def _model_name(name: str) -> str:
    _check_text("models key", name)
    return name


def _step(key: str) -> str:
    """``.key``, or ``["key"]`` where a dot would mislead."""
    return f".{key}" if re.fullmatch(r"[\w-]+", key) else f"[{json.dumps(key)}]"


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {repeated!r} stands twice in one object")
    return result
