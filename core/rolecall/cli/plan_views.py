"""In which forms ``rolecall plan`` shows a plan: the map in the terminal, JSON, SVG, an HTML page."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TextIO

import click
from attrs import frozen

from rolecall.placement.pictures.map_lines import in_ascii
from rolecall.placement.pictures.plain_map import plain_map
from rolecall.placement.pictures.sheet import Sheet

_Command = Callable[..., None]

_STANDARD_OUTPUT = "-"


@frozen(kw_only=True)
class Views:
    """The forms that were asked for. Pictures are written to their files; one form goes to standard output:
    the one that was asked for there, else the map."""

    as_json: bool
    svg: TextIO | None
    html: TextIO | None

    def show(self, sheet: Sheet, document: Callable[[], dict[str, Any]], *, title: str) -> bool:
        """Write what was asked for; return whether it was the map that went to standard output."""
        if self.svg:
            from rolecall.placement.pictures.svg import render_svg

            self.svg.write(render_svg(sheet))
        if self.html:
            from rolecall.placement.pictures.html_page import render_html

            self.html.write(render_html(sheet, title=title))
        if self.as_json:
            click.echo(json.dumps(document(), indent=2))
        if _on_standard_output(self.as_json, self.svg, self.html):
            return False
        _print_map(sheet)
        return True


def _print_map(sheet: Sheet) -> None:
    if sys.stdout.isatty() or os.environ.get("FORCE_COLOR"):
        # A pipe must not pay for importing rich.
        from rich.console import Console

        from rolecall.placement.pictures.terminal_map import render_map

        Console(highlight=False).print(render_map(sheet))
        return
    text = plain_map(sheet, shutil.get_terminal_size().columns)
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    click.echo(text if unicode else in_ascii(text))


def _on_standard_output(as_json: bool, *pictures: TextIO | None) -> list[str]:
    """Return which forms, other than the map, go to standard output."""
    names = [picture.name for picture in pictures if picture]
    return ["--json"] * as_json + [name for name in names if name == _STANDARD_OUTPUT]


def view_options(command: _Command) -> _Command:
    """Give a command these options; it gets them as one argument, ``views``."""

    @click.option("--json", "as_json", is_flag=True, help="Print the plan, or what is wrong, as JSON.")
    @click.option(
        "--svg",
        type=click.File("w", encoding="utf-8", lazy=True, atomic=True),
        metavar="PATH",
        help="Write a picture; - for standard output.",
    )
    @click.option(
        "--html",
        type=click.File("w", encoding="utf-8", lazy=True, atomic=True),
        metavar="PATH",
        help="Write a page with all about an engine where one points at it; - for standard output.",
    )
    @wraps(command)
    def with_views(as_json: bool, svg: TextIO | None, html: TextIO | None, **others: Any) -> None:
        if len(_on_standard_output(as_json, svg, html)) > 1:
            raise click.UsageError("--json, --svg - and --html -: only one of them can have standard output")
        command(views=Views(as_json=as_json, svg=svg, html=html), **others)

    return with_views
