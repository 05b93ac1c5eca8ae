"""The coordinator on Ray: its actor, the client that callers hold, and its way to the roles.

The actor is one per job, named ``coordinator`` in the job's namespace, needs no CPU slot, and is
never restarted: a second one would know nothing of the leases given by the first. It lives as
long as the job process that created it.

Ray's errors stop here. What the coordinator or a role raised arrives as the rolecall error it
was: a ``LeaseError`` is always the coordinator's own word. What only Ray has to say, that the
actor is gone or that no answer came, becomes a ``JobError`` with the Ray error as its cause; the
call may have been carried out, and repeating it with the same ids is safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Set
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from rolecall.engines.results import LifecycleResult
from rolecall.errors import CommitTimeoutError, JobError, RolecallError
from rolecall.events.hub_actor import remote_emitter
from rolecall.ids import BatchId, FencingToken, OperationId, RoleName
from rolecall.leases.coordinator import DEFAULT_TIMEOUT_S, LeaseCoordinator
from rolecall.leases.lease_state import OpeningLease

ACTOR_NAME = "coordinator"

MAX_CONCURRENT_CALLS = 10_000
"""Each waiting consumer holds a call open; they must never keep a runner's command out."""

ANSWER_TIMEOUT_S = 30.0
WAIT_GRACE_S = 5.0

T = TypeVar("T")


class CoordinatorActor:
    """The Ray actor around :class:`LeaseCoordinator`; made by :func:`create_coordinator`.

    Args:
        services: role → actor handle of its RoleService.
        events: actor handle of the event hub.
        The others are those of :class:`LeaseCoordinator`.
    """

    def __init__(
        self,
        *,
        services: Mapping[RoleName, Any],
        events: Any,
        conflicts: Mapping[RoleName, Set[RoleName]],
        opening: Mapping[RoleName, OpeningLease],
        training: Set[RoleName],
        timeout_s: float,
    ) -> None:
        self._timeout_s = timeout_s
        self._coordinator = LeaseCoordinator(
            {role: RayRoleLifecycle(role, service) for role, service in services.items()},
            conflicts=conflicts,
            opening=opening,
            training=training,
            timeout_s=timeout_s,
            emit=remote_emitter(events),
        )

    async def begin_batch(self, batch: BatchId) -> None:
        await self._coordinator.begin_batch(batch)

    async def activate(self, batch: BatchId, role: RoleName, operation: OperationId) -> FencingToken:
        return await self._coordinator.activate(batch, role, operation)

    async def deactivate(self, batch: BatchId, role: RoleName, operation: OperationId) -> None:
        await self._coordinator.deactivate(batch, role, operation)

    async def commit_batch(self, batch: BatchId, acknowledged: bool) -> None:
        await self._coordinator.commit_batch(batch, acknowledged=acknowledged)

    async def fail_batch(self, batch: BatchId, reason: str) -> None:
        await self._coordinator.fail_batch(batch, reason)

    async def wait_committed(self, batch: BatchId, timeout_s: float) -> None:
        await self._coordinator.wait_committed(batch, timeout_s)

    async def status(self) -> Mapping[str, Any]:
        return await self._coordinator.status()

    async def timeout_s(self) -> float:
        """Return the deadline of one command to a role."""
        return self._timeout_s


