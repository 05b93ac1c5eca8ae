"""A sheet as an SVG picture.

One file, nothing outside it; light or dark as the reader's screen is. The same blocks as the terminal's
map: a row a phase, a column a bundle, a frame around each node, a letter and a colour for each role, one
box an engine. Whoever points at a box reads all about it. Pure: a sheet in, text out.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from attrs import evolve, frozen

from rolecall.ids import RoleName
from rolecall.placement.pictures.blocks import Block, Repeats, Row, Sign, folded, lines_of
from rolecall.placement.pictures.legend import details
from rolecall.placement.pictures.marks import Mark
from rolecall.placement.pictures.sheet import Sheet

MAX_BUNDLES_A_LINE = 32

BOX = 22
"""Height of a box, in px; every length here is."""

_CELL = BOX + 4
_ROW_GAP = 4
_NODE_GAP = 12
_MAX_WIDTH = MAX_BUNDLES_A_LINE * _CELL + 7 * _NODE_GAP
_HEADER = 38
_LINE_HEIGHT = 20
_SPACE = 12
_CHARACTER = 7.3
"""Width of one character of the monospaced text, in px at 12 px."""
_MARGIN = 20

STYLE = """\
.map text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
fill:#1d2430;white-space:pre}
.map .strong{font-weight:700}
.map .quiet{fill:#667085}
.map .node{fill:#f1f3f7;stroke:#d5dae3}
.map .free{fill:#c3cad6}
.map .engine{stroke:none}
.map .letter{fill:#fff;font-weight:700;text-anchor:middle}
.map .number{text-anchor:middle;font-size:10px}
.map .faint{opacity:.35}
.map .before{fill:#b42318}
.map .after{fill:#11753a}
.map .paper{fill:#fff}
@media (prefers-color-scheme:dark){
.map text{fill:#e4e8ef}
.map .quiet{fill:#98a2b3}
.map .node{fill:#20262f;stroke:#38414e}
.map .free{fill:#4a5463}
.map .before{fill:#ff8a80}
.map .after{fill:#6fd694}
.map .paper{fill:#14181f}
.map .letter{fill:#fff}
}"""

_SIGN_CLASSES = {Sign.BOTH: "", Sign.BEFORE: "before", Sign.AFTER: "after"}


@frozen(kw_only=True)
class Box:
    """An engine or a process of the trainer: where it is drawn, and what is to be said of it."""

    x: float
    y: float
    width: float
    role: RoleName
    mark: Mark
    faint: bool
    details: tuple[str, ...]

    @property
    def style(self) -> str:
        """Its classes; one of them is the same for everything that belongs to its role."""
        return f"engine {role_class(self.mark)}" + (" faint" if self.faint else "")

    def svg(self, *, title: bool) -> str:
        name = self.role if len(self.role) * _CHARACTER + 8 <= self.width else self.mark.letter
        hint = f"<title>{escape(chr(10).join(self.details))}</title>" if title else ""
        return (
            f'<g class="{self.style}">{hint}<rect x="{_px(self.x)}" y="{_px(self.y)}"'
            f' width="{_px(self.width)}" height="{BOX}" rx="4" fill="{self.mark.colour.hex}"/>'
            f'<text class="letter" x="{_px(self.x + self.width / 2)}" y="{_px(self.y + BOX - 7)}">'
            f"{escape(name)}</text></g>"
        )


def role_class(mark: Mark) -> str:
    """Return the class of everything that belongs to a role in a picture."""
    return f"role-{mark.number}"


@frozen(kw_only=True)
class Drawing:
    """A picture: elements, and over them boxes; its size in px."""

    elements: tuple[str, ...]
    boxes: tuple[Box, ...]
    width: float
    height: float

    def svg(self, *, label: str, titles: bool) -> str:
        """Return the picture as one element; what it looks like is in ``STYLE``."""
        width, height = round(self.width), round(self.height)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" class="map" role="img" width="{width}"'
                f' height="{height}" viewBox="0 0 {width} {height}" aria-label="{escape(label)}">',
                *self.elements,
                *(box.svg(title=titles) for box in self.boxes),
                "</svg>",
            ]
        )


class Canvas:
    """A drawing that is being made from top to bottom."""

    def __init__(self, *, margin: float = 0) -> None:
        self.left = self.y = self._right = self._margin = margin
        self._elements: list[str] = []
        self._boxes: list[Box] = []

    def words(self, *parts: tuple[str, str]) -> None:
        """Write one line, its parts given as (class, text), and go to the next."""
        x = self.left
        for style, text in parts:
            self.text(x, text, style)
            x += _CHARACTER * len(text)
        self.y += _LINE_HEIGHT

    def text(self, x: float, text: str, style: str = "") -> None:
        """Write a text on the current line."""
        named = f' class="{style}"' if style else ""
        self.add(f'<text{named} x="{_px(x)}" y="{_px(self.y + 14)}">{escape(text)}</text>')
        self.reach(x + _CHARACTER * len(text))

    def add(self, element: str) -> None:
        """Add an element; boxes are over it."""
        self._elements.append(element)

    def box(self, box: Box) -> None:
        """Add a box."""
        self._boxes.append(box)
        self.reach(box.x + box.width)

    def reach(self, x: float) -> None:
        """Make the drawing at least that wide."""
        self._right = max(self._right, x)

    def drawing(self) -> Drawing:
        """Return what has been drawn."""
        return Drawing(
            elements=tuple(self._elements),
            boxes=tuple(self._boxes),
            width=self._right + self._margin,
            height=self.y + self._margin,
        )


def _px(length: float) -> str:
    return f"{length:.1f}".removesuffix(".0")


# --- a file of its own --------------------------------------------------------------------------


def render_svg(sheet: Sheet) -> str:
    """Return a picture as an SVG file: the map, its table and its sentences."""
    canvas = Canvas(margin=_MARGIN)
    canvas.words(("strong", sheet.name), ("", f" · {sheet.headline}"))
    draw_blocks(canvas, sheet)
    if sheet.lines:
        canvas.y += _SPACE
        _draw_table(canvas, sheet)
        canvas.y += _SPACE
    for sentence in sheet.sentences:
        canvas.words(("quiet", sentence))
    drawing = canvas.drawing()
    paper = '<rect class="paper" width="100%" height="100%"/>'
    framed = evolve(drawing, elements=(f"<style>{STYLE}</style>", paper, *drawing.elements))
    return framed.svg(label=f"{sheet.name}: {sheet.headline}", titles=True) + "\n"


def _draw_table(canvas: Canvas, sheet: Sheet) -> None:
    table = [sheet.titles, *(line.cells for line in sheet.lines)]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(sheet.titles))]
    for mark, cells in zip((None, *(line.mark for line in sheet.lines)), table, strict=True):
        if mark:
            canvas.add(
                f'<rect x="{_px(canvas.left)}" y="{_px(canvas.y + 2)}" width="16" height="16" rx="3"'
                f' fill="{mark.colour.hex}"/><text class="letter" x="{_px(canvas.left + 8)}"'
                f' y="{_px(canvas.y + 14)}">{escape(mark.letter)}</text>'
            )
        x = canvas.left + _CELL
        for width, cell in zip(widths, cells, strict=True):
            canvas.text(x, cell, "quiet" if cells is sheet.titles else "")
            x += _CHARACTER * (width + 3)
        canvas.y += _LINE_HEIGHT


# --- the map ------------------------------------------------------------------------------------


def draw_blocks(canvas: Canvas, sheet: Sheet) -> None:
    """Draw the map, pool after pool."""
    rows = [row for block in sheet.blocks for row in block.rows]
    labels = ["bundle", *(_label(row) for row in rows)]
    left = canvas.left + _CHARACTER * (max(map(len, labels)) + 2)
    for block in sheet.blocks:
        canvas.y += _SPACE
        canvas.words(("", "pool "), ("strong", block.pool_id), ("", f": {block.about}"))
        canvas.y += _ROW_GAP
        for line in folded(block, list(lines_of(block.nodes, _fits))):
            if isinstance(line, Repeats):
                canvas.words(("quiet", str(line)))
                canvas.y += _ROW_GAP
            else:
                _Line(canvas=canvas, block=block, marks=sheet.marks, bundles=line, left=left).draw()


def _label(row: Row) -> str:
    return row.label if row.sign is Sign.BOTH else f"{row.sign.value} {row.label}"


def _fits(bundles: int, nodes: int) -> bool:
    return bundles <= MAX_BUNDLES_A_LINE and bundles * _CELL + (nodes - 1) * _NODE_GAP <= _MAX_WIDTH


@frozen(kw_only=True)
class _Line:
    """Some bundles of a pool, beside one another."""

    canvas: Canvas
    block: Block
    marks: Mapping[RoleName, Mark]
    bundles: range
    left: float

    def draw(self) -> None:
        canvas = self.canvas
        nodes = self.block.nodes.divide(self.bundles)
        columns = {
            bundle: self.left + (bundle - self.bundles.start) * _CELL + gaps * _NODE_GAP
            for gaps, node in enumerate(nodes.values())
            for bundle in node
        }
        height = _HEADER + len(self.block.rows) * (BOX + _ROW_GAP)
        for number, node in nodes.items():
            x = columns[node[0]]
            canvas.add(
                f'<rect class="node" x="{_px(x - 4)}" y="{_px(canvas.y)}"'
                f' width="{_px(len(node) * _CELL + 4)}" height="{_px(height)}" rx="6"/>'
            )
            canvas.text(x, f"node {number}" if len(node) > 1 else f"{number}", "quiet")
            canvas.reach(x + len(node) * _CELL + 1)
        canvas.y += _LINE_HEIGHT - 4
        canvas.text(canvas.left, "bundle", "quiet")
        starts = {node[0] for node in nodes.values()}
        for bundle, x in columns.items():
            if bundle in starts or self.block.devices <= 1000:  # more digits than that run together
                number = f'<text class="number quiet" x="{_px(x + BOX / 2)}" y="{_px(canvas.y + 13)}">'
                canvas.add(f"{number}{bundle}</text>")
        canvas.y += _HEADER - _LINE_HEIGHT + 4
        for row in self.block.rows:
            self._row(row, columns)
            canvas.y += BOX + _ROW_GAP
        canvas.y += _SPACE

    def _row(self, row: Row, columns: Mapping[int, float]) -> None:
        self.canvas.text(self.canvas.left, _label(row), _SIGN_CLASSES[row.sign])
        free = {bundle for bundle in self.bundles if bundle < row.devices}
        for span in row.within(self.bundles):
            first, last = max(span.first, self.bundles.start), min(span.stop, self.bundles.stop) - 1
            free.difference_update(range(first, last + 1))
            # An engine that goes on in another line reaches over the edge of this one.
            before, after = (6 * (span.first < first), 6 * (span.stop > last + 1))
            self.canvas.box(
                Box(
                    x=columns[first] - before,
                    y=self.canvas.y,
                    width=columns[last] + BOX - columns[first] + before + after,
                    role=span.tenant.role,
                    mark=self.marks[span.tenant.role],
                    faint=span.faint,
                    details=tuple(details(row, span)),
                )
            )
        for bundle in sorted(free):
            x, y = columns[bundle] + BOX / 2, self.canvas.y + BOX / 2
            self.canvas.add(f'<circle class="free" cx="{_px(x)}" cy="{_px(y)}" r="2"/>')
