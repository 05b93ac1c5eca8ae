"""What a picture of a plan shows, before it is drawn: a block a pool, a row a phase, spans of bundles.

Pure. The terminal's map and the SVG are drawn from the same blocks, and a diff of two plans is made of
them too, so that all pictures say the same. Spans instead of single bundles: a large plan costs what its
engines cost, not what its bundles times its phases cost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum

from attrs import field, frozen

from rolecall.ids import RoleName
from rolecall.placement.nodes import Nodes
from rolecall.placement.occupancy import Occupancy
from rolecall.placement.plan import Phase, PlacementPlan, Pool, ReplicaPlacement, Tenant
from rolecall.placement.wording import counted

MAX_PERIOD = 8
"""Lines of a block that, repeated together, are still recognised and folded."""


class Sign(Enum):
    """Which of two plans a row tells of."""

    BOTH = " "
    BEFORE = "-"
    AFTER = "+"


@frozen(kw_only=True)
class Span:
    """The bundles ``first`` to ``stop - 1`` of one engine, or the one bundle of a trainer's process."""

    tenant: Tenant
    first: int
    stop: int
    faint: bool = False
    """It is the same in both of two plans, in a row that is not."""


@frozen(kw_only=True)
class Row:
    """Who is awake in one phase, ascending and disjoint; bundles in no span are free.

    ``devices`` are those that the pool has in the row's plan; a diff shows bundles beyond them too.
    """

    label: str
    devices: int
    plan: PlacementPlan = field(repr=False, eq=False)
    occupancy: Occupancy = field(repr=False, eq=False)
    spans: Sequence[Span]
    sign: Sign = Sign.BOTH

    def within(self, bundles: range) -> Iterator[Span]:
        """Return the spans that lie on these bundles, also those that go on outside them."""
        at = max(0, bisect_right(self.spans, bundles.start, key=_first) - 1)
        while at < len(self.spans) and self.spans[at].first < bundles.stop:
            if self.spans[at].stop > bundles.start:
                yield self.spans[at]
            at += 1


def _first(span: Span) -> int:
    return span.first


@frozen(kw_only=True)
class Block:
    """One pool's part of a picture."""

    pool_id: str
    about: str
    resource: str
    nodes: Nodes
    rows: tuple[Row, ...]

    @property
    def devices(self) -> int:
        return self.nodes.devices or 0


def blocks_of(plan: PlacementPlan, occupancy: Occupancy) -> tuple[Block, ...]:
    """Return what a picture of the plan shows."""
    rows = _rows(plan, occupancy)
    return tuple(
        Block(
            pool_id=pool.pool_id,
            about=_pool_size(pool),
            resource=pool.resource,
            nodes=pool.nodes,
            rows=rows[pool.pool_id],
        )
        for pool in plan.pools
    )


def _pool_size(pool: Pool) -> str:
    """Return how large a pool is, for people: ``20 GPU, 2 nodes of 8 + 1 of 4``."""
    runs = pool.nodes.runs
    if len(runs) == 1:
        return f"{pool.devices} {pool.resource}, {runs[0].devices} per node"
    first = f"{counted(runs[0].count or 0, 'node')} of {runs[0].devices}"
    return f"{pool.devices} {pool.resource}, " + " + ".join(
        [first, *(f"{run.count} of {run.devices}" for run in runs[1:])]
    )


def _rows(plan: PlacementPlan, occupancy: Occupancy) -> Mapping[str, tuple[Row, ...]]:
    """Return each pool's rows, one for each phase of the plan."""
    by_role: dict[RoleName, list[Tenant]] = {}
    for tenant in plan.everybody:
        by_role.setdefault(tenant.role, []).append(tenant)
    devices = {pool.pool_id: pool.devices for pool in plan.pools}
    rows: dict[str, list[Row]] = {pool_id: [] for pool_id in devices}
    for phase in plan.phases:
        spans: dict[str, list[Span]] = {pool_id: [] for pool_id in devices}
        for role in phase.roles:
            for tenant in by_role.get(role, ()):
                if not _inside_another(tenant, phase):
                    spans[tenant.pool_id].extend(_spans(tenant))
        for pool_id, in_pool in spans.items():
            rows[pool_id].append(
                Row(
                    label=phase.name,
                    devices=devices[pool_id],
                    plan=plan,
                    occupancy=occupancy,
                    spans=sorted(in_pool, key=_first),
                )
            )
    return {pool_id: tuple(in_pool) for pool_id, in_pool in rows.items()}


