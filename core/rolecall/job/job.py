"""A running job: what is started, in which order, and how all of it is undone.

:func:`running_job` is the only door. It starts Ray, binds the plan to real bundles, starts the
roles (each role that shares devices is put to sleep, with proof, before the next one starts),
the coordinator and the gateways, and writes the state file. Every step puts its undoing on one
stack, so a failure at any step, Ctrl-C and the normal end take the same way down. What can't be
undone because this process is killed is the guardian's work.

It owns no samples and no leases: those are the batch runner's and the coordinator's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from rolecall.config.resolve import ResolvedJob
from rolecall.errors import JobError
from rolecall.events.event import Emit
from rolecall.ids import FencingToken, RoleName
from rolecall.job.guardian import Charge, Guardian
from rolecall.job.paths import JobState, make_run_dir, read_state, state_path
from rolecall.job.session import ray_session
from rolecall.job.sweep import end_processes, remove_files
from rolecall.leases.coordinator_actor import RayCoordinator
from rolecall.placement.plan import PlacementPlan

Say = Callable[[str], None]
"""Told what is being done, one short line a step."""

BRING_UP_TOKEN = FencingToken(0)
"""Lower than every token the coordinator grants: commands given before it exists."""


@frozen(kw_only=True)
class Job:
    """A job that is up. Handles are Ray actor handles."""

    resolved: ResolvedJob
    plan: PlacementPlan
    state: JobState
    coordinator: RayCoordinator
    services: Mapping[RoleName, Any]
    hub: Any
    emit: Emit

    async def status(self) -> dict[str, Any]:
        """Return leases, batches and every role's replicas as JSON values."""
        roles = dict(
            zip(
                self.services,
                await asyncio.gather(*(service.status.remote() for service in self.services.values())),
                strict=True,
            )
        )
        return {
            "job": self.state.name,
            "gateway_url": self.state.gateway_url,
            "ray_address": self.state.ray_address,
            "coordinator": dict(await self.coordinator.status()),
            "roles": roles,
        }


@asynccontextmanager
async def running_job(
    resolved: ResolvedJob, plan: PlacementPlan, say: Say, *, log: Path | None = None
) -> AsyncIterator[Job]:
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
        run_dir = make_run_dir(name)
        charge = Charge(job=name, run_dir=str(run_dir))
        guardian = Guardian(charge)
        undo.push_async_callback(asyncio.to_thread, guardian.dismiss)
        undo.push_async_callback(asyncio.to_thread, _leave_nothing, name, run_dir)
        say(
            "starting Ray"
            if config.cluster.address == "local"
            else f"joining Ray at {config.cluster.address}"
        )
        session = undo.enter_context(ray_session(config, plan, run_dir))
        yield await _bring_up(resolved, plan, session, run_dir, guardian, charge, undo, say, log)
        say("stopping")


def _leave_nothing(name: str, run_dir: Path) -> None:
    left = end_processes(run_dir, grace_s=5.0)
    remove_files(name, run_dir)
    if left:
        raise JobError(f"processes {left} of job {name!r} could not be ended; end them by hand")
