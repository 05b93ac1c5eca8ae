"""The engine worker: the engine host as a Ray actor in its slot's bundle, and the client of it.

One actor a worker slot, made by the role service that owns it and ending with that. It is never
restarted by Ray: a second one would know nothing of the first one's engine. The engine's process
is a child of the actor's process, in a group of its own and with a parent-death signal, so that a
killed actor leaves no engine; that this worked is for the reaper to check, not for us to assume.

Ray's errors stop in :class:`RayWorkerHandle`; see ``rolecall.engines.worker_handle`` for what each
error means.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import ray
from attrs import frozen
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from rolecall.cluster.scheduling import in_bundle
from rolecall.config.resolve import job_plugins, resolve_role
from rolecall.config.specs import JobConfig
from rolecall.engines.deadline import Deadline, LoopClock
from rolecall.engines.engine_host import EngineHost
from rolecall.engines.fencing import Stamp
from rolecall.engines.handover import SleepProof
from rolecall.engines.launching import HostSetup, Prepared
from rolecall.engines.read_ahead import ReadAhead
from rolecall.engines.worker_handle import (
    ANSWER_MARGIN_S,
    Started,
    WorkerDescription,
    WorkerDiedError,
    WorkerHealth,
    WorkerSlot,
    WorkerUnavailableError,
)
from rolecall.errors import EngineError, RolecallError
from rolecall.guard.door import Door
from rolecall.interfaces.engine_backend import MemoryReport, WeightsGroup, WeightUpdate
from rolecall.model_sources.fetch import fetch_model

T = TypeVar("T")

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_OPEN_FILES = 65_536
"""Each request through a door takes two sockets; the limit is often 1,024."""


@frozen(kw_only=True)
class WorkerOrder:
    """Everything a worker actor is made from. Picklable: plugins are loaded where it runs."""

    setup: HostSetup
    config: JobConfig
    file: Path


class EngineWorker:
    """The actor. Every method is one of the host's; deadlines travel as seconds."""

    def __init__(self, order: WorkerOrder) -> None:
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
        _raise_file_limit()
        self._host = EngineHost(order.setup, lambda: asyncio.to_thread(_prepare, order), LoopClock(), Door)

    async def prepare(self, *, timeout_s: float) -> None:
        await self._host.prepare(_within(timeout_s))

    async def prepare_next(self, update: Path | None, *, timeout_s: float) -> ReadAhead:
        return await self._host.prepare_next(update, _within(timeout_s))

    async def meet(self, stamp: Stamp, *, timeout_s: float) -> str:
        return await self._host.meet(stamp, _within(timeout_s))

    async def start(
        self, stamp: Stamp, weight_version: str | None, *, rendezvous: str | None, timeout_s: float
    ) -> Started:
        return await self._host.start(stamp, weight_version, _within(timeout_s), rendezvous=rendezvous)

    async def sleep(self, stamp: Stamp, grace_s: float, *, timeout_s: float) -> SleepProof:
        return await self._host.sleep(stamp, grace_s, _within(timeout_s))

    async def wake(self, stamp: Stamp, weight_version: str | None, *, timeout_s: float) -> MemoryReport:
        return await self._host.wake(stamp, weight_version, _within(timeout_s))

    async def measure(self, stamp: Stamp, *, timeout_s: float) -> MemoryReport:
        return await self._host.measure(stamp, _within(timeout_s))

    async def prove_released(self, stamp: Stamp, awake: MemoryReport, *, timeout_s: float) -> MemoryReport:
        return await self._host.prove_released(stamp, awake, _within(timeout_s))

    async def update_weights(
        self, stamp: Stamp, update: WeightUpdate, version: str, grace_s: float, *, timeout_s: float
    ) -> MemoryReport:
        return await self._host.update_weights(stamp, update, version, grace_s, _within(timeout_s))

    async def join_weights_group(self, stamp: Stamp, group: WeightsGroup, *, timeout_s: float) -> None:
        await self._host.join_weights_group(stamp, group, _within(timeout_s))

    async def leave_weights_group(self, stamp: Stamp, name: str, *, timeout_s: float) -> None:
        await self._host.leave_weights_group(stamp, name, _within(timeout_s))

    async def health(self, *, generate: bool, timeout_s: float) -> WorkerHealth:
        return await self._host.health(generate=generate, deadline=_within(timeout_s))

    async def stop(self, stamp: Stamp, *, timeout_s: float) -> str:
        return await self._host.stop(stamp, _within(timeout_s))

    async def describe(self, *, timeout_s: float) -> WorkerDescription:
        return await self._host.describe(_within(timeout_s))


