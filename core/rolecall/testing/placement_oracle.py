"""Whether a layout is sound, decided the slow and obvious way: device by device.

The planner counts in ranges, runs and remainders. This module writes every device of every pool down, as
(pool, node, number on the node), and looks at each. It reads the values of a job and of its plan and calls
nothing of the planner, so that the two can only agree by both being right. Tests hold the core's checks,
the first-party modes and, through ``PlacementModeContract``, everybody's modes against it.

It judges layouts, not plugins: what an engine can do (sleep) or an adapter declares is not its business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import permutations

from rolecall.placement.nodes import Nodes
from rolecall.placement.plan import PlacementJob, PlacementPlan, ReplicaPlacement, RoleDemand, Tenant

RAY_UNITS = 10_000
"""Into how many parts Ray can divide a device."""


def faults(job: PlacementJob, plan: PlacementPlan) -> list[str]:
    """Return what makes ``plan`` no sound layout of ``job``; empty if it is one.

    What can't be looked at is not looked at: after a fault of pools or bundles nothing is said about
    nodes, and nothing about turns.
    """
    found = [*_pools(job, plan), *_replicas(job, plan), *_training(job, plan), *_phases(job, plan)]
    if found:
        return found
    sizes = {pool.pool_id: node_sizes(pool.nodes) for pool in plan.pools}
    on_nodes = {pool: dict(enumerate(places(nodes))) for pool, nodes in sizes.items()}
    for tenant in _tenants(plan):
        devices = on_nodes.get(tenant.pool_id, {})
        if not all(bundle in devices for bundle in tenant.bundles):
            found.append(f"{_name(tenant)} is on {tenant.bundles}, not all of them in its pool")
        elif isinstance(tenant, ReplicaPlacement):
            where = [devices[bundle] for bundle in tenant.bundles]
            if not in_a_row(tenant.bundles) or not holds_an_engine(where, sizes[tenant.pool_id]):
                found.append(f"{_name(tenant)} is on {where}, neither one node nor whole ones of one size")
    return found or [*_awake_together(plan), *_never_asleep(job, plan), *_too_crowded(plan)]


def node_sizes(nodes: Nodes, *, at_least: int = 0) -> list[int]:
    """Return the devices of each node; of nodes without end, as many nodes as have that many devices."""
    sizes: list[int] = []
    for run in nodes.runs:
        if run.count is not None:
            sizes += [run.devices] * run.count
        while run.count is None and sum(sizes) < at_least:
            sizes.append(run.devices)
    return sizes


def places(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return all devices of the nodes as (node, number on it), in the order of their bundles."""
    return [(node, number) for node, size in enumerate(sizes) for number in range(size)]


def in_a_row(bundles: Sequence[int]) -> bool:
    """Whether each bundle follows the one before."""
    return list(bundles) == list(range(bundles[0], bundles[0] + len(bundles)))


def holds_an_engine(where: Sequence[tuple[int, int]], sizes: Sequence[int]) -> bool:
    """Whether devices in a row, as (node, number), can be an engine's: all on one node, or all there are on
    several nodes of one size."""
    nodes = {node for node, _ in where}
    whole = len(where) == sum(sizes[node] for node in nodes)
    return len(nodes) == 1 or (whole and len({sizes[node] for node in nodes}) == 1)


def can_be_cut(pools: Sequence[Sequence[int]], sizes: Sequence[int]) -> bool:
    """Whether pools with these nodes can be cut out of nodes of these sizes: each node of a pool out of a
    node of its own. Tries every way, large pieces first; nodes in one state are as good as one another."""
    pieces = sorted(((size, pool) for pool, nodes in enumerate(pools) for size in nodes), reverse=True)

    @cache
    def cut(index: int, nodes: tuple[tuple[int, tuple[int, ...]], ...]) -> bool:
        """``nodes``: what each has left, and the pools that have a piece of it."""
        if index == len(pieces):
            return True
        size, pool = pieces[index]
        for node in dict.fromkeys(nodes):
            left, owners = node
            if left >= size and pool not in owners:
                others = list(nodes)
                others.remove(node)
                after = (left - size, tuple(sorted((*owners, pool))))
                if cut(index + 1, tuple(sorted([*others, after]))):
                    return True
        return False

    return cut(0, tuple(sorted((size, ()) for size in sizes)))


def conflicts(plan: PlacementPlan) -> dict[str, set[str]]:
    """Return, for each role, those that share a device with it; processes share as their trainer likes."""
    on: dict[tuple[str, int], list[Tenant]] = {}
    for tenant in _tenants(plan):
        for bundle in tenant.bundles:
            on.setdefault((tenant.pool_id, bundle), []).append(tenant)
    found: dict[str, set[str]] = {tenant.role: set() for tenant in _tenants(plan)}
    for sharing in on.values():
        for one, other in permutations(sharing, 2):
            if _sharer(one) != _sharer(other):
                found[one.role].add(other.role)
    return found


def reservations(plan: PlacementPlan) -> dict[tuple[str, int], float]:
    """Return what each actor on a bundle in use reserves: the most that all of them can have in Ray."""
    return {place: _share(len(actors)) for place, actors in _actors(plan).items()}


@cache
def _share(actors: int) -> float:
    return max(units for units in range(RAY_UNITS + 1) if units * actors <= RAY_UNITS) / RAY_UNITS


# --- what stands in the plan ---------------------------------------------------------------


