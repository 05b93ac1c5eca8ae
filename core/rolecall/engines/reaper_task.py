"""The reaper on Ray: a task on the dead worker's node.

Implements :class:`~rolecall.engines.reaping.Reaper` for role services. The task reserves nothing,
so that it runs also where every device is taken.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from attrs import frozen
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rolecall.engines.deadline import Deadline, LoopClock
from rolecall.engines.reaping import EngineMark, NodeGoneError, ReapReport, reap
from rolecall.engines.worker_handle import ANSWER_MARGIN_S, WorkerSlot
from rolecall.errors import EngineError
from rolecall.ids import RoleName


@frozen(kw_only=True)
class RayReaper:
    """Reaps engines of one role of one job."""

    namespace: str
    role: RoleName

    async def __call__(self, slot: WorkerSlot, incarnation: int, deadline: Deadline) -> ReapReport:
        where = f"node {slot.node_ip} ({slot.node_id[:8]})"
        if slot.node_id not in await asyncio.to_thread(_living_nodes):
            raise NodeGoneError(f"{where} has left the cluster, so nobody can look at its processes")
        mark = EngineMark(
            namespace=self.namespace, role=self.role, engine=slot.engine, incarnation=incarnation
        )
        task: Any = _reap.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(slot.node_id, soft=False)
        )
        call = task.remote(mark, deadline.leaving(ANSWER_MARGIN_S).remaining_s())
        return await deadline.bound(_answer(where, call), f"a look for survivors on {where}")


@ray.remote(num_cpus=0, max_retries=0)
def _reap(mark: EngineMark, timeout_s: float) -> ReapReport:
    async def look() -> ReapReport:
        return await reap(mark, Deadline.after(LoopClock(), timeout_s))

    return asyncio.run(look())


def _living_nodes() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


async def _answer(where: str, call: Any) -> ReapReport:
    try:
        return await call
    except RayError as error:
        raise EngineError(f"the look for survivors on {where} had no answer: {error}") from error
