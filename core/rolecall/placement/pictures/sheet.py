"""What goes onto a picture, whatever it is drawn with: the map's blocks, a table, some sentences. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from rolecall.ids import RoleName
from rolecall.placement.pictures.blocks import Block
from rolecall.placement.pictures.marks import Mark


@frozen(kw_only=True)
class Line:
    """A line of the table; ``mark`` is the role's that it is about, if it is about one."""

    mark: Mark | None
    cells: tuple[str, ...]


@frozen(kw_only=True)
class Sheet:
    """A picture of one plan, or of what differs between two.

    ``titles`` stand over the cells of the table's lines, and over the column of marks before them.
    """

    name: str
    headline: str
    blocks: tuple[Block, ...]
    marks: Mapping[RoleName, Mark]
    titles: tuple[str, ...]
    lines: tuple[Line, ...]
    sentences: tuple[str, ...]
