"""A running job: what is started, in which order, and how all of it is undone.

:func:`running_job` is the only door. Every step puts its undoing on one stack, so a failure at
any step, Ctrl-C and the normal end take the same way down. What can't be undone because this
process was killed is the guardian's work.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from attrs import evolve, frozen

from rolecall.config.resolve import ResolvedJob
from rolecall.engines.proof import Proof
from rolecall.errors import JobError
from rolecall.events.hub import event_to_json
from rolecall.gateway.serve import app_name
from rolecall.ids import OperationId, RoleName
from rolecall.job.bring_up import Say, bring_up
from rolecall.job.control import serve_control
from rolecall.job.find import must_be_new
from rolecall.job.former_run import begin_anew, resumable
from rolecall.job.guardian import Charge, Guardian
from rolecall.job.handle import JobHandle
from rolecall.job.paths import JobState, make_run_dir, write_state
from rolecall.job.session import ray_session
from rolecall.job.sweep import end_processes, remove_files
from rolecall.leases.coordinator_actor import answer_of
from rolecall.leases.reconciliation import Claim
from rolecall.placement.plan import PlacementPlan
from rolecall.scaling.request import scale_in_from, scale_out_from

STATUS_S = 10.0
"""How long a role may take to tell its status."""

END_GRACE_S = 5.0
"""How long the job's last processes may take to end by themselves once Ray is down."""


@frozen(kw_only=True)
class RunningJob:
    """A job that this process owns. ``services`` are Ray actor handles, one a role."""

    handle: JobHandle
    state: JobState
    services: Mapping[RoleName, Any]

    async def status(self) -> dict[str, Any]:
        """Return leases, batches and every role's replicas as JSON values.

        A role whose service does not answer has no replicas and says so under ``problem``.
        """
        answers = await asyncio.gather(*(_status_of(*entry) for entry in self.services.items()))
        return {
            "job": self.state.name,
            "gateway_url": self.state.gateway_url,
            "ray_address": self.state.ray_address,
            "coordinator": dict(await self.handle.coordinator.status()),
            "roles": dict(zip(self.services, answers, strict=True)),
        }

    async def reconcile(self, role: str, operation: str, proof: str, by: str, note: str) -> dict[str, Any]:
        """Lift a role's fence if what ``by`` claims is found true; returns the audit record.

        Raises:
            LeaseError: as :meth:`~rolecall.leases.port.CoordinatorPort.reconcile` says.
        """
        claim = Claim(proof=Proof(proof), by=by, note=note)
        record = await self.handle.coordinator.reconcile(RoleName(role), OperationId(operation), claim=claim)
        return record.to_json()

    async def scale(self, role: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """Begin to scale a role's model as a command asks; a total alone may be more or fewer.

        Raises:
            PayloadError: a value is wrong.
            ScaleRefused: see :meth:`JobHandle.scale`.
        """
        if "total" in wanted:
            status = await self.handle.role_status(role)
            replicas = [each for each in status["replicas"] if wanted["model"] in (None, each["model"])]
            fewer = len(replicas) > (wanted["total"] or 0)
            force = wanted.pop("force")
            return await self.handle.scale(
                role, scale_in_from({**wanted, "force": force}) if fewer else scale_out_from(wanted)
            )
        return await self.handle.scale(role, scale_out_from(wanted))

    async def scale_operation(self, role: str, operation: str, wait_s: float = 0.0) -> dict[str, Any]:
        """As :meth:`JobHandle.scale_operation`."""
        return await self.handle.scale_operation(role, operation, wait_s=wait_s)

    async def events(self, since: int, wait_s: float) -> dict[str, Any]:
        """Return the events from number ``since`` on, waiting for the first, and the number of the next."""
        following, events = await self.handle.hub.tail.remote(since, wait_s)
        return {"next": following, "events": [event_to_json(event) for event in events]}


async def _status_of(role: RoleName, service: Any) -> dict[str, Any]:
    try:
        async with asyncio.timeout(STATUS_S):
            return await answer_of(f"{role}'s status", service.status.remote())
    except (JobError, TimeoutError) as error:
        problem = str(error) or f"no answer within {STATUS_S:g} s"
        return {"role": role, "replicas": [], "routers": [], "problem": problem}


@asynccontextmanager
async def running_job(
    resolved: ResolvedJob,
    plan: PlacementPlan,
    say: Say,
    *,
    log: Path | None = None,
    resume: bool = False,
) -> AsyncGenerator[RunningJob]:
    """Bring a job up; everything it started is gone when the block is left.

    ``say`` is told each step. ``log`` is where this process's output goes, None for a terminal. With
    ``resume`` the coordinator knows what the run before had committed; otherwise that run's journal is set
    aside.

    Raises:
        JobError: a job of that name runs here already, or Ray, a role or a gateway did not
            come up; the message has the reason, and nothing is left behind.
        PlacementRefused: the plan does not fit the real bundles.
    """
    config = resolved.config
    name = config.job.name
    must_be_new(name)
    former_run = None
    if resume:
        former_run = resumable(resolved).run
    elif (former := begin_anew(resolved)) is not None:
        say(former)
    async with AsyncExitStack() as undo:
        run_dir = make_run_dir()
        charge = Charge(job=name, run_dir=str(run_dir))
        guardian = Guardian(charge)
        undo.push_async_callback(asyncio.to_thread, guardian.dismiss)
        undo.push_async_callback(asyncio.to_thread, _leave_nothing, name, run_dir)
        local = config.cluster.is_private
        say("starting Ray" if local else f"joining Ray at {config.cluster.address}")
        session = undo.enter_context(ray_session(config, plan, run_dir))
        apps = tuple(app_name(name, role) for role in config.roles)
        charge = evolve(charge, joined_address=session.joined_address, apps=apps)
        guardian.charge(charge)
        parts = await bring_up(
            resolved=resolved,
            plan=plan,
            session=session,
            run_dir=run_dir,
            former_run=former_run,
            undo=undo,
            say=say,
        )
        guardian.charge(evolve(charge, owns_serve=parts.gateways.owns_serve))
        state = JobState(
            name=name,
            file=str(resolved.file),
            pid=os.getpid(),
            pid_started_s=psutil.Process().create_time(),
            run_dir=str(run_dir),
            namespace=session.namespace,
            ray_address=session.address,
            gateway_url=parts.gateways.base_url,
            log=None if log is None else str(log),
            block=config.plugins.block,
            training=parts.training,
        )
        job = RunningJob(
            handle=JobHandle(
                resolved=resolved,
                coordinator=parts.coordinator,
                gateway_url=parts.gateways.base_url,
                hub=parts.hub,
                services=parts.services,
                training=parts.training,
            ),
            state=state,
            services=parts.services,
        )
        commands = {
            "status": job.status,
            "reconcile": job.reconcile,
            "events": job.events,
            "scale": job.scale,
            "scale_operation": job.scale_operation,
            "cancel_scale": job.handle.cancel_scale,
        }
        server = await serve_control(run_dir, commands)
        undo.callback(server.close)
        write_state(state)
        yield job
        say("stopping")


def _leave_nothing(name: str, run_dir: Path) -> None:
    left = end_processes(run_dir, grace_s=END_GRACE_S)
    remove_files(name, run_dir)
    if left:
        raise JobError(f"processes {left} of job {name!r} could not be ended; end them by hand")
