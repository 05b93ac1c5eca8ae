"""The map of a plan in a terminal.

A row a phase, a column a bundle, nodes ruled off, a letter and a colour for each role; bundles of one
engine are joined, also over a node boundary. Without colour or without Unicode it says the same. A map
wider than the terminal is folded at node boundaries, and lines that show what lines above show are only
counted. Pure: a plan in, something to print out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import frozen
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rolecall.ids import RoleName
from rolecall.placement.pictures.blocks import Block, Repeats, Row, Sign, folded, lines_of, nodes_in
from rolecall.placement.pictures.marks import Mark
from rolecall.placement.pictures.sheet import Sheet

MAX_BUNDLES_A_LINE = 64

_UNBROKEN = ("", "role", "engines", "pool", "device share")
_FREE = "."
_ASCII = str.maketrans({"│": "|", "─": "-", "┼": "+", "×": "x", "·": "-", "→": ">"})
_SIGN_STYLES = {Sign.BOTH: "", Sign.BEFORE: "red", Sign.AFTER: "green"}


def render_map(sheet: Sheet) -> RenderableType:
    """Return a map with its table and sentences, for ``rich.console.Console.print``."""
    return _Map(sheet)


@frozen
class _Map:
    sheet: Sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        sheet, ascii_only = self.sheet, options.ascii_only
        yield _in_encoding(Text.assemble((sheet.name, "bold"), f" · {sheet.headline}"), ascii_only=ascii_only)
        for block in sheet.blocks:
            yield ""
            for line in _block_lines(block, sheet.marks, options.max_width):
                yield _in_encoding(line, ascii_only=ascii_only)
        if sheet.lines:
            yield ""
            yield _indented(_table(sheet, ascii_only=ascii_only))
        if sheet.sentences:
            yield ""
        for sentence in sheet.sentences:
            yield _indented(Text(sentence, style="dim"))


def _indented(what: RenderableType) -> RenderableType:
    """Return it two columns to the right, as everything below a headline stands."""
    return Padding(what, (0, 0, 0, 2), expand=False)


def _in_encoding(text: Text, *, ascii_only: bool) -> Text:
    """Return the text in the characters that the terminal has; no character becomes two."""
    if ascii_only:
        text.plain = text.plain.translate(_ASCII)
    return text


def _table(sheet: Sheet, *, ascii_only: bool) -> RenderableType:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim", pad_edge=False)
    for title in ("", *sheet.titles):
        table.add_column(title, no_wrap=title in _UNBROKEN)
    for line in sheet.lines:
        letter = Text(line.mark.letter, style=f"bold {line.mark.colour.terminal}") if line.mark else ""
        cells = (_in_encoding(Text(cell), ascii_only=ascii_only) for cell in line.cells)
        table.add_row(letter, *cells)
    return table


# --- one pool -----------------------------------------------------------------------------------


def _block_lines(block: Block, letters: Mapping[RoleName, Mark], width: int) -> Iterator[Text]:
    """Return the lines of one pool's part of the map, none wider than ``width``."""
    yield Text.assemble("  pool ", (block.pool_id, "bold"), f": {block.about}")
    label_width = max(len("bundle"), *(len(row.label) for row in block.rows)) + 2
    room = max(1, width - 4 - label_width)
    numbered = len(str(block.devices - 1)) + 1
    whole = numbered * block.devices + 2 * (sum(run.count or 0 for run in block.nodes.runs) - 1)
    cell = numbered if whole <= room and block.devices <= MAX_BUNDLES_A_LINE else 2

    def fits(bundles: int, nodes: int) -> bool:
        return bundles <= MAX_BUNDLES_A_LINE and bundles * cell + 2 * (nodes - 1) <= room

    for number, line in enumerate(folded(block, list(lines_of(block.nodes, fits)))):
        if isinstance(line, Repeats):
            yield Text(f"    {line}", style="dim")
            continue
        if number:
            yield Text()
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

    def header(self) -> Iterator[Text]:
        nodes = nodes_in(self.block.nodes, self.bundles)
        several = self.bundles.start > 0 or len(nodes) > 1 or len(self.bundles) < self.block.devices
        if several and any(len(node) > 1 for node in nodes.values()):
            yield self._numbers("node", {node[0]: number for number, node in nodes.items()})
        every = self.cell > len(str(self.block.devices - 1))
        starts = self.bundles if every else [node[0] for node in nodes.values()]
        yield self._numbers("bundle", {bundle: bundle for bundle in starts})

    def _numbers(self, label: str, numbers: Mapping[int, int]) -> Text:
        cells = ""
        for rules, node in enumerate(nodes_in(self.block.nodes, self.bundles).values()):
            for bundle in node:
                column = (bundle - self.bundles.start) * self.cell + 2 * rules
                if bundle in numbers and len(cells) <= column:
                    cells = f"{cells:<{column}}{numbers[bundle]} "
        return Text(f"    {label:<{self.label_width}}{cells.rstrip()}", style="dim")

    def row(self, row: Row) -> Text:
        label = Text(f"  {row.sign.value} {row.label:<{self.label_width}}", style=_SIGN_STYLES[row.sign])
        line = Text.assemble(label)
        spans = {
            bundle: span
            for span in row.within(self.bundles)
            for bundle in range(max(span.first, self.bundles.start), min(span.stop, self.bundles.stop))
        }
        ends = {node[-1] for node in nodes_in(self.block.nodes, self.bundles).values()} - {self.bundles[-1]}
        for bundle in self.bundles:
            span = spans.get(bundle)
            gap = self.cell - 1
            joined = span is not None and bundle + 1 < span.stop
            if span is None:
                style = "dim"
                line.append(_FREE if bundle < row.devices else " ", style=style)
            else:
                mark = self.letters[span.tenant.role]
                style = f"{'dim' if span.faint else 'bold'} {mark.colour.terminal}"
                line.append(mark.letter, style=style)
            line.append(("─" if joined else " ") * gap, style=style)
            if bundle in ends:
                line.append("┼─" if joined else "│ ", style=style if joined else "dim")
        line.rstrip()
        return line
