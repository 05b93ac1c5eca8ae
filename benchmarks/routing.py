"""What a routing decision costs, for each installed policy and fleets of 8, 64 and 1,024 replicas.

    python benchmarks/routing.py

Prints microseconds: the best of seven rounds, as other work on the machine only adds. A decision is the whole
``RouteResolver.resolve``, with the request counted and settled; *alone* is the policy's ``select``.
"""

from __future__ import annotations

import timeit

from rolecall.discovery.snapshot import Snapshot
from rolecall.interfaces.routing_policy import RoutingPolicy, RoutingRequest
from rolecall.plugins.host import PluginHost
from rolecall.plugins.kinds import PluginKind
from rolecall.routing.resolver import RouteResolver, candidates_of
from rolecall.testing.snapshots import model_entry, snapshot_of

SIZES = (8, 64, 1024)
ROUNDS, DECISIONS = 7, 2000


def main() -> None:
    host = PluginHost.from_environment()
    print(f"{'policy':<18}{'key':<5}" + "".join(f"{size:>9} alone / whole" for size in SIZES))
    for info in host.list():
        if info.kind is not PluginKind.ROUTING_POLICY:
            continue
        policy = host.load(PluginKind.ROUTING_POLICY, info.name)
        if policy.router is not None:
            continue
        for key in ("g-17", None):
            if key is None and "affinity_key" in policy.needs:
                continue
            cells = [
                f"{_alone(policy, key, size):>9.2f} / {_whole(policy, key, size):>5.2f}" for size in SIZES
            ]
            print(f"{info.name:<18}{'yes' if key else 'no':<5}" + "".join(f"{cell:>23}" for cell in cells))


def _fleet(policy: type[RoutingPolicy], size: int) -> Snapshot:
    entry = model_entry("m", [f"http://host-{number}:30000" for number in range(size)])
    return snapshot_of({"m": entry}, policy=policy.name, default_model="m")


def _alone(policy: type[RoutingPolicy], key: str | None, size: int) -> float:
    candidates = candidates_of(_fleet(policy, size).models["m"])
    resolver = RouteResolver(policy)
    request = RoutingRequest(model="m", affinity_key=key, load=resolver.in_flight.of("m"))
    chooser = policy()
    return _microseconds(lambda: chooser.select(candidates, request))


def _whole(policy: type[RoutingPolicy], key: str | None, size: int) -> float:
    snapshot, resolver = _fleet(policy, size), RouteResolver(policy)

    def decide() -> None:
        target = resolver.resolve(snapshot, model="m", affinity_key=key)
        resolver.in_flight.sent(target.model, target.engine_id, target.generation)()

    return _microseconds(decide)


def _microseconds(work: object) -> float:
    return min(timeit.repeat(work, number=DECISIONS, repeat=ROUNDS)) / DECISIONS * 1e6  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
