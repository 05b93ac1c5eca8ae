"""The SVG picture and the HTML page."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from rolecall.api import Nodes, PlacementPlan
from rolecall.placement.pictures.html_page import render_html
from rolecall.placement.pictures.legend import plan_sheet
from rolecall.placement.pictures.marks import COLOURS
from rolecall.placement.pictures.svg import render_svg
from rolecall_placement.decoupled import Decoupled
from rolecall_placement.split import Split

Planned = Callable[..., PlacementPlan]

SVG = "{http://www.w3.org/2000/svg}"


def hints_of(svg: str) -> list[list[str]]:
    """What each box of a picture says when one points at it, line by line."""
    boxes = ElementTree.fromstring(svg).iter(f"{SVG}g")
    return [(box.findtext(f"{SVG}title") or "").splitlines() for box in boxes]


def test_every_engine_and_every_process_has_a_box_that_tells_all_about_it(uneven: PlacementPlan) -> None:
    hints = hints_of(render_svg(plan_sheet(uneven)))
    assert len(hints) == len(uneven.replicas) + 16 + 4, "a process on each of the trainer's bundles"
    assert [
        "judge: engine m0/replica-0",
        "model m0",
        "bundles 0-15 on nodes 0-1 of pool shared",
        "phase judge",
        "reserves 0.25 of its first device in Ray",
        "takes turns with rollout, teacher and actor",
    ] in hints
    assert [
        "actor: a process of the trainer",
        "in it: reference",
        "bundle 7 on node 0 of pool shared",
        "phase training",
        "reserves 0.25 of its device in Ray",
        "takes turns with rollout, judge and teacher",
    ] in hints
    assert ["critic: a process of the trainer", "bundle 19 on node 2 of pool shared"] in [
        h[:2] for h in hints
    ]


def test_boxes_lie_in_their_nodes_and_in_their_rows(uneven: PlacementPlan) -> None:
    root = ElementTree.fromstring(render_svg(plan_sheet(uneven)))
    nodes = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "node"]
    assert [round(float(node.get("width", 0))) for node in nodes] == [212, 212, 108], "8, 8 and 4 bundles"
    spans: dict[float, list[tuple[float, float]]] = {}
    for box in root.iter(f"{SVG}g"):
        rect = box.find(f"{SVG}rect")
        assert rect is not None
        x, y, width = (float(rect.get(key, "nan")) for key in ("x", "y", "width"))
        spans.setdefault(y, []).append((x, x + width))
    assert len(spans) == 4, "a row a phase"
    for row in spans.values():
        row.sort()
        assert all(right <= left for (_, right), (left, _) in pairwise(row))
    edges = [(float(n.get("x", 0)), float(n.get("x", 0)) + float(n.get("width", 0))) for n in nodes]
    for left, right in (span for row in spans.values() for span in row):
        inside = [edge for edge in edges if edge[0] < right and left < edge[1]]
        assert inside[0][0] <= left
        assert right <= inside[-1][1]


def test_a_large_plan_is_folded_as_the_map_is(planned: Planned) -> None:
    svg = render_svg(plan_sheet(planned(Split(), ("writer", 1000, 8), nodes=Nodes.equal(10_000, per_node=8))))
    assert len(svg) < 20_000
    assert "bundles 32-7999: 0-31 repeated 249 times" in svg


def test_an_engine_longer_than_a_line_reaches_over_its_edges(planned: Planned) -> None:
    svg = render_svg(plan_sheet(planned(Split(), ("writer", 1, 64), nodes=Nodes.equal(64, per_node=8))))
    hints = hints_of(svg)
    assert len(hints) == 2, "a box in each line"
    assert hints[0] == hints[1]
    assert "bundles 0-63 on nodes 0-7 of pool shared" in hints[0]


class Page(HTMLParser):
    """What is in a page: its tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_says_the_same_of_each_box_without_a_script(uneven: PlacementPlan) -> None:
    sheet = plan_sheet(uneven)
    html = render_html(sheet, title="job.toml")
    page = Page(html)
    spots = [attributes for _, attributes in page.tags if "spot" in (attributes.get("class") or "").split()]
    assert all(spot["tabindex"] == "0" for spot in spots), "the keyboard reaches them too"
    hints = re.findall(r'<div class="hint">([^<]*)</div>', html)
    assert [hint.splitlines() for hint in hints] == hints_of(render_svg(sheet))
    assert len(spots) == len(hints)
    boxes = re.findall(r'<g class="engine.*?<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', html)
    places = re.findall(r"left:([\d.]+)px;top:([\d.]+)px;width:([\d.]+)px", html)
    assert [tuple(map(float, place)) for place in places] == [tuple(map(float, box)) for box in boxes], (
        "each spot lies on its box"
    )


@pytest.mark.parametrize("render", [render_svg, lambda sheet: render_html(sheet, title="job.toml")])
def test_nothing_outside_the_file_is_used(uneven: PlacementPlan, render: Callable[..., str]) -> None:
    text = render(plan_sheet(uneven)).replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//|url\(|@import|<script|<link|<img|\bsrc=|\bhref=|\bon\w+=", text)
    assert "prefers-color-scheme:dark" in text


def test_names_are_text_and_nothing_else(planned: Planned) -> None:
    sheet = plan_sheet(planned(Decoupled(), ("<b>\"&'", 1, 4)))
    assert hints_of(render_svg(sheet))[0][0] == "<b>\"&': engine m0/replica-0"
    page = Page(render_html(sheet, title="<i>.toml"))
    assert not {"i"} & {tag for tag, _ in page.tags}
    assert [tag for tag, _ in page.tags].count("b") == 1, "only the mode's name is bold"


def test_a_plan_without_devices_is_a_picture_too() -> None:
    sheet = plan_sheet(PlacementPlan(mode="any", pools=(), replicas=(), phases=()))
    assert "no role needs a device" in render_svg(sheet)
    assert hints_of(render_svg(sheet)) == []
    assert [tag for tag, _ in Page(render_html(sheet, title="job.toml")).tags].count("svg") == 0


@pytest.mark.parametrize("colour", [colour.hex for colour in COLOURS])
def test_white_letters_are_readable_on_every_colour(colour: str) -> None:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    assert 1.05 / (luminance + 0.05) >= 4.5, "contrast of small text, WCAG AA"
