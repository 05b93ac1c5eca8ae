"""Placement modes decide which bundles each role gets and which roles may overlap when."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Protocol

from rolecall.errors import Refusal
from rolecall.placement.plan import PlacementJob, PlacementPlan


class Arrangement(StrEnum):
    """How all layouts of a mode lie: what ``placement.layout`` has a sign for.

    APART: each role, a training process too, has a pool of its own (``a | b``).
    SIDE_BY_SIDE: one pool; the inference roles have devices of their own in it and are awake together, the
        trainer's turn on all of them comes after (``a + b -> trainer``).
    IN_TURN: one pool; one inference role after the other is awake on it, the trainer last
        (``a -> b -> trainer``).
    OTHER: none of these; such a mode is not for the shorthand.
    """

    APART = "apart"
    SIDE_BY_SIDE = "side by side"
    IN_TURN = "in turn"
    OTHER = "other"


class PlacementMode(Protocol):
    """Constructed without arguments; ``plan`` is pure: same job, same plan.

    Every engine of a job that a mode is given fits one node or fills whole nodes. The core checks the
    returned plan (every replica placed once, every bundle inside its pool, no two roles on one
    bundle in one phase, only roles that allow it on shared bundles). Refusals of the mode are
    shown together with the core's own; if one has a fix for want of room, the mode is asked again with it.
    """

    name: ClassVar[str]
    api_version: ClassVar[int]
    arrangement: ClassVar[Arrangement]

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        """Return the layout, or every reason why there is none (a non-empty tuple)."""
        ...
