"""A plan as people and scripts read it: the map in a terminal, and JSON.

Pure: values in, something to print out. ``rolecall plan`` prints both; a running job shows the
map. The map has a row a phase and a column a bundle, nodes ruled off, a letter and a colour for
each role; bundles of one engine are joined. Without colour or without Unicode it says the same.
Maps wider than the terminal are folded at node boundaries, and folded lines that show the same
as the one above are only counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

from attrs import frozen
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rolecall.ids import ModelId, RoleName
from rolecall.placement.nodes import Nodes
from rolecall.placement.occupancy import Occupancy
from rolecall.placement.plan import (
    REFERENCE_RESERVATION,
    Phase,
    PlacementPlan,
    Pool,
    ReplicaPlacement,
    Tenant,
)
from rolecall.placement.wording import bundle_runs, counted

PLAN_SCHEMA_VERSION = 2
"""Version of the JSON plan; raised when a field changes its meaning or goes away."""

MAX_BUNDLES_A_LINE = 64

_COLOURS = ("dodger_blue1", "orange1", "green3", "magenta", "gold1", "turquoise2", "red1", "grey70")


def render_map(plan: PlacementPlan) -> RenderableType:
    """Return the plan as a map with a legend, for ``rich.console.Console.print``."""
    return _Map(plan)


def plan_to_json(plan: PlacementPlan) -> dict[str, Any]:
    """Return the plan as JSON values.

    Stable: fields are only added within one ``schema_version``. ``reservation`` is the share of
    its first bundle's device that each of a replica's actors reserves; ``conflicts`` names, for
    each role, those that must sleep while it is awake.
    """
    tenants = Occupancy.of(plan)
    sharing = tenants.sharing_roles()
    return {
        "schema_version": PLAN_SCHEMA_VERSION,
        "mode": plan.mode,
        "pools": [
            {
                "pool_id": pool.pool_id,
                "resource": pool.resource,
                "devices": pool.devices,
                "nodes": [{"count": run.count, "devices": run.devices} for run in pool.nodes.runs],
            }
            for pool in plan.pools
        ],
        "phases": [{"name": phase.name, "roles": list(phase.roles)} for phase in plan.phases],
        "replicas": [
            {
                "role": replica.role,
                "model": replica.model,
                "engine": replica.engine,
                "pool_id": replica.pool_id,
                "bundles": list(replica.bundles),
                "reservation": tenants.share(replica.pool_id, replica.bundles[0]),
            }
            for replica in plan.replicas
        ],
        "training": [
            {
                "role": placement.role,
                "process": placement.process,
                "pool_id": placement.pool_id,
                "bundles": list(placement.bundles),
                "reservation": tenants.share(placement.pool_id, placement.bundles[0]),
            }
            for placement in plan.training
        ],
        "conflicts": {role: sorted(sharing.get(role, ())) for role in tenants.order},
    }


# --- letters and glyphs -----------------------------------------------------------------


@frozen(kw_only=True)
class _Glyphs:
    rule: str
    join: str
    times: str
    between: str


_UNICODE = _Glyphs(rule="│", join="─", times="×", between=" · ")
_ASCII = _Glyphs(rule="|", join="-", times="x", between=", ")
_FREE = "."


@frozen(kw_only=True)
class _Mark:
    letter: str
    colour: str


def _marks(roles: Sequence[RoleName]) -> dict[RoleName, _Mark]:
    """A letter for each role, its first that is free, and a colour."""
    marks: dict[RoleName, _Mark] = {}
    taken: set[str] = set()
    for role, colour in zip(roles, cycle(_COLOURS), strict=False):
        wishes = [*(char.upper() for char in role if char.isalnum()), *"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"]
        letter = next((wish for wish in wishes if wish not in taken), "?")
        taken.add(letter)
        marks[role] = _Mark(letter=letter, colour=colour)
    return marks


# --- the map ----------------------------------------------------------------------------


@frozen
class _Map:
    plan: PlacementPlan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        glyphs = _ASCII if options.ascii_only else _UNICODE
        plan = self.plan
        occupancy = Occupancy.of(plan)
        marks = _marks(list(occupancy.order))
        yield _headline(plan, glyphs)
        if not plan.pools:
            return
        for pool in plan.pools:
            yield ""
            yield from _PoolMap(
                plan=plan, pool=pool, occupancy=occupancy, marks=marks, glyphs=glyphs, width=options.max_width
            ).lines()
        yield ""
        yield Padding(_legend(plan, occupancy, marks, glyphs), (0, 0, 0, 2), expand=False)
        notes = [*_turns(plan, occupancy), *_unused(plan, occupancy)]
        if notes:
            yield ""
            for note in notes:
                yield Padding(Text(note, style="dim"), (0, 0, 0, 2), expand=False)


def _nodes(nodes: Nodes) -> str:
    if len(nodes.runs) == 1 or len(set(nodes.sizes())) == 1:
        return f"{nodes.largest} per node"
    return "nodes of " + ", ".join(str(size) for size in nodes.sizes())


def _headline(plan: PlacementPlan, glyphs: _Glyphs) -> Text:
    devices = sum(pool.devices for pool in plan.pools)
    resources = " + ".join(dict.fromkeys(pool.resource for pool in plan.pools))
    if len(plan.phases) == 1:
        turns = "1 phase: all roles awake together"
    else:
        turns = f"{len(plan.phases)} phases, one at a time"
    parts = [f"{devices} {resources} in {counted(len(plan.pools), 'pool')}", turns]
    if not plan.pools:
        parts = ["no role needs a device"]
    headline = Text(plan.mode, style="bold")
    headline.append(glyphs.between + glyphs.between.join(parts), style="not bold")
    return headline


_Cell = tuple[RoleName | None, bool]
"""Who is awake on a bundle, and whether its engine goes on to the next bundle."""


@frozen(kw_only=True)
class _PoolMap:
    """One pool's block of the map."""

    plan: PlacementPlan
    pool: Pool
    occupancy: Occupancy
    marks: dict[RoleName, _Mark]
    glyphs: _Glyphs
    width: int

    def lines(self) -> Iterator[Text]:
        pool = self.pool
        yield Text.assemble(
            "  pool ",
            (pool.pool_id, "bold"),
            f": {pool.devices} {pool.resource}, {_nodes(pool.nodes)}",
        )
        shown: list[list[_Cell]] = []
        shown_bundles = range(0)
        alike: list[range] = []
        for bundles in self._folds():
            rows = [list(self._cells(phase, bundles)) for phase in self.plan.phases]
            if bundles[0] and all(row == above[: len(row)] for row, above in zip(rows, shown, strict=True)):
                alike.append(bundles)
                continue
            yield from self._as_above(alike, shown_bundles)
            if bundles[0]:
                yield Text()
            alike = []
            shown, shown_bundles = rows, bundles
            yield from self._header(bundles)
            for phase, row in zip(self.plan.phases, rows, strict=True):
                yield self._row(phase.name, row, bundles)
        yield from self._as_above(alike, shown_bundles)

    # What stands in a line

    def _cells(self, phase: Phase, bundles: range) -> Iterator[_Cell]:
        for bundle in bundles:
            here = self._awake(phase, bundle)
            joined = here is not None and bundle + 1 in bundles and self._awake(phase, bundle + 1) is here
            yield (None if here is None else here.role), joined

    def _awake(self, phase: Phase, bundle: int) -> Tenant | None:
        tenants = self.occupancy.tenants.get((self.pool.pool_id, bundle), ())
        return next((tenant for tenant in tenants if tenant.role in phase.roles), None)

    # How wide it is

    @property
    def _label_width(self) -> int:
        return max(len("bundle"), *(len(phase.name) for phase in self.plan.phases)) + 2

    @property
    def _cell_width(self) -> int:
        """Room for every bundle's number where that fits into one line, else as little as possible."""
        numbered = len(str(self.pool.devices - 1)) + 1
        if self._fits(numbered) >= self.pool.devices:
            return numbered
        return 2 if 2 * self.pool.nodes.largest >= numbered else numbered

    def _fits(self, cell_width: int) -> int:
        """Bundles that a line holds: whole nodes if it holds at least one."""
        room = self.width - 4 - self._label_width
        per_node = self.pool.nodes.largest
        nodes = max(0, (room + 2) // (per_node * cell_width + 2))
        bundles = nodes * per_node if nodes else max(1, room // cell_width)
        most = max(MAX_BUNDLES_A_LINE // per_node * per_node, min(per_node, MAX_BUNDLES_A_LINE))
        return min(bundles, most)

    def _folds(self) -> Iterator[range]:
        step = self._fits(self._cell_width)
        per_node = self.pool.nodes.largest
        start = 0
        while start < self.pool.devices:
            stop = min(start + step, self.pool.devices)
            if step < per_node:
                # A node wider than a line goes on in the next, but never together with another.
                stop = min(stop, (start // per_node + 1) * per_node)
            yield range(start, stop)
            start = stop

    # The lines themselves

    def _header(self, bundles: range) -> Iterator[Text]:
        per_node = self.pool.nodes.largest
        cell_width = self._cell_width
        every = cell_width > len(str(self.pool.devices - 1))
        if self.pool.devices > per_node > 1 and per_node * cell_width > len(str(bundles[-1] // per_node)):
            yield self._numbers(
                "node", {b: b // per_node for b in bundles if b % per_node == 0 or b == bundles[0]}, bundles
            )
        labelled = {b: b for b in bundles if every or b % per_node == 0 or b == bundles[0]}
        yield self._numbers("bundle", labelled, bundles)

    def _numbers(self, label: str, numbers: dict[int, int], bundles: range) -> Text:
        line = Text(f"    {label:<{self._label_width}}", style="dim")
        cells = ""
        for bundle in bundles:
            room = self._column(bundle, bundles)
            cells = f"{cells:<{room}}"
            if bundle in numbers:
                cells = cells[:room] + str(numbers[bundle])
        return line.append(cells.rstrip())

    def _column(self, bundle: int, bundles: range) -> int:
        """Where a bundle's cell starts in its line; each node before it adds a rule."""
        per_node = self.pool.nodes.largest
        rules = bundle // per_node - bundles[0] // per_node
        return (bundle - bundles[0]) * self._cell_width + 2 * rules

    def _row(self, label: str, cells: Sequence[_Cell], bundles: range) -> Text:
        line = Text(f"    {label:<{self._label_width}}")
        for bundle, (role, joined) in zip(bundles, cells, strict=True):
            if bundle % self.pool.nodes.largest == 0 and bundle != bundles[0]:
                line.append(f"{self.glyphs.rule} ", style="dim")
            gap = self._cell_width - 1
            if role is None:
                line.append(_FREE + " " * gap, style="dim")
                continue
            style = f"bold {self.marks[role].colour}"
            line.append(self.marks[role].letter, style=style)
            line.append((self.glyphs.join if joined else " ") * gap, style=style)
        line.rstrip()
        return line

    def _as_above(self, alike: Sequence[range], shown: range) -> Iterator[Text]:
        if alike:
            yield Text(
                f"    bundles {alike[0][0]}-{alike[-1][-1]}: {counted(len(alike), 'line')} like"
                f" {shown[0]}-{shown[-1]}",
                style="dim",
            )


# --- legend and notes -------------------------------------------------------------------


def _legend(
    plan: PlacementPlan, occupancy: Occupancy, marks: dict[RoleName, _Mark], glyphs: _Glyphs
) -> RenderableType:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim", pad_edge=False)
    for title in ("", "role", "model", "engines", "pool", "bundles", "device share"):
        table.add_column(title, no_wrap=title not in ("model", "bundles"))
    by_model: dict[tuple[RoleName, ModelId], list[ReplicaPlacement]] = {}
    for replica in plan.replicas:
        by_model.setdefault((replica.role, replica.model), []).append(replica)
    for (role, model), replicas in by_model.items():
        mark = marks[role]
        shares = dict.fromkeys(occupancy.share(replica.pool_id, replica.bundles[0]) for replica in replicas)
        table.add_row(
            Text(mark.letter, style=f"bold {mark.colour}"),
            role,
            model,
            f"{len(replicas)} {glyphs.times} {counted(len(replicas[0].bundles), 'device')}",
            ", ".join(dict.fromkeys(replica.pool_id for replica in replicas)),
            bundle_runs(bundle for replica in replicas for bundle in replica.bundles),
            " or ".join("1" if share == REFERENCE_RESERVATION else f"{share:.4g}" for share in shares),
        )
    return table


def _turns(plan: PlacementPlan, occupancy: Occupancy) -> Iterator[str]:
    """Say who shares what, a line for each set of roles."""
    groups: dict[tuple[str, tuple[RoleName, ...]], list[int]] = {}
    for (pool_id, bundle), replicas in occupancy.tenants.items():
        roles = tuple(sorted({replica.role for replica in replicas}, key=occupancy.order.__getitem__))
        if len(roles) > 1:
            groups.setdefault((pool_id, roles), []).append(bundle)
    for (pool_id, roles), bundles in groups.items():
        where = f"bundle {bundle_runs(bundles)}" + (f" of pool {pool_id}" if len(plan.pools) > 1 else "")
        yield f"{', '.join(roles[:-1])} and {roles[-1]} take turns on {where}."


def _unused(plan: PlacementPlan, occupancy: Occupancy) -> Iterator[str]:
    for pool in plan.pools:
        free = [b for b in range(pool.devices) if (pool.pool_id, b) not in occupancy.tenants]
        if free:
            where = f" of pool {pool.pool_id}" if len(plan.pools) > 1 else ""
            yield f"Nobody uses bundle {bundle_runs(free)}{where}."