class RayCoordinator:
    """Implements :class:`~rolecall.leases.port.CoordinatorPort` by calling the actor.

    Stateless but for a cached deadline; any number of them may exist. Cancelling a call ends the
    waiting only. No call waits for ever, even if the actor hangs.

    Args:
        handle: the actor handle; the first one, which :func:`create_coordinator` holds, keeps the
            actor alive.
        answer_timeout_s: limit for calls that take the coordinator no time.
        wait_grace_s: how long after a wait's timeout the coordinator may still say so.
    """

    def __init__(
        self,
        handle: Any,
        *,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        wait_grace_s: float = WAIT_GRACE_S,
    ) -> None:
        self.handle = handle
        self._answer_timeout_s = answer_timeout_s
        self._wait_grace_s = wait_grace_s
        self._operation_limit_s: float | None = None

    async def begin_batch(self, batch: BatchId) -> None:
        """As the port says; also ``JobError`` if the coordinator is gone or silent."""
        await self._ask(f"begin_batch({batch})", self.handle.begin_batch.remote(batch))

    async def activate(self, batch: BatchId, role: RoleName, operation: OperationId) -> FencingToken:
        """As the port says; also ``JobError`` if the coordinator is gone or silent."""
        limit_s = await self._limit_of_operations()
        call = self.handle.activate.remote(batch, role, operation)
        return await self._ask(f"activate({batch}, {role}, {operation!r})", call, limit_s)

    async def deactivate(self, batch: BatchId, role: RoleName, operation: OperationId) -> None:
        """As the port says; also ``JobError`` if the coordinator is gone or silent."""
        limit_s = await self._limit_of_operations()
        call = self.handle.deactivate.remote(batch, role, operation)
        await self._ask(f"deactivate({batch}, {role}, {operation!r})", call, limit_s)

    async def commit_batch(self, batch: BatchId, *, acknowledged: bool) -> None:
        """As the port says; also ``JobError`` if the coordinator is gone or silent."""
        await self._ask(f"commit_batch({batch})", self.handle.commit_batch.remote(batch, acknowledged))

    async def fail_batch(self, batch: BatchId, reason: str) -> None:
        """As the port says; also ``JobError`` if the coordinator is gone or silent."""
        await self._ask(f"fail_batch({batch})", self.handle.fail_batch.remote(batch, reason))

    async def wait_committed(self, batch: BatchId, timeout_s: float) -> None:
        """As the port says; also ``JobError`` if the coordinator is gone.

        Without any answer it ends ``wait_grace_s`` after the timeout.
        """
        timeout_s = max(0.0, timeout_s)
        call = self.handle.wait_committed.remote(batch, timeout_s)
        try:
            await self._ask(f"wait_committed({batch})", call, timeout_s + self._wait_grace_s)
        except _NoAnswerError as error:
            raise CommitTimeoutError(f"batch {batch} was not seen committed: {error}") from error

    async def status(self) -> Mapping[str, Any]:
        """As the port says; also ``JobError`` if the coordinator is gone or silent."""
        return await self._ask("status()", self.handle.status.remote())

    async def _limit_of_operations(self) -> float:
        if self._operation_limit_s is None:
            timeout_s: float = await self._ask("timeout_s()", self.handle.timeout_s.remote())
            # A deactivate may have to wait for an onload or another offload first.
            self._operation_limit_s = 2 * timeout_s + self._answer_timeout_s
        return self._operation_limit_s

    async def _ask(self, asked: str, call: Awaitable[T], limit_s: float | None = None) -> T:
        limit_s = self._answer_timeout_s if limit_s is None else limit_s
        try:
            async with asyncio.timeout(limit_s):
                return await answer_of(f"the coordinator's {asked}", call)
        except TimeoutError as error:
            raise _NoAnswerError(
                f"the coordinator did not answer {asked} within {limit_s:g} s. Whether it was carried out "
                "is not known; repeating it with the same ids is safe"
            ) from error


class _NoAnswerError(JobError):
    """The client's own limit passed."""


class RayRoleLifecycle:
    """Implements :class:`~rolecall.leases.port.RoleLifecycle` over a RoleService's actor handle.

    Sets no limit of its own: the coordinator's deadline rules, and a late answer is to be seen.
    """

    def __init__(self, role: RoleName, handle: Any) -> None:
        self._role = role
        self._handle = handle

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        """Wake the role; raises what it raised, or ``JobError`` for Ray."""
        return await answer_of(f"{self._role}'s onload", self._handle.onload.remote(token, timeout_s))

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        """Put the role to sleep; raises what it raised, or ``JobError`` for Ray."""
        return await answer_of(f"{self._role}'s offload", self._handle.offload.remote(token, timeout_s))


def create_coordinator(
    *,
    namespace: str,
    services: Mapping[RoleName, Any],
    events: Any,
    conflicts: Mapping[RoleName, Set[RoleName]],
    opening: Mapping[RoleName, OpeningLease],
    training: Set[RoleName] = frozenset(),
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> RayCoordinator:
    """Start the job's coordinator actor and return a client of it.

    The actor ends when the returned client (its handle) is dropped or this process ends. A setup
    that contradicts itself shows as ``JobError`` on the first call.
    """
    actor: Any = ray.remote(CoordinatorActor)
    handle = actor.options(
        name=ACTOR_NAME,
        namespace=namespace,
        num_cpus=0,
        max_concurrency=MAX_CONCURRENT_CALLS,
        max_restarts=0,
    ).remote(
        services=dict(services),
        events=events,
        conflicts=dict(conflicts),
        opening=dict(opening),
        training=frozenset(training),
        timeout_s=timeout_s,
    )
    return RayCoordinator(handle)


def find_coordinator(namespace: str) -> RayCoordinator:
    """Return a client of a running job's coordinator, from any process on its Ray.

    Raises:
        JobError: there is no coordinator in that namespace.
    """
    try:
        return RayCoordinator(ray.get_actor(ACTOR_NAME, namespace=namespace))
    except ValueError as error:
        raise JobError(
            f"no coordinator runs in Ray namespace {namespace!r}; is the job up, and is this its Ray? "
            "See: rolecall status"
        ) from error


async def answer_of(asked: str, call: Awaitable[T]) -> T:
    """Await a remote call; raise what the other side raised, or say in our words what Ray saw."""
    try:
        return await call
    except RayTaskError as error:
        original = error.cause
        if isinstance(original, RolecallError):
            raise original from error
        raise JobError(f"{asked} broke: {type(original).__name__}: {original}") from error
    except ActorUnavailableError as error:
        raise JobError(
            f"{asked} had no answer, the actor can't be reached. Whether it was carried out is not "
            "known; repeating it with the same ids is safe"
        ) from error
    except RayActorError as error:
        raise JobError(f"{asked} failed, the actor is gone and the job can't go on: {error}") from error
    except RayError as error:
        raise JobError(f"{asked} failed in Ray: {error}") from error
