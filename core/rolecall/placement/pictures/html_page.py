"""A sheet as a page for a browser: the SVG map, its table, and all about an engine where one points at it.

One file, nothing outside it, no script; light or dark as the reader's screen is. What the boxes have to
say is shown by the style sheet alone, for the mouse and for the keyboard. Pure: a sheet in, text out.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from rolecall.placement.pictures.sheet import Sheet
from rolecall.placement.pictures.svg import BOX, STYLE, Box, Canvas, Drawing, draw_blocks, role_class

_STYLE = """\
:root{color-scheme:light dark}
body{margin:0;padding:24px;background:#fff;color:#1d2430;
font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
h1{font-size:18px;margin:0 0 4px}
p{margin:0 0 4px}
.quiet,th{color:#667085}
.before{color:#b42318}
.after{color:#11753a}
table{border-collapse:collapse;margin:12px 0 16px}
th,td{text-align:left;font-weight:400;padding:2px 24px 2px 0;vertical-align:top}
.chip{display:inline-block;width:18px;border-radius:3px;color:#fff;font-weight:700;text-align:center}
.picture{position:relative}
.spot{position:absolute;border-radius:4px;cursor:help}
.spot:hover,.spot:focus{outline:2px solid currentColor;outline-offset:1px}
.hint{display:none;position:absolute;left:0;top:calc(100% + 6px);z-index:1;padding:8px 12px;width:max-content;
border-radius:6px;background:#1d2430;color:#f4f6fa;white-space:pre-line;box-shadow:0 4px 16px #0006}
.end .hint{left:auto;right:0}
.spot:hover .hint,.spot:focus .hint{display:block}
.hint::first-line{font-weight:700}
@media (prefers-color-scheme:dark){
body{background:#14181f;color:#e4e8ef}
.quiet,th{color:#98a2b3}
.before{color:#ff8a80}
.after{color:#6fd694}
.hint{background:#e4e8ef;color:#14181f}
}"""


def render_html(sheet: Sheet, *, title: str) -> str:
    """Return a sheet as an HTML file.

    Args:
        title: what the sheet is about, for instance the name of a job file.
    """
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{STYLE}\n{_STYLE}",
            *_emphasis(sheet),
            "</style>",
            "<main>",
            f"<h1>{escape(title)}</h1>",
            f"<p><b>{escape(sheet.name)}</b> · {escape(sheet.headline)}</p>",
            *_picture(sheet),
            *_table(sheet),
            *(f'<p class="quiet">{escape(sentence)}</p>' for sentence in sheet.sentences),
            "</main>",
            "</html>",
            "",
        ]
    )


def _emphasis(sheet: Sheet) -> Iterator[str]:
    """Return the style by which all other roles step back while one points at something of a role."""
    for style in dict.fromkeys(role_class(mark) for mark in sheet.marks.values()):
        yield f"main:has(.{style}:hover) .engine:not(.{style}){{opacity:.25}}"


def _picture(sheet: Sheet) -> Iterator[str]:
    """Return the map, and over each of its boxes a spot that shows what there is to say of it."""
    if not sheet.blocks:
        return
    canvas = Canvas()
    draw_blocks(canvas, sheet)
    drawing = canvas.drawing()
    yield f'<div class="picture" style="width:{drawing.width:.0f}px">'
    yield drawing.svg(label=f"{sheet.name}: {sheet.headline}", titles=False)
    yield from (_spot(box, drawing) for box in drawing.boxes)
    yield "</div>"


def _spot(box: Box, drawing: Drawing) -> str:
    end = " end" if box.x > drawing.width / 2 else ""
    place = f"left:{box.x:.1f}px;top:{box.y:.1f}px;width:{box.width:.1f}px;height:{BOX}px"
    hint = escape("\n".join(box.details))
    return (
        f'<div class="spot {role_class(box.mark)}{end}" tabindex="0" style="{place}">'
        f'<div class="hint">{hint}</div></div>'
    )


def _table(sheet: Sheet) -> Iterator[str]:
    if not sheet.lines:
        return
    yield "<table>"
    yield "<tr><th></th>" + "".join(f"<th>{escape(title)}</th>" for title in sheet.titles) + "</tr>"
    for line in sheet.lines:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in line.cells)
        if line.mark is None:
            yield f"<tr><td></td>{cells}</tr>"
            continue
        chip = (
            f'<span class="chip" style="background:{line.mark.colour.hex}">{escape(line.mark.letter)}</span>'
        )
        yield f'<tr class="{role_class(line.mark)}"><td>{chip}</td>{cells}</tr>'
    yield "</table>"
