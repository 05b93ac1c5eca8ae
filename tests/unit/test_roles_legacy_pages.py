"""The schema-1 pages of rollout and judge, served from a real snapshot through the real gateway."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.testclient import TestClient

from rolecall.api import EngineId, WeightSource
from rolecall.discovery.snapshot import EngineEntry, ModelEntry, ModelState, RouteMode, Routing, Snapshot
from rolecall.engines.replica_state import ReplicaState
from rolecall_roles.genrm.options import GenRMOptions
from rolecall_roles.genrm.role import GenRMRole
from rolecall_roles.rollout.options import RolloutOptions
from rolecall_roles.rollout.role import RolloutRole


def snapshot(role: str, *states: ReplicaState) -> Snapshot:
    engines = tuple(
        EngineEntry(
            engine_id=EngineId(f"m/replica-{index}"),
            base_url=None if state is ReplicaState.FAILED else f"http://127.0.0.1:{9000 + index}",
            state=state,
            direct_eligible=state is ReplicaState.READY,
            generation=1,
        )
        for index, state in enumerate(states)
    )
    ready = ReplicaState.READY in states
    model = ModelEntry(
        state=ModelState.READY if ready else ModelState.SLEEPING,
        route_mode=RouteMode.DIRECT,
        router_url=None,
        weight_source=WeightSource.STATIC,
        weight_version=None,
        served_model_name="m",
        engines=engines,
    )
    return Snapshot(
        role=role,
        registry_epoch="8f14e45f-ceea-467f-9575-8d1f3c6b2a10",
        topology_revision=1,
        routing=Routing(
            default_model="m", route_key_map={}, aliases={}, policy="round_robin", policy_revision=0
        ),
        models={"m": model},
    )


class Gateway:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    async def snapshot(self) -> Snapshot:
        return self._snapshot


def get(role: Any, shown: Snapshot) -> Any:
    (endpoint,) = [page for page in role.endpoints() if page.query]

    async def handler(request: Request) -> Any:
        return await endpoint.handler(request, Gateway(shown))

    with TestClient(Starlette(routes=[Route(endpoint.path, handler, methods=[endpoint.method])])) as client:
        return client.get(endpoint.path, params=dict(endpoint.query))


def test_rollout_shows_rank_state_and_url_of_heads_and_nothing_else() -> None:
    shown = snapshot("rollout", ReplicaState.READY, ReplicaState.FAILED)
    answer = get(RolloutRole(RolloutOptions()), shown)
    assert answer.json() == {
        "schema_version": 1,
        "engines": [
            {"rank": 0, "status": "READY", "url": "http://127.0.0.1:9000"},
            {"rank": 1, "status": "FAILED", "url": None},
        ],
        "total": 2,
    }


@pytest.mark.parametrize(
    ("states", "status", "word", "engines"),
    [
        ((ReplicaState.READY, ReplicaState.SLEEPING), 200, "healthy", 1),
        ((ReplicaState.SLEEPING,), 503, "unhealthy", 0),
    ],
)
def test_the_judge_is_healthy_if_a_replica_of_every_model_may_be_asked(
    states: tuple[ReplicaState, ...], status: int, word: str, engines: int
) -> None:
    answer = get(GenRMRole(GenRMOptions()), snapshot("genrm", *states))
    assert answer.status_code == status
    assert answer.json() == {"schema_version": 1, "status": word, "engines": engines}