def _pools(job: PlacementJob, plan: PlacementPlan) -> Iterator[str]:
    if len({pool.pool_id for pool in plan.pools}) < len(plan.pools):
        yield "two pools have one name"
    pools = [node_sizes(pool.nodes) for pool in plan.pools]
    for pool, sizes in zip(plan.pools, pools, strict=True):
        if not sizes or any(run.count is None for run in pool.nodes.runs):
            yield f"pool {pool.pool_id} has no devices, or no end"
        if pool.resource != job.resource:
            yield f"pool {pool.pool_id} is made of {pool.resource}, the job has {job.resource}"
    pieces = [size for sizes in pools for size in sizes]
    has_end = all(run.count is not None for run in job.nodes.runs)
    of_job = node_sizes(job.nodes, at_least=sum(pieces) * max(run.devices for run in job.nodes.runs))
    if has_end and sum(pieces) > sum(of_job):
        yield f"the pools have {sum(pieces)} devices, more than the job"
    for least in set(pieces):
        room = sum(size // least for size in of_job)
        if len([size for size in pieces if size >= least]) > room:
            yield f"the job has no room for so many nodes of {least}: {pools}"
        for sizes in pools:
            hosts = [size for size in of_job if size >= least]
            if len([size for size in sizes if size >= least]) > len(hosts):
                yield f"the job has not so many nodes of {least} as one pool: {sizes}"


def engines(role: RoleDemand) -> list[tuple[str, str, int]]:
    """Return name, model and devices of each engine of a role, in the order of the job file."""
    return [
        (f"{model.model}/replica-{index}", model.model, model.devices_per_engine)
        for model in role.models
        for index in range(model.replicas)
    ]


def _replicas(job: PlacementJob, plan: PlacementPlan) -> Iterator[str]:
    wanted = [(role.role, *engine) for role in job.roles for engine in engines(role)]
    placed = [(one.role, one.engine, one.model, len(set(one.bundles))) for one in plan.replicas]
    if sorted(wanted) != sorted(placed):
        yield f"the job has engines {sorted(wanted)}, the plan {sorted(placed)}"
    for replica in plan.replicas:
        if list(replica.bundles) != sorted(set(replica.bundles)):
            yield f"the bundles {replica.bundles} do not ascend"


def _training(job: PlacementJob, plan: PlacementPlan) -> Iterator[str]:
    wanted = [(role.role, role.on or role.role, role.devices) for role in job.training]
    placed = [(one.role, one.process, len(set(one.bundles))) for one in plan.training]
    if sorted(wanted) != sorted(placed):
        yield f"the job has training roles {sorted(wanted)}, the plan {sorted(placed)}"
    for role in plan.training:
        if list(role.bundles) != sorted(set(role.bundles)):
            yield f"the bundles {role.bundles} do not ascend"
        on = [host for host in plan.training if (host.role, host.pool_id) == (role.process, role.pool_id)]
        if not any(set(role.bundles) <= set(host.bundles) for host in on):
            yield f"training role {role.role} has devices that its process {role.process} has not"


def _phases(job: PlacementJob, plan: PlacementPlan) -> Iterator[str]:
    roles = {role.role for role in (*job.roles, *job.training)}
    awake = {role for phase in plan.phases for role in phase.roles}
    if awake != roles:
        yield f"the job has roles {sorted(roles)}, its phases {sorted(awake)}"
    if len({phase.name for phase in plan.phases}) < len(plan.phases):
        yield "two phases have one name"


# --- turns ---------------------------------------------------------------------------------


def _awake_together(plan: PlacementPlan) -> Iterator[str]:
    for phase in plan.phases:
        for place, actors in _actors(plan, awake=phase.roles).items():
            if len(actors) > 1:
                yield f"in phase {phase.name}, {sorted(actors)} are awake on {place} together"


def _never_asleep(job: PlacementJob, plan: PlacementPlan) -> Iterator[str]:
    restless = {role.role for role in job.roles if not role.deferrable}
    restless |= {role.role for role in job.training if role.on is None and not role.offload}
    for role, others in conflicts(plan).items():
        if others and role in restless:
            yield f"{role} shares devices with {sorted(others)} and never gives them up"


def _too_crowded(plan: PlacementPlan) -> Iterator[str]:
    for place, actors in _actors(plan).items():
        if len(actors) > RAY_UNITS:
            yield f"{len(actors)} actors are on {place}; Ray can't divide a device so often"


def _actors(
    plan: PlacementPlan, awake: Iterable[str] | None = None
) -> dict[tuple[str, int], set[tuple[str, str]]]:
    """Who is on each bundle in use: replicas, and processes of the trainer; only those awake."""
    on: dict[tuple[str, int], set[tuple[str, str]]] = {}
    for tenant in _tenants(plan):
        if awake is None or tenant.role in awake:
            actor = tenant.engine if isinstance(tenant, ReplicaPlacement) else "process"
            for bundle in tenant.bundles:
                on.setdefault((tenant.pool_id, bundle), set()).add((_sharer(tenant), actor))
    return on


def _tenants(plan: PlacementPlan) -> tuple[Tenant, ...]:
    return (*plan.replicas, *plan.training)


def _sharer(tenant: Tenant) -> str:
    """What takes turns as one: a role, or a process of the trainer."""
    return tenant.role if isinstance(tenant, ReplicaPlacement) else tenant.process


def _name(tenant: Tenant) -> str:
    return f"{tenant.role} {tenant.engine}" if isinstance(tenant, ReplicaPlacement) else tenant.role
