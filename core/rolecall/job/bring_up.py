"""Start the parts of a job on a joined Ray, in order, each with its undoing.

A resumed job first has everything of its former process proved gone. Order: event hub and registry; placement
groups, probed and bound, and the owner of the devices that are left over; one service a role; every role
started and, if it shares devices with another, proved asleep before the next one starts; the coordinator; the
gateways. The first step that fails ends the start: its error is raised, and the caller's stack undoes what
was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from attrs import frozen
from ray.exceptions import RayError

from rolecall.batches.shielded import finish
from rolecall.cluster.pool_groups import PoolGroups
from rolecall.cluster.ray_cluster import CREATE_TIMEOUT_S, pools_for, probe_pools, remove_pools
from rolecall.cluster.spare_devices import create_spare_devices, spare_offer
from rolecall.config.resolve import ResolvedJob
from rolecall.discovery.registry_actor import create_registry
from rolecall.engines.results import LifecycleResult
from rolecall.engines.role_service import actor_name, create_role_service
from rolecall.errors import JobError
from rolecall.events.hub_actor import ACTOR_NAME as HUB_NAME
from rolecall.events.hub_actor import start_hub
from rolecall.events.outbox import flush_all
from rolecall.gateway.serve import Gateways, deploy_gateways, remove_gateways
from rolecall.ids import FencingToken, RoleName
from rolecall.job.former_run import prove_gone
from rolecall.job.paths import journal_path
from rolecall.job.session import RaySession
from rolecall.job.training_devices import TrainingDevice, training_devices
from rolecall.leases.confirmation import opening_lease
from rolecall.leases.coordinator_actor import (
    NamedActor,
    RayCoordinator,
    answer_of,
    create_coordinator,
)
from rolecall.leases.lease_state import LeaseState, OpeningLease
from rolecall.leases.trainer import lease_conflicts, trainers_opening_lease
from rolecall.placement.binding import bind
from rolecall.placement.plan import PlacementPlan

Say = Callable[[str], None]
"""Told what is being done, one short line a step."""

BRING_UP_TOKEN = FencingToken(0)
"""Lower than every token the coordinator grants: for commands given before it exists."""

SHUTDOWN_TIMEOUT_S = 60.0
"""How long one role may take to stop its engines at the end of a job."""


@frozen(kw_only=True)
class Parts:
    """What was started. ``hub`` and ``services`` are Ray actor handles; ``training`` is for the trainer."""

    hub: Any
    services: Mapping[RoleName, Any]
    training: tuple[TrainingDevice, ...]
    coordinator: RayCoordinator
    gateways: Gateways


async def bring_up(
    *,
    resolved: ResolvedJob,
    plan: PlacementPlan,
    session: RaySession,
    run_dir: Path,
    former_run: str | None,
    undo: AsyncExitStack,
    say: Say,
) -> Parts:
    """Start everything of a job; what was started is undone by ``undo``.

    ``former_run`` is the run folder of the run that is resumed, None for a fresh one.

    Raises:
        EngineError: engines of the former run are not proved gone.
        JobError: a role did not come up, or could not be proved asleep.
        PlacementRefused: the bundles are not what the plan needs.
    """
    config = resolved.config
    namespace = session.namespace
    if former_run is not None:
        say("proving that nothing of the former run is left")
        await prove_gone(former_run)
    hub = start_hub(
        namespace,
        observers=config.job.observers,
        log_path=None if config.job.event_log is None else resolved.file.parent / config.job.event_log,
        plugins=config.plugins,
        append=former_run is not None,
    )
    undo.push_async_callback(_close_hub, hub)
    registry = create_registry(namespace)
    say("binding the plan to real bundles")
    pools = pools_for(plan, job=config.job.name)
    undo.push_async_callback(asyncio.to_thread, remove_pools, pools)
    await _create(pools)
    bound = bind(plan, await asyncio.to_thread(probe_pools, pools))
    spares = create_spare_devices(spare_offer(config, bound))
    undo.push_async_callback(_return_spares, spares)
    services: dict[RoleName, Any] = {}
    undo.push_async_callback(_stop_roles, services)
    for name in resolved.roles:
        role = RoleName(name)
        services[role] = create_role_service(
            config=config,
            file=resolved.file,
            role=role,
            bound=bound,
            groups=pools.handles,
            registry=registry,
            events=hub,
            run_dir=run_dir,
            namespace=namespace,
            spares=spares,
        )
    opening = await _start_roles(plan, services, config.lifecycle.manager_timeout_s, say)
    conflicts = lease_conflicts(plan, services)
    training = conflicts.keys() - services.keys()
    opening |= {role: trainers_opening_lease(shared=bool(conflicts[role])) for role in training}
    coordinator = create_coordinator(
        namespace=namespace,
        services={role: NamedActor(name=actor_name(role), namespace=namespace) for role in services},
        events=NamedActor(name=HUB_NAME, namespace=namespace),
        conflicts=conflicts,
        opening=opening,
        training=training,
        timeout_s=config.lifecycle.manager_timeout_s,
        journal=journal_path(config, resolved.file),
        run=str(run_dir),
    )
    await coordinator.status()  # a journal that can't be used ends the start here
    say("deploying gateways")
    gateways = await asyncio.to_thread(
        deploy_gateways, config, resolved.file, namespace=namespace, run_dir=run_dir
    )
    if session.joined_address is not None:
        # A private Ray takes its Serve with it.
        undo.push_async_callback(asyncio.to_thread, remove_gateways, gateways)
    return Parts(
        hub=hub,
        services=services,
        training=training_devices(bound, pools.names),
        coordinator=coordinator,
        gateways=gateways,
    )


async def _create(pools: PoolGroups) -> None:
    """Create the placement groups in a thread, which has ended when this returns, also by cancellation."""
    work = asyncio.create_task(asyncio.to_thread(pools.create, CREATE_TIMEOUT_S))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        pools.give_up()
        await finish(asyncio.wait({work}))
        work.exception()  # what is not removed is tried again by the caller's stack
        raise


async def _start_roles(
    plan: PlacementPlan, services: Mapping[RoleName, Any], offload_timeout_s: float, say: Say
) -> dict[RoleName, OpeningLease]:
    """Start resident roles together, then those that share devices one after the other."""
    opening: dict[RoleName, OpeningLease] = {}
    resident = [role for role in services if not plan.conflicts(role)]
    for role in resident:
        say(f"starting {role}")
    starts = await asyncio.gather(*(_start(role, services[role]) for role in resident))
    for role, started in zip(resident, starts, strict=True):
        replicas = len(plan.replicas_of(role))
        opening[role] = _proved(opening_lease(role, started, shared=False, replicas=replicas), role)
    for role, service in services.items():
        if role in opening:
            continue
        say(f"starting {role}, then putting it to sleep")
        _require(await _start(role, service), f"role {role} did not come up")
        slept = await answer_of(
            f"{role}'s offload", service.offload.remote(BRING_UP_TOKEN, offload_timeout_s)
        )
        replicas = len(plan.replicas_of(role))
        opening[role] = _proved(opening_lease(role, slept, shared=True, replicas=replicas), role)
    return opening


async def _start(role: RoleName, service: Any) -> LifecycleResult:
    return await answer_of(f"{role}'s start", service.start.remote())


def _proved(lease: OpeningLease, role: RoleName) -> OpeningLease:
    if lease.state is LeaseState.BLOCKED:
        raise JobError(f"role {role} did not come up: {lease.reason}")
    return lease


def _require(result: LifecycleResult, problem: str) -> None:
    if not result.confirmed:
        raise JobError(f"{problem}: {result.problem}")


async def _stop_roles(services: Mapping[RoleName, Any]) -> None:
    """Stop all roles at once; the first that is not confirmed is raised when all have answered."""
    results = await asyncio.gather(
        *(
            answer_of(f"{role}'s shutdown", service.shutdown.remote(SHUTDOWN_TIMEOUT_S))
            for role, service in services.items()
        ),
        return_exceptions=True,
    )
    for result in results:
        if isinstance(result, BaseException):
            raise result
        _require(result, f"role {result.role} could not be stopped with confirmation")


async def _return_spares(spares: Any) -> None:
    await answer_of(
        "removing the placement groups of added replicas", spares.give_all_back.remote(SHUTDOWN_TIMEOUT_S)
    )


async def _close_hub(hub: Any) -> None:
    try:
        flush_all()
        await hub.close.remote()
    except RayError as error:
        raise JobError(f"the event hub did not close its log: {error}") from error
