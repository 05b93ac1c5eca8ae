"""The lines of a plan's map, as pieces of text with the styles they have where styles can be shown. Pure.

A row a phase, a column a bundle, nodes ruled off, a letter and a colour for each role; bundles of one
engine are joined, also over a node boundary. Without the styles it says the same. A map wider than it may
be is folded at node boundaries, and lines that show what lines above show are only counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import frozen

from rolecall.ids import RoleName
from rolecall.placement.pictures.blocks import Block, Repeats, Row, Sign, folded, lines_of
from rolecall.placement.pictures.marks import Mark
from rolecall.placement.pictures.sheet import Sheet

MAX_BUNDLES_A_LINE = 64

MapLine = list[tuple[str, str]]
"""Pieces of text, each with its style as rich names it."""

_FREE = "."
_ASCII = str.maketrans({"│": "|", "─": "-", "┼": "+", "×": "x", "·": "-", "→": ">"})
_SIGN_STYLES = {Sign.BOTH: "", Sign.BEFORE: "red", Sign.AFTER: "green"}


def in_ascii(text: str) -> str:
    """Return the text in characters that every terminal has; no character becomes two."""
    return text.translate(_ASCII)


def map_lines(sheet: Sheet, width: int) -> Iterator[MapLine]:
    """Return the headline and the map of every pool, none of the map's lines wider than ``width``."""
    yield [(sheet.name, "bold"), (f" · {sheet.headline}", "")]
    for block in sheet.blocks:
        yield []
        yield from _block_lines(block, sheet.marks, width)


def _block_lines(block: Block, letters: Mapping[RoleName, Mark], width: int) -> Iterator[MapLine]:
    """Return the lines of one pool's part of the map, none wider than ``width``."""
    yield [("  pool ", ""), (block.pool_id, "bold"), (f": {block.about}", "")]
    label_width = max(len("bundle"), *(len(row.label) for row in block.rows)) + 2
    room = max(1, width - 4 - label_width)
    numbered = len(str(block.devices - 1)) + 1
    whole = numbered * block.devices + 2 * (sum(run.count or 0 for run in block.nodes.runs) - 1)
    cell = numbered if whole <= room and block.devices <= MAX_BUNDLES_A_LINE else 2

    def fits(bundles: int, nodes: int) -> bool:
        return bundles <= MAX_BUNDLES_A_LINE and bundles * cell + 2 * (nodes - 1) <= room

    for number, line in enumerate(folded(block, list(lines_of(block.nodes, fits)))):
        if isinstance(line, Repeats):
            yield [(f"    {line}", "dim")]
            continue
        if number:
            yield []
        drawn = _Line(block=block, letters=letters, bundles=line, cell=cell, label_width=label_width)
        yield from drawn.header()
        for row in block.rows:
            yield drawn.row(row)


@frozen(kw_only=True)
class _Line:
    """Some bundles of a pool, beside one another."""

    block: Block
    letters: Mapping[RoleName, Mark]
    bundles: range
    cell: int
    label_width: int

    def header(self) -> Iterator[MapLine]:
        nodes = self.block.nodes.divide(self.bundles)
        several = self.bundles.start > 0 or len(nodes) > 1 or len(self.bundles) < self.block.devices
        if several and any(len(node) > 1 for node in nodes.values()):
            yield self._numbers("node", {node[0]: number for number, node in nodes.items()})
        every = self.cell > len(str(self.block.devices - 1))
        starts = self.bundles if every else [node[0] for node in nodes.values()]
        yield self._numbers("bundle", {bundle: bundle for bundle in starts})

    def _numbers(self, label: str, numbers: Mapping[int, int]) -> MapLine:
        cells = ""
        for rules, node in enumerate(self.block.nodes.divide(self.bundles).values()):
            for bundle in node:
                column = (bundle - self.bundles.start) * self.cell + 2 * rules
                if bundle in numbers and len(cells) <= column:
                    cells = f"{cells:<{column}}{numbers[bundle]} "
        return [(f"    {label:<{self.label_width}}{cells.rstrip()}", "dim")]

    def row(self, row: Row) -> MapLine:
        line = [(f"  {row.sign.value} {row.label:<{self.label_width}}", _SIGN_STYLES[row.sign])]
        spans = {
            bundle: span
            for span in row.within(self.bundles)
            for bundle in range(max(span.first, self.bundles.start), min(span.stop, self.bundles.stop))
        }
        ends = {node[-1] for node in self.block.nodes.divide(self.bundles).values()} - {self.bundles[-1]}
        for bundle in self.bundles:
            span = spans.get(bundle)
            gap = self.cell - 1
            joined = span is not None and bundle + 1 < span.stop
            if span is None:
                style = "dim"
                line.append((_FREE if bundle < row.devices else " ", style))
            else:
                mark = self.letters[span.tenant.role]
                style = f"{'dim' if span.faint else 'bold'} {mark.colour.terminal}"
                line.append((mark.letter, style))
            line.append((("─" if joined else " ") * gap, style))
            if bundle in ends:
                line.append(("┼─", style) if joined else ("│ ", "dim"))
        while not line[-1][0].strip():
            line.pop()
        text, style = line.pop()
        return [*line, (text.rstrip(), style)]
