"""The letter and the colour that stand for a role in every picture of a plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

from attrs import frozen

from rolecall.ids import RoleName
from rolecall.placement.plan import PlacementPlan


@frozen(kw_only=True)
class Colour:
    """One colour: its name in a terminal, and a hex value that white text is readable on."""

    terminal: str
    hex: str


COLOURS = (
    Colour(terminal="dodger_blue1", hex="#2563cf"),
    Colour(terminal="orange1", hex="#b8500a"),
    Colour(terminal="green3", hex="#1b7a43"),
    Colour(terminal="magenta", hex="#a8328f"),
    Colour(terminal="gold1", hex="#856500"),
    Colour(terminal="turquoise2", hex="#0d7480"),
    Colour(terminal="red1", hex="#c02f2f"),
    Colour(terminal="grey70", hex="#5d6673"),
)

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefghijklmnopqrstuvwxyz"


@frozen(kw_only=True)
class Mark:
    """How a role looks. ``number`` is its place among all marks of a picture."""

    number: int
    letter: str
    colour: Colour


def marks(*plans: PlacementPlan) -> Mapping[RoleName, Mark]:
    """Return the mark of each role of the plans: its first letter that is free, and a colour.

    A training role in another one's processes has that one's mark.
    """
    processes = dict.fromkeys(
        process
        for plan in plans
        for process in (
            *(replica.role for replica in plan.replicas),
            *(placement.process for placement in plan.training),
        )
    )
    found: dict[RoleName, Mark] = {}
    taken: set[str] = set()
    for number, (role, colour) in enumerate(zip(processes, cycle(COLOURS), strict=False)):
        wishes = [*(char.upper() for char in role if char.isalnum()), *_LETTERS]
        letter = next((wish for wish in wishes if wish not in taken), "?")
        taken.add(letter)
        found[role] = Mark(number=number, letter=letter, colour=colour)
    for plan in plans:
        for placement in plan.training:
            found.setdefault(placement.role, found[placement.process])
    return found
