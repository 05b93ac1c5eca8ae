"""The map of a plan in a pipe or a file: no colours, and no line of the table or of a sentence is broken.

Pure: a sheet in, text out. Imports nothing that draws, as a script that plans must not wait for it.
"""

from __future__ import annotations

from rolecall.placement.pictures.map_lines import map_lines
from rolecall.placement.pictures.sheet import Sheet

_GAP = "   "


def plain_map(sheet: Sheet, width: int) -> str:
    """Return the map folded at ``width``, and the table and sentences as wide as they are."""
    parts = ["\n".join("".join(text for text, _ in line) for line in map_lines(sheet, width))]
    if sheet.lines:
        rows = [("", *sheet.titles)]
        rows += [(line.mark.letter if line.mark else "", *line.cells) for line in sheet.lines]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        parts.append("\n".join(_GAP.join(map(str.ljust, row, widths)) for row in rows))
    parts.append("\n".join(sheet.sentences))
    map_, *below = filter(None, parts)
    indented = (f"  {line}".rstrip() for part in below for line in ("", *part.split("\n")))
    return "\n".join((map_, *indented))