def _inside_another(tenant: Tenant, phase: Phase) -> bool:
    """Whether a training role is shown by the one whose processes it uses."""
    return (
        not isinstance(tenant, ReplicaPlacement)
        and tenant.process != tenant.role
        and tenant.process in phase.roles
    )


def _spans(tenant: Tenant) -> Iterator[Span]:
    if isinstance(tenant, ReplicaPlacement):
        yield Span(tenant=tenant, first=tenant.bundles[0], stop=tenant.bundles[-1] + 1)
        return
    for bundle in tenant.bundles:  # a process has one device
        yield Span(tenant=tenant, first=bundle, stop=bundle + 1)


# --- lines and their folding --------------------------------------------------------------------


@frozen(kw_only=True)
class Repeats:
    """Lines that are not drawn: they show ``like`` again, ``times`` times."""

    bundles: range
    like: range
    times: int

    def __str__(self) -> str:
        again = "once" if self.times == 1 else f"{self.times} times"
        return (
            f"bundles {self.bundles[0]}-{self.bundles[-1]}: {self.like[0]}-{self.like[-1]} repeated {again}"
        )


def lines_of(nodes: Nodes, fits: Callable[[int, int], bool]) -> Iterator[range]:
    """Return the lines into which a block is broken: whole nodes, as many as fit.

    A node wider than a line goes on in the next one, but never together with another node.

    Args:
        fits: whether a number of bundles on a number of nodes fits into a line.
    """
    start = stop = on_line = 0
    for devices in nodes.sizes():
        if on_line and not fits(stop - start + devices, on_line + 1):
            yield range(start, stop)
            start, on_line = stop, 0
        if fits(devices, 1):
            stop, on_line = stop + devices, on_line + 1
            continue
        most = next((bundles for bundles in range(devices, 1, -1) if fits(bundles, 1)), 1)
        for first in range(stop, stop + devices, most):
            yield range(first, min(first + most, stop + devices))
        start = stop = stop + devices
    if start < stop:
        yield range(start, stop)


def folded(block: Block, lines: Sequence[range]) -> Iterator[range | Repeats]:
    """Return the lines to draw; lines, or groups of lines, that look like those before are only counted."""
    looks = [_looks(block, line) for line in lines]
    at = 0
    while at < len(lines):
        period, times = max(
            ((period, _times(looks, at, period)) for period in range(1, MAX_PERIOD + 1)),
            key=lambda found: (found[0] * (found[1] - 1), -found[0]),
        )
        if times == 1:
            yield lines[at]
            at += 1
            continue
        yield from lines[at : at + period]
        end = at + period * times
        yield Repeats(
            bundles=range(lines[at + period].start, lines[end - 1].stop),
            like=range(lines[at].start, lines[at + period - 1].stop),
            times=times - 1,
        )
        at = end


def _times(looks: Sequence[object], at: int, period: int) -> int:
    """Return how often in a row the lines from ``at`` are there, themselves included."""
    group = looks[at : at + period]
    times = 1
    while len(group) == period and looks[at + times * period : at + (times + 1) * period] == group:
        times += 1
    return times


def _looks(block: Block, line: range) -> object:
    """Return a value that is equal for lines that look alike."""
    return (
        block.nodes.parts(line).runs,
        [
            [
                (
                    span.tenant.role,
                    span.tenant.model if isinstance(span.tenant, ReplicaPlacement) else None,
                    max(span.first - line.start, -1),
                    min(span.stop - line.start, len(line) + 1),
                    span.faint,
                )
                for span in row.within(line)
            ]
            for row in block.rows
        ],
    )
