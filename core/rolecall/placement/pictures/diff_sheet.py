"""What a picture of two plans shows: only once what is the same in both, signed ``-`` and ``+`` what is not.

Pure. A phase in which nothing changed is one row; another one is two, in which engines that did not change
are faint. A pool of which the bundles are other devices (on other nodes, of another resource) is shown twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from attrs import evolve

from rolecall.placement.nodes import Nodes
from rolecall.placement.occupancy import Occupancy
from rolecall.placement.pictures.blocks import Block, Row, Sign, Span, blocks_of
from rolecall.placement.pictures.legend import bundles_text, bundles_words, listed
from rolecall.placement.pictures.marks import Mark, marks
from rolecall.placement.pictures.sheet import Line, Sheet
from rolecall.placement.plan import ReplicaPlacement
from rolecall.placement.plan_diff import Change, PlanDiff, RoleDiff, Seat, TenantChange
from rolecall.placement.wording import counted


def diff_sheet(diff: PlanDiff, *, before: str, after: str) -> Sheet:
    """Return what a picture of a diff shows.

    Args:
        before: what to call the older plan, for instance the name of its job file.
        after: what to call the newer one.
    """
    found = marks(diff.after, diff.before)
    old, new = (
        {block.pool_id: block for block in blocks_of(plan, Occupancy.of(plan))}
        for plan in (diff.before, diff.after)
    )
    return Sheet(
        name=f"{before} → {after}",
        headline=_headline(diff),
        blocks=tuple(_blocks(old, new)),
        marks=found,
        titles=("", "change"),
        lines=(
            *_layout_lines(diff, old, new),
            *(line for role in diff.roles for line in _role_lines(diff, role, found[role.role])),
        ),
        sentences=(),
    )


def _headline(diff: PlanDiff) -> str:
    if diff.empty:
        return "both jobs get the same layout"
    counts = [
        f"{number} {change.value}"
        for change in Change
        if (number := sum(tenant.change is change for role in diff.roles for tenant in role.changes))
    ]
    return ", ".join(counts) or "every engine stays where it is"


# --- the words ----------------------------------------------------------------------------------


def _layout_lines(diff: PlanDiff, old: Mapping[str, Block], new: Mapping[str, Block]) -> Iterator[Line]:
    before, after = diff.before, diff.after
    if before.mode != after.mode:
        yield Line(mark=None, cells=("mode", f"{before.mode} → {after.mode}"))
    phases = [", ".join(phase.name for phase in plan.phases) or "none" for plan in (before, after)]
    if phases[0] != phases[1]:
        yield Line(mark=None, cells=("phases", " → ".join(phases)))
    for pool in diff.pools:
        blocks = (old.get(pool.pool_id), new.get(pool.pool_id))
        words = " → ".join(block.about if block else "none" for block in blocks)
        yield Line(mark=None, cells=(f"pool {pool.pool_id}", words))


def _role_lines(diff: PlanDiff, role: RoleDiff, mark: Mark) -> Iterator[Line]:
    sentences = [_sentence(diff, alike) for alike in _alike(role.changes)]
    if role.conflicts_before != role.conflicts_after and role.there_after:
        before, after = (
            listed(names) if names else "nobody" for names in (role.conflicts_before, role.conflicts_after)
        )
        until_now = f"; before, with {before}" if role.there_before else ""
        sentences.append(f"takes turns with {after}{until_now}")
    for sentence in sentences or ["stays as it is"]:
        yield Line(mark=mark, cells=(role.role, sentence))


def _alike(changes: Sequence[TenantChange]) -> Iterator[Sequence[TenantChange]]:
    """Group the changes that one sentence tells of."""
    groups: dict[tuple[object, ...], list[TenantChange]] = {}
    for change in changes:
        pools = (seat and seat.pool_id for seat in (change.before, change.after))
        groups.setdefault((change.model, change.change, *pools), []).append(change)
    yield from groups.values()


def _sentence(diff: PlanDiff, alike: Sequence[TenantChange]) -> str:
    first = alike[0]
    if first.engine is None:
        who = "its processes"
    elif len(alike) == 1:
        who = first.engine
    else:
        who = f"{counted(len(alike), 'engine')} of {first.model}"
    several = len(diff.before.pools) > 1 or len(diff.after.pools) > 1 or _pools(first) == 2
    places = [
        (bundles_words if several or not number else bundles_text)(
            [bundle for seat in seats for bundle in seat.bundles]
        )
        + (f" of pool {seats[0].pool_id}" if several else "")
        for number, seats in enumerate(_seats(alike))
    ]
    return f"{who} {first.change.value}: {' → '.join(places)}"


def _seats(alike: Sequence[TenantChange]) -> Sequence[Sequence[Seat]]:
    """Return where they were, and where they are; without either if they are not there."""
    before = [change.before for change in alike if change.before]
    after = [change.after for change in alike if change.after]
    return [seats for seats in (before, after) if seats]


def _pools(change: TenantChange) -> int:
    return len({seat.pool_id for seat in (change.before, change.after) if seat})


# --- the map ------------------------------------------------------------------------------------


def _blocks(before: Mapping[str, Block], after: Mapping[str, Block]) -> Iterator[Block]:
    for pool_id in dict.fromkeys((*after, *before)):
        old, new = before.get(pool_id), after.get(pool_id)
        if old and new and old.resource == new.resource and (larger := _covering(old.nodes, new.nodes)):
            about = new.about if old.about == new.about else f"{old.about} → {new.about}"
            yield evolve(new, about=about, nodes=larger, rows=tuple(_merged(old, new)))
            continue
        if old:
            yield _signed(old, Sign.BEFORE)
        if new:
            yield _signed(new, Sign.AFTER)


def _covering(one: Nodes, other: Nodes) -> Nodes | None:
    """Return those nodes that have all bundles of both where they are; None if neither has."""
    small, large = sorted((one, other), key=lambda nodes: nodes.devices or 0)
    *whole, last = small.sizes()
    sizes = list(large.sizes())
    same = len(whole) < len(sizes) and sizes[: len(whole)] == whole and last <= sizes[len(whole)]
    return large if same else None


def _signed(block: Block, sign: Sign) -> Block:
    return evolve(block, rows=tuple(evolve(row, sign=sign) for row in block.rows))


def _merged(old: Block, new: Block) -> Iterator[Row]:
    before, after = ([row.label for row in block.rows] for block in (old, new))
    for kind, old_from, old_to, new_from, new_to in SequenceMatcher(a=before, b=after).get_opcodes():
        olds, news = old.rows[old_from:old_to], new.rows[new_from:new_to]
        if kind == "equal":
            for one, other in zip(olds, news, strict=True):
                yield from _both_rows(one, other)
            continue
        yield from (evolve(row, sign=Sign.BEFORE) for row in olds)
        yield from (evolve(row, sign=Sign.AFTER) for row in news)


def _both_rows(old: Row, new: Row) -> Iterator[Row]:
    before, after = (frozenset(map(_seat, row.spans)) for row in (old, new))
    if before == after:
        yield new
        return
    for row, sign, other in ((old, Sign.BEFORE, after), (new, Sign.AFTER, before)):
        yield evolve(row, sign=sign, spans=[evolve(span, faint=_seat(span) in other) for span in row.spans])


def _seat(span: Span) -> tuple[object, ...]:
    tenant = span.tenant
    engine = tenant.engine if isinstance(tenant, ReplicaPlacement) else None
    return tenant.role, engine, span.first, span.stop
