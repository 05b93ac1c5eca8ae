"""RouteResolver: which engine answers this request.

One pure resolver for gateways and direct clients alike: the same snapshot and the same affinity key
give the same target in both. It does no I/O, reads no clock and keeps nothing but one policy instance a
(role, epoch, model), and the count of requests that its owner has under way. Reading a newer snapshot and
trying again is its caller's affair (:func:`rolecall.routing.fresh.resolve_fresh`).
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from attrs import frozen

from rolecall.discovery.snapshot import ModelEntry, ModelState, RouteMode, Snapshot
from rolecall.errors import ModelUnavailableError, PayloadError, PluginContractError
from rolecall.ids import EngineId
from rolecall.interfaces.routing_policy import IDLE, Candidate, Need, RoutingPolicy, RoutingRequest
from rolecall.routing.in_flight import InFlight
from rolecall.routing.prompt import prompt_in

AFFINITY_HEADER = "X-SMG-Routing-Key"


@frozen(kw_only=True)
class Target:
    """Where one request goes.

    engine_id, generation: None when the model's external router picks the engine.
    """

    model: str
    served_model_name: str
    base_url: str
    engine_id: EngineId | None
    generation: int | None


@frozen
class _Fleet:
    """A model's candidates in one snapshot, and where a request goes that one of them is chosen for."""

    candidates: tuple[Candidate, ...]
    targets: Mapping[EngineId, tuple[Candidate, Target]]

    @classmethod
    def of(cls, name: str, entry: ModelEntry) -> _Fleet:
        candidates = candidates_of(entry)
        targets = {one.engine_id: (one, _target(name, entry, one.base_url, one)) for one in candidates}
        return cls(candidates, targets)


