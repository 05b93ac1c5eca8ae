"""The coordinator on Ray: its actor, the client that callers hold, and its way to the roles.

The actor is one per job, named ``coordinator`` in the job's namespace, and needs no CPU slot. It lives as
long as the job process that created it, on that process's node, where its journal is. One that dies is
restarted by Ray and takes over by the journal; clients repeat their calls meanwhile, which is safe, as a
repeat does nothing or joins. Without a journal it is not restarted: a second one would know nothing of the
leases given by the first.

Ray's errors stop here. What the coordinator or a role raised arrives as the rolecall error it
was: a ``LeaseError`` is always the coordinator's own word. What only Ray has to say, that the
actor is gone or that no answer came, becomes a ``JobError`` with the Ray error as its cause; the
call may have been carried out, and repeating it with the same ids is safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Set
from pathlib import Path
from typing import Any, TypeVar

import ray
from attrs import frozen
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rolecall.engines.proof import Proof
from rolecall.engines.results import LifecycleResult
from rolecall.errors import CommitTimeoutError, JobError, RolecallError
from rolecall.events.hub_actor import remote_emitter
from rolecall.ids import BatchId, FencingToken, OperationId, RoleName
from rolecall.leases.coordinator import DEFAULT_TIMEOUT_S, LeaseCoordinator
from rolecall.leases.journal import FileJournal
from rolecall.leases.lease_state import OpeningLease
from rolecall.leases.reconciliation import Claim, Reconciliation
from rolecall.leases.repeating import UnreachableError, repeating

ACTOR_NAME = "coordinator"

MAX_CONCURRENT_CALLS = 10_000
"""Each waiting consumer holds a call open; they must never keep a runner's command out."""

MAX_RESTARTS = 100
"""A coordinator that keeps on dying has a defect that restarting does not mend."""

ANSWER_TIMEOUT_S = 30.0
WAIT_GRACE_S = 5.0

T = TypeVar("T")


@frozen(kw_only=True)
class NamedActor:
    """Where a restarted actor finds another one: Ray does not promise to keep handles for that long."""

    name: str
    namespace: str

    def handle(self) -> Any:
        return ray.get_actor(self.name, namespace=self.namespace)


class CoordinatorActor:
    """The Ray actor around :class:`LeaseCoordinator`; made by :func:`create_coordinator`.

    Args:
        services: role → its RoleService.
        events: the event hub.
        journal: path of the journal on this node; None: none is kept.
        The others are those of :class:`LeaseCoordinator`.
    """

    def __init__(
        self,
        *,
        services: Mapping[RoleName, NamedActor],
        events: NamedActor,
        conflicts: Mapping[RoleName, Set[RoleName]],
        opening: Mapping[RoleName, OpeningLease],
        training: Set[RoleName],
        timeout_s: float,
        journal: str | None,
        run: str,
    ) -> None:
        self._timeout_s = timeout_s
        self._coordinator = LeaseCoordinator(
            {role: RayRoleLifecycle(role, service.handle()) for role, service in services.items()},
            conflicts=conflicts,
            opening=opening,
            training=training,
            timeout_s=timeout_s,
            emit=remote_emitter(events.handle()),
            journal=None if journal is None else FileJournal(Path(journal)),
            run=run,
        )

    async def begin_batch(self, batch: BatchId) -> int:
        return await self._coordinator.begin_batch(batch)

    async def activate(
        self, batch: BatchId, role: RoleName, operation: OperationId, attempt: int | None = None
    ) -> FencingToken:
        return await self._coordinator.activate(batch, role, operation, attempt=attempt)

    async def prepare(self, batch: BatchId, role: RoleName) -> None:
        await self._coordinator.prepare(batch, role)

    async def deactivate(
        self, batch: BatchId, role: RoleName, operation: OperationId, attempt: int | None = None
    ) -> None:
        await self._coordinator.deactivate(batch, role, operation, attempt=attempt)

    async def commit_batch(self, batch: BatchId, acknowledged: bool, attempt: int | None = None) -> None:
        await self._coordinator.commit_batch(batch, acknowledged=acknowledged, attempt=attempt)

    async def fail_batch(self, batch: BatchId, reason: str, attempt: int | None = None) -> None:
        await self._coordinator.fail_batch(batch, reason, attempt=attempt)

    async def resume(self, operation: OperationId) -> BatchId:
        return await self._coordinator.resume(operation)

    async def wait_committed(self, batch: BatchId, timeout_s: float) -> None:
        await self._coordinator.wait_committed(batch, timeout_s)

    async def reconcile(self, role: RoleName, operation: OperationId, claim: Claim) -> Reconciliation:
        return await self._coordinator.reconcile(role, operation, claim=claim)

    async def status(self) -> Mapping[str, Any]:
        return await self._coordinator.status()

    async def timeout_s(self) -> float:
        """Return the deadline of one command to a role."""
        return self._timeout_s


