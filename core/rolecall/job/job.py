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
from rolecall.errors import JobError
from rolecall.gateway.serve import app_name
from rolecall.ids import RoleName
from rolecall.job.bring_up import Say, bring_up
from rolecall.job.control import serve_status
from rolecall.job.guardian import Charge, Guardian
from rolecall.job.handle import JobHandle
from rolecall.job.paths import JobState, make_run_dir, read_state, state_path, write_state
from rolecall.job.session import ray_session
from rolecall.job.sweep import end_processes, remove_files
from rolecall.placement.plan import PlacementPlan

END_GRACE_S = 5.0
"""How long the job's last processes may take to end by themselves once Ray is down."""


@frozen(kw_only=True)
class RunningJob:
    """A job that this process owns. ``services`` are Ray actor handles, one a role."""

    handle: JobHandle
    state: JobState
    services: Mapping[RoleName, Any]

    async def status(self) -> dict[str, Any]:
        """Return leases, batches and every role's replicas as JSON values."""
        answers = await asyncio.gather(*(service.status.remote() for service in self.services.values()))
        return {
            "job": self.state.name,
            "gateway_url": self.state.gateway_url,
            "ray_address": self.state.ray_address,
            "coordinator": dict(await self.handle.coordinator.status()),
            "roles": dict(zip(self.services, answers, strict=True)),
        }


@asynccontextmanager
async def running_job(
    resolved: ResolvedJob, plan: PlacementPlan, say: Say, *, log: Path | None = None
) -> AsyncGenerator[RunningJob]:
    """Bring a job up; everything it started is gone when the block is left.

    ``say`` is told each step. ``log`` is where this process's output goes, None for a terminal.

    Raises:
        JobError: a job of that name runs here already, or Ray, a role or a gateway did not
            come up; the message has the reason, and nothing is left behind.
        PlacementRefused: the plan does not fit the real bundles.
    """
    config = resolved.config
    name = config.job.name
    if (other := read_state(name)) is not None:
        raise JobError(
            f"job {name!r} is already known here (process {other.pid}, {state_path(name)}); end it with "
            f"`rolecall down {name}`, or give this one another name"
        )
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
            resolved=resolved, plan=plan, session=session, run_dir=run_dir, undo=undo, say=say
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
        server = await serve_status(run_dir, job.status)
        undo.callback(server.close)
        write_state(state)
        yield job
        say("stopping")


def _leave_nothing(name: str, run_dir: Path) -> None:
    left = end_processes(run_dir, grace_s=END_GRACE_S)
    remove_files(name, run_dir)
    if left:
        raise JobError(f"processes {left} of job {name!r} could not be ended; end them by hand")
