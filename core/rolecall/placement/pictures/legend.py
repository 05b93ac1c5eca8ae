"""What a picture of a plan says in words: its headline, its legend, its notes. Pure text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rolecall.ids import ModelId, RoleName
from rolecall.placement.occupancy import Occupancy
from rolecall.placement.pictures.blocks import Row, Span, blocks_of
from rolecall.placement.pictures.marks import Mark, marks
from rolecall.placement.pictures.sheet import Line, Sheet
from rolecall.placement.plan import REFERENCE_RESERVATION, PlacementPlan, ReplicaPlacement, Tenant
from rolecall.placement.wording import bundle_runs, counted

MAX_RUNS = 8
"""Runs of bundles that are still written out."""


def plan_sheet(plan: PlacementPlan) -> Sheet:
    """Return what a picture of a plan shows."""
    occupancy = Occupancy.of(plan)
    found = marks(plan)
    return Sheet(
        name=plan.mode,
        headline=_headline(plan),
        blocks=blocks_of(plan, occupancy),
        marks=found,
        titles=("role", "model", "engines", "pool", "bundles", "device share"),
        lines=tuple(_legend(plan, occupancy, found)),
        sentences=tuple(_sentences(plan, occupancy)),
    )


def _headline(plan: PlacementPlan) -> str:
    """Return what the layout is, in half a line; without the mode's name, which goes before it."""
    if not plan.pools:
        return "no role needs a device"
    devices = sum(pool.devices for pool in plan.pools)
    resources = " + ".join(dict.fromkeys(pool.resource for pool in plan.pools))
    turns = (
        "1 phase: all roles awake together"
        if len(plan.phases) == 1
        else f"{len(plan.phases)} phases, one at a time"
    )
    return f"{devices} {resources} in {counted(len(plan.pools), 'pool')} · {turns}"


def _legend(plan: PlacementPlan, occupancy: Occupancy, found: Mapping[RoleName, Mark]) -> Iterator[Line]:
    """Return a line for each model of each role, then one for each training role."""
    by_model: dict[tuple[RoleName, ModelId], list[ReplicaPlacement]] = {}
    for replica in plan.replicas:
        by_model.setdefault((replica.role, replica.model), []).append(replica)
    for (role, model), replicas in by_model.items():
        engines = f"{len(replicas)} × {counted(len(replicas[0].bundles), 'device')}"
        yield _line(found[role], (role, model, engines), replicas, occupancy)
    for placement in plan.training:
        processes = "1 process" if len(placement.bundles) == 1 else f"{len(placement.bundles)} processes"
        whose = "" if placement.process == placement.role else f" of {placement.process}"
        words = (placement.role, "(training)", processes + whose)
        yield _line(found[placement.role], words, [placement], occupancy)


def _line(mark: Mark, words: tuple[str, str, str], tenants: Sequence[Tenant], occupancy: Occupancy) -> Line:
    shares = dict.fromkeys(
        share_text(occupancy.share(tenant.pool_id, bundle))
        for tenant in tenants
        for bundle in (tenant.bundles[:1] if isinstance(tenant, ReplicaPlacement) else tenant.bundles)
    )
    return Line(
        mark=mark,
        cells=(
            *words,
            ", ".join(dict.fromkeys(tenant.pool_id for tenant in tenants)),
            bundles_text(bundle for tenant in tenants for bundle in tenant.bundles),
            " or ".join(shares),
        ),
    )


def bundles_text(bundles: Iterable[int]) -> str:
    """Return bundle numbers for people: their runs, or how many there are where that would be long.

    >>> bundles_text([0, 1, 2, 6]), bundles_text(range(0, 100, 2))
    ('0-2, 6', '50 of 0-98')
    """
    found = sorted(set(bundles))
    runs = bundle_runs(found)
    return runs if runs.count(",") < MAX_RUNS else f"{len(found)} of {found[0]}-{found[-1]}"


def share_text(share: float) -> str:
    """Return a device share for people.

    >>> share_text(1.0), share_text(0.3333)
    ('1', '0.3333')
    """
    return "1" if share == REFERENCE_RESERVATION else f"{share:.4g}"


def _sentences(plan: PlacementPlan, occupancy: Occupancy) -> Iterator[str]:
    """Say who takes turns with whom, a sentence for each set of roles, and which bundles nobody uses."""
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for (pool_id, bundle), tenants in occupancy.tenants.items():
        if len(tenants) > 1:
            names = tuple(dict.fromkeys(_process(tenant) for tenant in tenants))
            groups.setdefault((pool_id, names), []).append(bundle)
    for (pool_id, names), bundles in groups.items():
        if len(names) > 1:
            yield f"{listed(names)} take turns on {bundles_words(bundles)}{_of_pool(plan, pool_id)}."
    for pool in plan.pools:
        free = [bundle for bundle in range(pool.devices) if (pool.pool_id, bundle) not in occupancy.tenants]
        if free:
            yield f"Nobody uses {bundles_words(free)}{_of_pool(plan, pool.pool_id)}."


def bundles_words(bundles: Sequence[int]) -> str:
    some, of, where = bundles_text(bundles).rpartition(" of ")
    return f"{some}{of}bundle{'' if len(bundles) == 1 else 's'} {where}"


def _process(tenant: Tenant) -> RoleName:
    return tenant.role if isinstance(tenant, ReplicaPlacement) else tenant.process


def _of_pool(plan: PlacementPlan, pool_id: str) -> str:
    return f" of pool {pool_id}" if len(plan.pools) > 1 else ""


def details(row: Row, span: Span) -> Iterator[str]:
    """Say all there is to know of an engine or a trainer's process, for somebody who points at it."""
    tenant, occupancy = span.tenant, row.occupancy
    pool = next(pool for pool in row.plan.pools if pool.pool_id == tenant.pool_id)
    here = occupancy.tenants[tenant.pool_id, span.first]
    if isinstance(tenant, ReplicaPlacement):
        yield f"{tenant.role}: engine {tenant.engine}"
        yield f"model {tenant.model}"
    else:
        yield f"{tenant.role}: a process of the trainer"
        inside = [mate.role for mate in here if mate.role != tenant.role and _process(mate) == tenant.process]
        if inside:
            yield f"in it: {', '.join(inside)}"
    first, last = (pool.nodes.node_of(bundle)[0] for bundle in (span.first, span.stop - 1))
    nodes = f"node {first}" if first == last else f"nodes {first}-{last}"
    bundles = range(span.first, span.stop)
    yield f"{bundles_words(bundles)} on {nodes} of pool {pool.pool_id}"
    yield f"phase {row.label}"
    share = share_text(occupancy.share(tenant.pool_id, span.first))
    whose = "its first device" if len(bundles) > 1 else "its device"
    yield f"reserves {share} of {whose} in Ray"
    others = dict.fromkeys(
        _process(other)
        for bundle in bundles
        for other in occupancy.tenants[tenant.pool_id, bundle]
        if _process(other) != _process(tenant)
    )
    if others:
        yield f"takes turns with {listed(tuple(others))}"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