class RayCoordinator:
    """Implements :class:`~rolecall.leases.port.CoordinatorPort` by calling the actor.

    Stateless but for a cached deadline; any number of them may exist. Cancelling a call ends the
    waiting only. While the actor is restarted calls are repeated. No call waits for ever, even if the
    actor hangs.

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

    async def begin_batch(self, batch: BatchId) -> int:
        """As the port says; also ``JobError`` if the coordinator is gone or silent."""
        return await self._ask(f"begin_batch({batch})", lambda: self.handle.begin_batch.remote(batch))

    async def activate(
        self, batch: BatchId, role: RoleName, operation: OperationId, *, attempt: int | None = None
    ) -> FencingToken:
        """As the port says; also ``JobError`` if the coordinator is gone or silent."""
        return await self._ask(
            f"activate({batch}, {role}, {operation!r})",
            lambda: self.handle.activate.remote(batch, role, operation, attempt),
            await self._limit_of_operations(),
        )

    async def prepare(self, batch: BatchId, role: RoleName) -> None:
        """As the port says; also ``JobError`` if the coordinator is gone or silent."""
        await self._ask(
            f"prepare({batch}, {role})",
            lambda: self.handle.prepare.remote(batch, role),
            await self._limit_of_operations(),
        )

    async def deactivate(
        self, batch: BatchId, role: RoleName, operation: OperationId, *, attempt: int | None = None
    ) -> None:
        """As the port says; also ``JobError`` if the coordinator is gone or silent."""
        await self._ask(
            f"deactivate({batch}, {role}, {operation!r})",
            lambda: self.handle.deactivate.remote(batch, role, operation, attempt),
            await self._limit_of_operations(),
        )

    async def commit_batch(self, batch: BatchId, *, acknowledged: bool, attempt: int | None = None) -> None:
        """As the port says; also ``JobError`` if the coordinator is gone or silent."""
        await self._ask(
            f"commit_batch({batch})",
            lambda: self.handle.commit_batch.remote(batch, acknowledged, attempt),
            await self._limit_of_operations(),
        )

    async def fail_batch(self, batch: BatchId, reason: str, *, attempt: int | None = None) -> None:
        """As the port says; also ``JobError`` if the coordinator is gone or silent."""
        await self._ask(f"fail_batch({batch})", lambda: self.handle.fail_batch.remote(batch, reason, attempt))

    async def resume(self, operation: OperationId) -> BatchId:
        """As the port says; also ``JobError`` if the coordinator is gone or silent."""
        return await self._ask(
            f"resume({operation!r})",
            lambda: self.handle.resume.remote(operation),
            await self._limit_of_operations(),
        )

    async def wait_committed(self, batch: BatchId, timeout_s: float) -> None:
        """As the port says; also ``JobError`` if the coordinator is gone.

        Without any answer it ends ``wait_grace_s`` after the timeout.
        """
        timeout_s = max(0.0, timeout_s)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        left = iter((timeout_s,))  # a repeat has what is left then

        def wait() -> Awaitable[None]:
            left_s = next(left, max(0.0, began_s + timeout_s - loop.time()))
            return self.handle.wait_committed.remote(batch, left_s)

        try:
            await self._ask(f"wait_committed({batch})", wait, timeout_s + self._wait_grace_s)
        except _NoAnswerError as error:
            raise CommitTimeoutError(f"batch {batch} was not seen committed: {error}") from error

    async def reconcile(self, role: RoleName, operation: OperationId, *, claim: Claim) -> Reconciliation:
        """As the port says; also ``JobError`` if the coordinator is gone or silent."""
        return await self._ask(
            f"reconcile({role}, {operation!r})",
            lambda: self.handle.reconcile.remote(role, operation, claim),
            await self._limit_of_operations(),
        )

    async def status(self) -> Mapping[str, Any]:
        """As the port says; also ``JobError`` if the coordinator is gone or silent."""
        return await self._ask("status()", self.handle.status.remote)

    async def _limit_of_operations(self) -> float:
        if self._operation_limit_s is None:
            timeout_s: float = await self._ask("timeout_s()", self.handle.timeout_s.remote)
            # First the roles may have to account for themselves after a restart, and a deactivate may have to
            # wait for an onload or another offload.
            self._operation_limit_s = 3 * timeout_s + self._answer_timeout_s
        return self._operation_limit_s

    async def _ask(self, asked: str, call: Callable[[], Awaitable[T]], limit_s: float | None = None) -> T:
        """Call until there is an answer; ``limit_s`` is for all of it."""
        limit_s = self._answer_timeout_s if limit_s is None else limit_s
        what = f"the coordinator's {asked}"
        try:
            async with asyncio.timeout(limit_s):
                return await repeating(what, lambda: answer_of(what, call()))
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

    async def account(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        """Have the role say where it stands; raises what it raised, or ``JobError`` for Ray."""
        return await answer_of(f"{self._role}'s account", self._handle.account.remote(token, timeout_s))

    async def vacate(self, token: FencingToken, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        """Free the role's devices; raises what it raised, or ``JobError`` for Ray."""
        call = self._handle.vacate.remote(token, timeout_s, proof=proof)
        return await answer_of(f"{self._role}'s vacating", call)

    async def lift_fences(self, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        """Look for what dead workers left; raises what the role raised, or ``JobError`` for Ray."""
        call = self._handle.lift_fences.remote(timeout_s, proof=proof)
        return await answer_of(f"{self._role}'s lifting of fences", call)

    async def prepare(self, timeout_s: float) -> None:
        """Prepare the role's next wake; raises what it raised, or ``JobError`` for Ray."""
        await answer_of(f"{self._role}'s preparation", self._handle.prepare.remote(timeout_s))


def create_coordinator(
    *,
    namespace: str,
    services: Mapping[RoleName, NamedActor],
    events: NamedActor,
    conflicts: Mapping[RoleName, Set[RoleName]],
    opening: Mapping[RoleName, OpeningLease],
    training: Set[RoleName] = frozenset(),
    timeout_s: float = DEFAULT_TIMEOUT_S,
    journal: Path | None = None,
    run: str = "",
) -> RayCoordinator:
    """Start the job's coordinator actor on this node and return a client of it.

    ``journal`` is a path on this node, and ``run`` names this process of the job in it; see
    :class:`~rolecall.leases.ledger.Ledger`. The actor ends when the returned client (its handle) is dropped
    or this process ends. A setup that contradicts itself, or a journal that can't be used, shows as
    ``JobError`` on the first call.
    """
    actor: Any = ray.remote(CoordinatorActor)
    handle = actor.options(
        name=ACTOR_NAME,
        namespace=namespace,
        num_cpus=0,
        max_concurrency=MAX_CONCURRENT_CALLS,
        max_restarts=0 if journal is None else MAX_RESTARTS,
        scheduling_strategy=NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        ),
    ).remote(
        services=dict(services),
        events=events,
        conflicts=dict(conflicts),
        opening=dict(opening),
        training=frozenset(training),
        timeout_s=timeout_s,
        journal=None if journal is None else str(journal),
        run=run,
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
        raise UnreachableError(
            f"{asked} had no answer, the actor can't be reached. Whether it was carried out is not "
            "known; repeating it with the same ids is safe"
        ) from error
    except RayActorError as error:
        raise JobError(f"{asked} failed, the actor is gone and the job can't go on: {error}") from error
    except RayError as error:
        raise JobError(f"{asked} failed in Ray: {error}") from error