class RouteResolver:
    """Resolves requests of one role with one policy class.

    Its owner tells ``in_flight`` of every request that it sends, at once after ``resolve``: the next
    request has to see it.
    """

    def __init__(self, policy: type[RoutingPolicy]) -> None:
        self.policy = policy
        self.in_flight = InFlight()
        self._needs_key = Need.AFFINITY_KEY in policy.needs
        self._needs_prompt = Need.PROMPT in policy.needs
        self._needs_load = Need.LOAD in policy.needs
        self._instances: dict[str, RoutingPolicy] = {}
        self._instances_of: tuple[str, str] | None = None
        self._fleets: dict[str, _Fleet] = {}
        self._fleets_of: Snapshot | None = None

    def resolve(
        self,
        snapshot: Snapshot,
        *,
        model: object = None,
        route_key: object = None,
        affinity_key: str | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> Target:
        """Pick the model by its selectors, then the engine.

        A given ``model`` (id or alias) wins over ``route_key``, which wins over the default model; both must
        be known.
        ``payload`` is looked into for a policy that needs the prompt.

        Raises:
            PayloadError: a selector is empty, no text or unknown; none was given and there is no
                default; or the policy needs an affinity key and there is none.
            ModelUnavailableError: the model is not READY, or has no replica that may be asked.
            PluginContractError: the policy is not the role's, or chose none of the candidates.
        """
        name = select_model(snapshot, model=model, route_key=route_key)
        entry = snapshot.models[name]
        if entry.route_mode is RouteMode.SGLANG_ROUTER:
            _check_ready(name, entry)
            if entry.router_url is None:
                raise ModelUnavailableError(f"model {name!r} has no router yet", model=name)
            return _target(name, entry, entry.router_url)
        if snapshot.routing.policy != self.policy.name:
            raise PluginContractError(
                f"role {snapshot.role!r} routes by policy {snapshot.routing.policy!r}, "
                f"but {self.policy.name!r} was given here; both sides must use the same one"
            )
        if affinity_key is None and self._needs_key:
            raise PayloadError(
                f"routing policy {self.policy.name!r} needs an affinity key: send header {AFFINITY_HEADER}",
                field=AFFINITY_HEADER,
            )
        _check_ready(name, entry)
        fleet = self._fleet_in(snapshot, name, entry)
        if not fleet.candidates:
            raise ModelUnavailableError(f"model {name!r} has no replica that may be asked now", model=name)
        prompt = prompt_in(payload or {}) if self._needs_prompt else None
        load = self.in_flight.of(name) if self._needs_load else IDLE
        request = RoutingRequest(model=name, affinity_key=affinity_key, prompt=prompt, load=load)
        chosen = self._policy_for(snapshot, name).select(fleet.candidates, request)
        candidate, target = fleet.targets.get(chosen.engine_id, (None, None))
        if target is None or (candidate is not chosen and candidate != chosen):
            raise PluginContractError(f"routing policy {self.policy.name!r} chose {chosen!r}, no candidate")
        return target

    def _policy_for(self, snapshot: Snapshot, model: str) -> RoutingPolicy:
        incarnation = (snapshot.role, snapshot.registry_epoch)
        if incarnation != self._instances_of:
            self._instances = {}
            self._instances_of = incarnation
        if model not in self._instances:
            self._instances[model] = self.policy()
        return self._instances[model]

    def _fleet_in(self, snapshot: Snapshot, name: str, entry: ModelEntry) -> _Fleet:
        if snapshot is not self._fleets_of:
            self._fleets = {}
            self._fleets_of = snapshot
        fleet = self._fleets.get(name)
        if fleet is None:
            fleet = self._fleets[name] = _Fleet.of(name, entry)
        return fleet


def select_model(snapshot: Snapshot, *, model: object = None, route_key: object = None) -> str:
    """Return the id of the model that the selectors mean.

    Raises:
        PayloadError: see :meth:`RouteResolver.resolve`.
    """
    routing = snapshot.routing
    wanted = _selector("model", model)
    key = _selector("route_key", route_key)
    if wanted is not None and wanted not in snapshot.models and wanted not in routing.aliases:
        raise _unknown("model", wanted, {**snapshot.models, **routing.aliases}, snapshot.role)
    if key is not None and key not in routing.route_key_map:
        # Also beside a model: a key that means nothing is a mistake, which else would show only once the
        # model is left out.
        raise _unknown("route_key", key, routing.route_key_map, snapshot.role)
    if wanted is not None:
        return routing.aliases.get(wanted, wanted)
    if key is not None:
        return routing.route_key_map[key]
    if routing.default_model is not None:
        return routing.default_model
    raise PayloadError(
        f"model: role {snapshot.role!r} has no default model, so a request names its model or route_key; "
        f"models: {', '.join(snapshot.models)}",
        field="model",
    )


def candidates_of(entry: ModelEntry) -> tuple[Candidate, ...]:
    """Return the heads a policy may pick from, sorted by engine id."""
    eligible = [
        Candidate(engine_id=engine.engine_id, base_url=engine.base_url, generation=engine.generation)
        for engine in entry.engines
        if engine.direct_eligible and engine.base_url is not None
    ]
    return tuple(sorted(eligible, key=lambda candidate: candidate.engine_id))


def routable(entry: ModelEntry) -> bool:
    """Whether a request for the model would find an engine now."""
    if entry.state is not ModelState.READY:
        return False
    if entry.route_mode is RouteMode.SGLANG_ROUTER:
        return entry.router_url is not None
    return any(engine.direct_eligible for engine in entry.engines)


def _selector(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise PayloadError(f"{name}: must be non-empty text, found {value!r:.80}", field=name)
    return value


def _unknown(name: str, value: str, known: Mapping[str, object], role: str) -> PayloadError:
    nearest = get_close_matches(value, known, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    listed = ", ".join(sorted(known)) or "none"
    return PayloadError(f"{name}: {value!r:.80} is unknown{hint} Role {role!r} knows: {listed}", field=name)


def _check_ready(name: str, entry: ModelEntry) -> None:
    if entry.state is not ModelState.READY:
        raise ModelUnavailableError(
            f"model {name!r} is {entry.state}; requests are served only in READY", model=name
        )


def _target(name: str, entry: ModelEntry, base_url: str, chosen: Candidate | None = None) -> Target:
    return Target(
        model=name,
        served_model_name=entry.served_model_name,
        base_url=base_url,
        engine_id=chosen.engine_id if chosen else None,
        generation=chosen.generation if chosen else None,
    )
