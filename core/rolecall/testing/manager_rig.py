"""A manager with fake workers, in virtual time: what tests of commands and of recovery share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rolecall.engines.deadline import Deadline, LoopClock
from rolecall.engines.manager import InferenceManager
from rolecall.engines.proof import Proof
from rolecall.engines.replica_driver import LifecycleTimes, ModelSpec
from rolecall.engines.results import Outcomes
from rolecall.ids import EngineId, FencingToken, ModelId, RoleName
from rolecall.interfaces.engine_backend import Capability
from rolecall.interfaces.role import WeightSource
from rolecall.routers.membership import Membership
from rolecall.routers.pairs import halves
from rolecall.testing.fake_workers import FakeReaper, FakeWorker, FakeWorkers, fake_slot


class ManagerRig:
    """``events`` and ``published`` (engine → state) are what the manager told the world.

    ``before_publish`` is called whenever it publishes.
    """

    def __init__(
        self,
        log_dir: Path,
        *,
        replicas: int = 2,
        source: WeightSource = WeightSource.STATIC,
        shared: bool = True,
        nodes: int = 1,
        capabilities: frozenset[Capability] = frozenset(Capability),
        membership: Membership | None = None,
        prefill: int = 0,
    ) -> None:
        self.workers = FakeWorkers(log_dir, weight_source=source)
        self.reaper = FakeReaper(self.workers)
        self.events: list[dict[str, Any]] = []
        self.published: list[dict[str, str]] = []
        self.before_publish: Callable[[], None] = lambda: None
        self.spec = ModelSpec(
            role=RoleName("judge"),
            model=ModelId("m"),
            served_model_name="served",
            weight_source=source,
            weight_version=None if source is WeightSource.STATIC else "0",
            capabilities=capabilities,
            shared=shared,
        )
        self.manager = InferenceManager(
            self.spec,
            {
                EngineId(f"m/replica-{index}"): [
                    fake_slot(f"m/replica-{index}", node_rank=rank, nodes=nodes, half=half)
                    for rank in range(nodes)
                ]
                for index, half in enumerate(halves(replicas, prefill))
            },
            factory=self.workers,
            reaper=self.reaper,
            times=LifecycleTimes(drain_grace_s=1.0),
            clock=LoopClock(),
            emit=self.emit,
            publish=self.publish,
            membership=membership,
        )

    def worker(self, engine: str, node_rank: int = 0) -> FakeWorker:
        return self.workers.of(engine, node_rank)

    def states(self) -> list[str]:
        """The replicas' present states."""
        return [entry["state"] for entry in self.manager.status()]

    def path(self, engine: str) -> list[str]:
        """The states that a replica has entered, in order."""
        return [e["to"] for e in self.events if e["kind"] == "replica.state" and e["engine"] == engine]

    async def onload(self, token: int = 1, seconds: float = 60.0) -> Outcomes:
        return await self.manager.onload(FencingToken(token), within(seconds))

    async def offload(self, token: int = 1, seconds: float = 60.0) -> Outcomes:
        return await self.manager.offload(FencingToken(token), within(seconds))

    async def account(self, token: int = 1, seconds: float = 60.0) -> Outcomes:
        return await self.manager.account(FencingToken(token), within(seconds))

    async def vacate(
        self, token: int = 1, seconds: float = 100.0, *, proof: Proof = Proof.PROCESS_GONE
    ) -> Outcomes:
        return await self.manager.vacate(FencingToken(token), within(seconds), proof=proof)

    def emit(self, kind: str, /, **fields: Any) -> None:
        self.events.append({"kind": kind, **fields})

    async def publish(self) -> None:
        self.before_publish()
        self.published.append({view.engine_id: view.state.value for view in self.manager.view().engines})


def within(seconds: float) -> Deadline:
    return Deadline.after(LoopClock(), seconds)


def now() -> float:
    return asyncio.get_running_loop().time()


def ok(outcomes: Outcomes) -> bool:
    return bool(outcomes) and all(outcome.confirmed for outcome in outcomes)
