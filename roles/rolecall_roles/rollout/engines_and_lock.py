"""``get_rollout_engines_and_lock()``: the five values that training loops of slime's kind ask for.

A view of a running job for loops that were written around these values. The engines in it are values, no
actors: weights are changed through the job (``update_weights``, ``join_weights_group``), which takes every
replica out of discovery meanwhile and proves the new version. Control calls past it would be refused by the
engines' guards.
"""

from __future__ import annotations

import asyncio
from itertools import accumulate
from typing import Any, Protocol

from attrs import frozen

from rolecall.api import EngineId

_GOING = "STOPPING"


class KnowsReplicas(Protocol):
    """What is needed of a job; a ``JobHandle`` has it."""

    async def role_status(self, role: str) -> dict[str, Any]:
        """Return the role's replicas as the job's status has them."""
        ...


@frozen(kw_only=True)
class RolloutEngine:
    """One replica's head.

    generation: rises with each incarnation that was routable. base_url: None while it is not up.
    weight_version: as it last proved it; None if it proved none yet.
    """

    engine_id: EngineId
    state: str
    generation: int
    base_url: str | None
    weight_version: str | None


EnginesAndLock = tuple[list[RolloutEngine], asyncio.Lock, int, list[int], list[int]]


class RolloutEngines:
    """Keeps the lock, and which incarnations its caller has been told of. For one event loop.

    model: may be left out for a role with one model. role: the policy's.
    """

    def __init__(self, job: KnowsReplicas, *, model: str | None = None, role: str = "rollout") -> None:
        self._job = job
        self._model = model
        self._role = role
        self._lock = asyncio.Lock()
        self._told: frozenset[tuple[str, int]] = frozenset()

    async def get_rollout_engines_and_lock(self) -> EnginesAndLock:
        """Return (engines, lock, new engines, devices of each, rank of each one's first device).

        Engines stand in the order in which they join a weight group; the ranks count from 0, so a trainer
        that is rank 0 of the group adds its own. New are those that were not there, or were another
        incarnation, at the call before: if there are any, a weight group has to be made anew. The lock is
        this object's: hold it while weights change, if several tasks of a loop may do so. Across processes
        the job itself takes one update after the other.

        Raises:
            ValueError: the role has several models and none was named, or no such model.
        """
        replicas = self._of_model((await self._job.role_status(self._role))["replicas"])
        replicas = [replica for replica in replicas if replica["state"] != _GOING]
        counts = [
            len(replica["devices"]) + sum(len(follower["devices"]) for follower in replica["followers"])
            for replica in replicas
        ]
        now = frozenset((replica["engine"], replica["incarnation"]) for replica in replicas)
        new, self._told = len(now - self._told), now
        engines = [
            RolloutEngine(
                engine_id=EngineId(replica["engine"]),
                state=replica["state"],
                generation=replica["generation"],
                base_url=replica["base_url"],
                weight_version=replica["weight_version"],
            )
            for replica in replicas
        ]
        return engines, self._lock, new, counts, list(accumulate(counts, initial=0))[:-1]

    def _of_model(self, replicas: list[dict[str, Any]]) -> list[dict[str, Any]]:
        models = list(dict.fromkeys(replica["model"] for replica in replicas))
        wanted = self._model
        if wanted is None and len(models) > 1:
            raise ValueError(f"role {self._role!r} has several models, so name one: {', '.join(models)}")
        if wanted is not None and wanted not in models:
            raise ValueError(
                f"role {self._role!r} has no model {wanted!r}; it has: {', '.join(models) or 'none'}"
            )
        return [replica for replica in replicas if wanted in (None, replica["model"])]
