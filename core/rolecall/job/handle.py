"""A hold on a job that is up, the same for the process that started it and for any other.

Everything a training loop needs: the coordinator, a client a role, a batch runner, an opened
sink, the stream of events. It starts and stops nothing of the job.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from attrs import frozen

from rolecall.batches.plan import plan_stages
from rolecall.batches.runner import BatchRunner, Finalise
from rolecall.client.inference_client import InferenceClient
from rolecall.client.shared import shared_client
from rolecall.config.resolve import ResolvedJob, open_sink
from rolecall.errors import JobError
from rolecall.events.event import Emit, Event
from rolecall.events.hub_actor import remote_emitter
from rolecall.ids import RoleName
from rolecall.interfaces.batch_sink import BatchSink
from rolecall.leases.port import CoordinatorPort
from rolecall.plugins.host import PluginHost

TAIL_WAIT_S = 10.0


@frozen(kw_only=True)
class JobHandle:
    """A job that is up.

    coordinator: grants leases and keeps the commit gate.
    gateway_url: front of all gateways; a role's is ``{gateway_url}/{role}``.
    hub: Ray actor handle of the event hub.
    """

    resolved: ResolvedJob
    coordinator: CoordinatorPort
    gateway_url: str
    hub: Any

    @property
    def emit(self) -> Emit:
        """Sends events to the job's hub."""
        return remote_emitter(self.hub)

    async def client(self, role: str) -> InferenceClient:
        """Return the running loop's client of a role; it is closed with the loop."""
        config = self.resolved.config
        variable = config.gateway.bearer_token_env
        return await shared_client(
            f"{self.gateway_url}/{role}",
            policy=self.resolved.roles[role].policy,
            role=role,
            token=None if variable is None else os.environ.get(variable),
            timeout_s=config.gateway.request_timeout_s,
        )

    async def open_sink(self) -> BatchSink:
        """Open a batch sink of the caller's own, which the caller closes."""
        resolved = self.resolved
        return await asyncio.to_thread(
            open_sink, resolved.config, resolved.file, PluginHost.from_environment()
        )

    async def batch_runner(self, sink: BatchSink, finalise: Finalise | None = None) -> BatchRunner:
        """Return what runs this job's batches into ``sink``.

        Raises:
            JobError: the job file has no ``[batch]``.
        """
        settings = self.resolved.config.batch
        if settings is None:
            raise JobError(f"{self.resolved.file} has no [batch] table, so there is nothing to run")
        clients = {RoleName(role): await self.client(role) for role in self.resolved.roles}
        return BatchRunner(
            coordinator=self.coordinator,
            clients=clients.__getitem__,
            plan=plan_stages(self.resolved),
            sink=sink,
            settings=settings,
            emit=self.emit,
            finalise=finalise,
        )

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