class RayWorkerHandle:
    """Implements :class:`~rolecall.engines.worker_handle.WorkerHandle` by calling the actor.

    A call that is given up goes on in the worker; the stamp of the next one settles which counts.
    """

    def __init__(self, actor: Any, slot: WorkerSlot) -> None:
        self._actor = actor
        self._name = f"worker {slot.node_rank} of {slot.engine} on node {slot.node_ip}"

    async def prepare(self, deadline: Deadline) -> None:
        await self._call("prepare", deadline)

    async def prepare_next(self, update: Path | None, deadline: Deadline) -> ReadAhead:
        return await self._call("prepare_next", deadline, update)

    async def meet(self, stamp: Stamp, deadline: Deadline) -> str:
        return await self._call("meet", deadline, stamp)

    async def start(
        self, stamp: Stamp, weight_version: str | None, deadline: Deadline, *, rendezvous: str | None = None
    ) -> Started:
        return await self._call("start", deadline, stamp, weight_version, rendezvous=rendezvous)

    async def sleep(self, stamp: Stamp, grace_s: float, deadline: Deadline) -> SleepProof:
        return await self._call("sleep", deadline, stamp, grace_s)

    async def wake(self, stamp: Stamp, weight_version: str | None, deadline: Deadline) -> MemoryReport:
        return await self._call("wake", deadline, stamp, weight_version)

    async def measure(self, stamp: Stamp, deadline: Deadline) -> MemoryReport:
        return await self._call("measure", deadline, stamp)

    async def prove_released(self, stamp: Stamp, awake: MemoryReport, deadline: Deadline) -> MemoryReport:
        return await self._call("prove_released", deadline, stamp, awake)

    async def update_weights(
        self, stamp: Stamp, update: WeightUpdate, version: str, grace_s: float, deadline: Deadline
    ) -> MemoryReport:
        return await self._call("update_weights", deadline, stamp, update, version, grace_s)

    async def join_weights_group(self, stamp: Stamp, group: WeightsGroup, deadline: Deadline) -> None:
        await self._call("join_weights_group", deadline, stamp, group)

    async def leave_weights_group(self, stamp: Stamp, name: str, deadline: Deadline) -> None:
        await self._call("leave_weights_group", deadline, stamp, name)

    async def health(self, *, generate: bool, deadline: Deadline) -> WorkerHealth:
        return await self._call("health", deadline, generate=generate)

    async def stop(self, stamp: Stamp, deadline: Deadline) -> str:
        return await self._call("stop", deadline, stamp)

    async def describe(self, deadline: Deadline) -> WorkerDescription:
        return await self._call("describe", deadline)

    async def dispose(self) -> None:
        """End the actor's process and free its bundle. Repeats do nothing."""
        ray.kill(self._actor, no_restart=True)

    async def _call(self, method: str, deadline: Deadline, *arguments: Any, **options: Any) -> Any:
        asked = f"{method} of {self._name}"
        inner = deadline.leaving(ANSWER_MARGIN_S)
        call = getattr(self._actor, method).remote(*arguments, timeout_s=inner.remaining_s(), **options)
        return await deadline.bound(_answer(asked, call), asked)


class RayWorkers:
    """Implements :class:`~rolecall.engines.worker_handle.WorkerFactory` with Ray actors.

    Args:
        order: makes the order of a slot.
        groups: pool id → placement group.
        resource: Ray resource that one device is.
    """

    def __init__(
        self,
        order: Callable[[WorkerSlot], WorkerOrder],
        *,
        groups: Mapping[str, Any],
        resource: str,
        namespace: str,
    ) -> None:
        self._order = order
        self._groups = groups
        self._resource = resource
        self._namespace = namespace
        self._made = 0

    def __call__(self, slot: WorkerSlot) -> RayWorkerHandle:
        order = self._order(slot)
        # Ray keeps a dead actor's name for a while; a slot's second worker needs another one.
        self._made += 1
        name = f"worker:{order.setup.role}:{slot.engine}:{slot.node_rank}:{self._made}"
        actor: Any = ray.remote(EngineWorker)
        handle = actor.options(
            name=name,
            namespace=self._namespace,
            max_restarts=0,
            max_task_retries=0,
            **in_bundle(self._groups[slot.pool_id], slot.bundles[0], self._resource, slot.reservation),
        ).remote(order)
        return RayWorkerHandle(handle, slot)


def _prepare(order: WorkerOrder) -> Prepared:
    """Load the model's backend and get its files. Blocks; runs in a thread."""
    setup = order.setup
    role = resolve_role(order.config, order.file, setup.role, job_plugins(order.config.plugins))
    model = role.models[setup.model]
    path = fetch_model(model.config.source, base_dir=order.file.parent)
    return Prepared(backend=model.backend, options=model.options, features=model.features, model_path=path)


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _within(timeout_s: float) -> Deadline:
    return Deadline.after(LoopClock(), timeout_s)


async def _answer(asked: str, call: Awaitable[T]) -> T:
    """Await a remote call; raise what the worker raised, or say what Ray's error proves."""
    try:
        return await call
    except RayTaskError as error:
        original = error.cause
        if isinstance(original, RolecallError):
            raise original from error
        raise EngineError(f"{asked} broke: {type(original).__name__}: {original}") from error
    except ActorDiedError as error:
        raise WorkerDiedError(f"{asked}: Ray says that the actor has died: {error}") from error
    except RayError as error:
        raise WorkerUnavailableError(f"{asked} had no answer: {error}") from error
