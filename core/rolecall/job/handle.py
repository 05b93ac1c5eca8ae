"""A hold on a job that is up, the same for the process that started it and for any other.

Everything a training loop needs: the coordinator, a client a role, a batch runner, an opened
sink, new weights for the policy, the trainer's devices and its turns on them, the stream of
events. It starts and stops nothing of the job.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from attrs import frozen

from rolecall.batches.plan import plan_stages
from rolecall.batches.publication import Finalise
from rolecall.batches.runner import BatchRunner
from rolecall.batches.sharing import Sharing
from rolecall.client.inference_client import InferenceClient
from rolecall.config.resolve import ResolvedJob, job_plugins, open_sink
from rolecall.engines.results import LifecycleResult
from rolecall.errors import EngineError, JobError
from rolecall.events.event import Emit, Event
from rolecall.events.hub_actor import remote_emitter
from rolecall.ids import BatchId, OperationId, RoleName
from rolecall.interfaces.batch_sink import BatchSink
from rolecall.interfaces.engine_backend import WeightsGroup, WeightUpdate
from rolecall.job.asked import AskedJob
from rolecall.job.training_devices import TrainingDevice
from rolecall.job.training_turn import training_turn
from rolecall.leases.coordinator_actor import answer_of
from rolecall.leases.port import CoordinatorPort
from rolecall.scaling.request import ScaleRequest

TAIL_WAIT_S = 10.0
UPDATE_TIMEOUT_S = 600.0


@frozen(kw_only=True)
class JobHandle:
    """A job that is up.

    coordinator: grants leases and keeps the commit gate.
    gateway_url: front of all gateways; a role's is ``{gateway_url}/{role}``.
    hub: Ray actor handle of the event hub.
    services: Ray actor handles of the roles' services.
    training: devices of the trainer's processes.
    """

    resolved: ResolvedJob
    coordinator: CoordinatorPort
    gateway_url: str
    hub: Any
    services: Mapping[RoleName, Any]
    training: tuple[TrainingDevice, ...] = ()

    @property
    def emit(self) -> Emit:
        """Sends events to the job's hub."""
        return remote_emitter(self.hub)

    async def client(self, role: str) -> InferenceClient:
        """Return the running loop's client of a role; it is closed with the loop."""
        return await AskedJob(resolved=self.resolved, front=self.gateway_url).client(role)

    async def open_sink(self) -> BatchSink:
        """Open a batch sink of the caller's own, which the caller closes."""
        resolved = self.resolved
        return await asyncio.to_thread(
            open_sink, resolved.config, resolved.file, job_plugins(resolved.config.plugins)
        )

    async def batch_runner(self, sink: BatchSink, finalise: Finalise | None = None) -> BatchRunner:
        """Return what runs this job's batches into ``sink``.

        Raises:
            JobError: the job file has no ``[batch]``, or the coordinator does not answer.
        """
        settings = self.resolved.config.batch
        if settings is None:
            raise JobError(f"{self.resolved.file} has no [batch] table, so there is nothing to run")
        clients = {RoleName(role): await self.client(role) for role in self.resolved.roles}
        leases = (await self.coordinator.status())["leases"]
        sharing = Sharing({RoleName(role): frozenset(lease["conflicts"]) for role, lease in leases.items()})
        return BatchRunner(
            coordinator=self.coordinator,
            clients=clients.__getitem__,
            plan=plan_stages(self.resolved, sharing),
            sink=sink,
            settings=settings,
            emit=self.emit,
            finalise=finalise,
        )

    async def resume(self) -> BatchId:
        """Let a run that has failed go on; returns the lowest batch that is not committed.

        The batches that failed may be run again, and consumers wait for them as before. Every role that
        shares devices has to be asleep, and the trainer's turn over.

        Raises:
            LeaseError: a role is not asleep; names each, and what to do.
            JobError: the coordinator does not answer.
        """
        return await self.coordinator.resume(OperationId(f"resume/{secrets.token_hex(8)}"))

    def training_devices(self, role: str) -> tuple[TrainingDevice, ...]:
        """Return the devices of a training role, by rank: the trainer starts one actor on each.

        Raises:
            JobError: the job has no such training role, or it is in the processes of another one.
        """
        (process,) = self._processes([role])
        return tuple(device for device in self.training if device.role == process)

    def training_turn(self, batch: BatchId, *roles: str) -> AbstractAsyncContextManager[None]:
        """Hold the devices of training roles, or of all of them, for the length of a block.

        Inference roles that share the devices are asleep, and none of them is woken meanwhile. ``batch`` is
        the one that is trained on, once it is committed; before it begins, the trainer may load what it
        needs. The trainer's memory has to be free when the block ends. A block that is left by an error
        keeps the devices, until another one for the same batch has ended. Waits for nobody; where a mode
        gives the trainer devices of its own it holds nothing and never has to wait.

        Raises:
            LeaseError: a role on those devices is not asleep, or the batch is open; nothing is held.
            BatchFailedError: the run has failed.
            JobError: no such training role, or the coordinator does not answer.
        """
        return training_turn(self.coordinator, batch, self._processes(roles))

    def _processes(self, roles: Sequence[str]) -> list[RoleName]:
        training = self.resolved.config.training
        own = [name for name, role in training.items() if role.on is None]
        for role in roles:
            if role not in training:
                raise JobError(f"the job has no training role {role!r}; it has: {', '.join(own) or 'none'}")
            if role not in own:
                raise JobError(
                    f"training role {role!r} is in the processes of {training[role].on!r}; name that one"
                )
        return [RoleName(role) for role in roles or own]

    async def update_weights(
        self,
        role: str,
        update: WeightUpdate,
        version: str,
        *,
        model: str | None = None,
        timeout_s: float = UPDATE_TIMEOUT_S,
    ) -> LifecycleResult:
        """Give a role's model other weights; returns when all replicas that are awake serve them.

        A replica that sleeps gets weights from disk when it wakes, before it answers anything, so the
        files have to stay until the next update. ``model`` may be left out for a role with one.
        Repeating a call with the same files and version serves those replicas that lack them. A
        caller that gives up does not stop the update.

        Raises:
            CapabilityError: the model's weights never change, or its engines have no such way.
            EngineError: the version is no name for new weights; or a replica did not take them: it is
                not routable, and is rebuilt.
            JobError: the role's service did not answer.
        """
        return await self._weights("update_weights", role, model, update, version, timeout_s=timeout_s)

    async def join_weights_group(
        self,
        role: str,
        group: WeightsGroup,
        *,
        model: str | None = None,
        timeout_s: float = UPDATE_TIMEOUT_S,
    ) -> LifecycleResult:
        """Have all replicas of a model join a group for updates by broadcast.

        ``group.rank_offset`` is the rank of the first replica's first device, the others follow. The
        caller, as rank 0, has to join at the same time: the engines wait for it.

        Raises:
            CapabilityError, EngineError, JobError: as for ``update_weights``.
        """
        return await self._weights("join_weights_group", role, model, group, timeout_s=timeout_s)

    async def leave_weights_group(
        self, role: str, name: str, *, model: str | None = None, timeout_s: float = UPDATE_TIMEOUT_S
    ) -> LifecycleResult:
        """Have all replicas of a model leave a group. Repeats do nothing."""
        return await self._weights("leave_weights_group", role, model, name, timeout_s=timeout_s)

    async def scale(self, role: str, request: ScaleRequest) -> dict[str, Any]:
        """Begin to scale a role's model, and return the operation, as JSON values.

        It goes on by itself: ask for its ``id``. A dry run has none, and only says what would be done.

        Raises:
            ScaleConflictError: another operation of the role is under way.
            ScaleRefused: it is not allowed, or there is no room for it. Nothing has changed.
            JobError: the role's service did not answer.
        """
        return await answer_of(f"scaling {role}", self._service(role).scale.remote(request))

    async def scale_operation(self, role: str, operation: str, *, wait_s: float = 0.0) -> dict[str, Any]:
        """Return how far an operation is, waiting up to ``wait_s`` for its end.

        Raises:
            UnknownScaleOperationError: the role has none of that id, or no more.
            JobError: the role's service did not answer.
        """
        call = self._service(role).scale_operation.remote(operation, wait_s)
        return await answer_of(f"{role}'s operation {operation}", call)

    async def cancel_scale(self, role: str, operation: str) -> dict[str, Any]:
        """Have an operation give up what it waits for; returns it. Repeats do nothing, as at its end.

        Raises:
            UnknownScaleOperationError, JobError: as for ``scale_operation``.
        """
        call = self._service(role).cancel_scale.remote(operation)
        return await answer_of(f"cancelling {role}'s operation {operation}", call)

    async def role_status(self, role: str) -> dict[str, Any]:
        """Return everything known of a role's replicas, as JSON values; asks no engine.

        Raises:
            JobError: the job has no such role, or its service did not answer.
        """
        return await answer_of(f"{role}'s status", self._service(role).status.remote())

    def _service(self, role: str) -> Any:
        service = self.services.get(RoleName(role))
        if service is None:
            raise JobError(f"the job has no role {role!r}; it has: {', '.join(self.services)}")
        return service

    async def _weights(
        self, method: str, role: str, model: str | None, *arguments: Any, timeout_s: float
    ) -> LifecycleResult:
        call = getattr(self._service(role), method).remote(model, *arguments, timeout_s)
        result: LifecycleResult = await answer_of(f"{role}'s {method}", call)
        if not result.confirmed:
            raise EngineError(f"{method} of {role} is not confirmed: {result.problem}")
        return result

    async def events(self) -> AsyncIterator[Event]:
        """Yield the job's events from its first one on, then as they come; ends never."""
        following = 0
        while True:
            following, events = await self.hub.tail.remote(following, TAIL_WAIT_S)
            for event in events:
                yield event

    async def past_events(self) -> list[Event]:
        """Return the events up to now, as far back as the hub's history reaches."""
        _, events = await self.hub.tail.remote(0, 0.0)
        return events
