"""The map of a plan in a terminal, with its table and sentences. Pure: a sheet in, something to print out."""

from __future__ import annotations

from attrs import frozen
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rolecall.placement.pictures.map_lines import in_ascii, map_lines
from rolecall.placement.pictures.sheet import Sheet

_GAP = 3
_NARROW_GAP = 1


def render_map(sheet: Sheet) -> RenderableType:
    """Return a map with its table and sentences, for ``rich.console.Console.print``."""
    return _Map(sheet)


@frozen
class _Map:
    sheet: Sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        sheet, ascii_only = self.sheet, options.ascii_only
        for line in map_lines(sheet, options.max_width):
            yield _in_encoding(Text.assemble(*line), ascii_only=ascii_only)
        if sheet.lines:
            yield ""
            yield _indented(_table(sheet, options.max_width - 2, ascii_only=ascii_only))
        if sheet.sentences:
            yield ""
        for sentence in sheet.sentences:
            yield _indented(Text(sentence, style="dim"))


def _indented(what: RenderableType) -> RenderableType:
    """Return it two columns to the right, as everything below a headline stands."""
    return Padding(what, (0, 0, 0, 2), expand=False)


def _in_encoding(text: Text, *, ascii_only: bool) -> Text:
    if ascii_only:
        text.plain = in_ascii(text.plain)
    return text


def _table(sheet: Sheet, width: int, *, ascii_only: bool) -> RenderableType:
    """Return the table; in a narrow terminal its cells are broken, between words if that will do."""
    columns = list(zip(sheet.titles, *(line.cells for line in sheet.lines), strict=True))
    words = [max(len(word) for cell in column for word in cell.split() or [""]) for column in columns]

    def words_fit(gap: int) -> bool:
        return 1 + sum(gap + word for word in words) <= width

    gap = _GAP if words_fit(_GAP) else _NARROW_GAP
    table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("", no_wrap=True)
    for title, longest in zip(sheet.titles, words, strict=True):
        table.add_column(title, overflow="fold", min_width=longest if words_fit(gap) else None)
    for line in sheet.lines:
        letter = Text(line.mark.letter, style=f"bold {line.mark.colour.terminal}") if line.mark else ""
        cells = (_in_encoding(Text(cell), ascii_only=ascii_only) for cell in line.cells)
        table.add_row(letter, *cells)
    return table
