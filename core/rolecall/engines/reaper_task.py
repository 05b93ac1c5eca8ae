"""The reaper on Ray: a task on the dead worker's node.

Implements :class:`~rolecall.engines.reaping.Reaper` for role services, and looks on every node for what a
former process of the job left. The task reserves nothing,
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
from rolecall.engines.reaping import EngineMark, NodeGoneError, ReapReport, RunMark, reap
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
        return await _on_node(mark, slot.node_id, where, deadline)


async def reap_run(run: str, deadline: Deadline) -> None:
    """End what is left of a run's engines, on every node of the cluster; returns when nothing is.

    Raises:
        EngineError: something is left, or a node could not be looked at; names each.
    """
    nodes = sorted(await asyncio.to_thread(_living_nodes))
    looks = await asyncio.gather(
        *(_on_node(RunMark(run=run), node, f"node {node[:8]}", deadline) for node in nodes),
        return_exceptions=True,
    )
    problems: list[str] = []
    for node, look in zip(nodes, looks, strict=True):
        if isinstance(look, ReapReport):
            problems += [] if look.vacant else [f"node {node[:8]}: {look}"]
        elif isinstance(look, EngineError):
            problems.append(str(look))
        else:
            raise look
    if problems:
        raise EngineError(f"engines of the former run {run} are not proved gone: {'; '.join(problems)}")


async def _on_node(mark: EngineMark | RunMark, node_id: str, where: str, deadline: Deadline) -> ReapReport:
    task: Any = _reap.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False))
    call = task.remote(mark, deadline.leaving(ANSWER_MARGIN_S).remaining_s())
    return await deadline.bound(_answer(where, call), f"a look for survivors on {where}")


@ray.remote(num_cpus=0, max_retries=0)
def _reap(mark: EngineMark | RunMark, timeout_s: float) -> ReapReport:
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
