"""The autoscaler hook: whoever watches a role says how many replicas it shall have, and this has it done.

No plugin: a function in a training loop, or in a process of its own beside the job. It is asked again and
again with what is seen, and answers with the desired total or with None for "leave it". Everything else is
rolecall's: one operation at a time, waited for; what is refused is told and forgotten.

    with connect("my-job") as job:
        await autoscale(job, "policy", lambda seen: 4 if (seen.in_flight or 0) > 8 * seen.ready else None)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from attrs import frozen

from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import ScaleConflictError, ScaleRefused
from rolecall.scaling.request import ScaleIn, ScaleOut, ScaleRequest

logger = logging.getLogger(__name__)

_WAIT_S = 30.0


@frozen(kw_only=True)
class Seen:
    """A model at one moment.

    total: its replicas, those that come or go too. ready: those that get requests.
    in_flight: requests inside the doors of its replicas, as of the last look at each
        (``lifecycle.probe_interval_s``); None if no replica has told any.
    """

    role: str
    model: str
    total: int
    ready: int
    in_flight: int | None


Decide = Callable[[Seen], int | None]
"""Returns the desired total, or None to leave it as it is. What it raises ends the autoscaling."""


class Scalable(Protocol):
    """What is needed of a job; a :class:`~rolecall.job.handle.JobHandle` has it."""

    async def role_status(self, role: str) -> dict[str, Any]: ...

    async def scale(self, role: str, request: ScaleRequest) -> dict[str, Any]: ...

    async def scale_operation(self, role: str, operation: str, *, wait_s: float = 0.0) -> dict[str, Any]: ...


async def autoscale(
    job: Scalable, role: str, decide: Decide, *, model: str | None = None, every_s: float = 10.0
) -> None:
    """Ask ``decide`` every ``every_s`` seconds and scale the model to what it says; returns never.

    An operation under way is waited for before the next question, whoever began it. ``model`` may be None for
    a role with one model. Cancel the task to end it: an operation that has begun goes on.

    Raises:
        ValueError: the role has several models and none was named, or no such model.
        JobError: the role's service does not answer.
    """
    while True:
        await _round(job, role, decide, model)
        await asyncio.sleep(every_s)


async def _round(job: Scalable, role: str, decide: Decide, model: str | None) -> None:
    status = await job.role_status(role)
    for operation in status["scaling"]:
        if not operation["final"]:
            await until_final(job, role, operation)
            return
    seen = _seen(role, model, status)
    wanted = decide(seen)
    if wanted is None or wanted == seen.total:
        return
    more = wanted > seen.total
    request = ScaleOut(total=wanted, model=seen.model) if more else ScaleIn(total=wanted, model=seen.model)
    try:
        operation = await job.scale(role, request)
    except ScaleConflictError as error:
        logger.info("%s", error)  # somebody else was quicker; it is waited for in the next round
    except ScaleRefused as error:
        logger.warning("%s %s was not scaled to %d: %s", role, seen.model, wanted, error)
    else:
        await until_final(job, role, operation)


async def until_final(job: Scalable, role: str, operation: dict[str, Any]) -> dict[str, Any]:
    """Wait for an operation's end, and return it as it is then."""
    while not operation["final"]:
        operation = await job.scale_operation(role, operation["id"], wait_s=_WAIT_S)
    logger.info("%s of %s ended %s: %s", operation["action"], role, operation["state"], operation["reason"])
    return operation


def _seen(role: str, model: str | None, status: Mapping[str, Any]) -> Seen:
    replicas = status["replicas"]
    models = list(dict.fromkeys(replica["model"] for replica in replicas))
    if model is None and len(models) == 1:
        model = models[0]
    if model is None or model not in models:
        raise ValueError(f"role {role!r} has no model {model!r}; it has: {', '.join(models) or 'none'}")
    of_model = [replica for replica in replicas if replica["model"] == model]
    permits = [replica["permits"] for replica in of_model if replica["permits"] is not None]
    return Seen(
        role=role,
        model=model,
        total=len(of_model),
        ready=sum(replica["state"] == ReplicaState.READY for replica in of_model),
        in_flight=sum(permits) if permits else None,
    )
