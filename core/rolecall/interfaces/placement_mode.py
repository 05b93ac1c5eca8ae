"""Placement modes decide which bundles each role gets and which roles may overlap when."""

from __future__ import annotations

from typing import ClassVar, Protocol

from rolecall.errors import Refusal
from rolecall.placement.plan import PlacementJob, PlacementPlan


class PlacementMode(Protocol):
    """Constructed without arguments; ``plan`` is pure: same job, same plan.

    The core asks a mode only once every engine fits one node or fills whole nodes, and checks the
    returned plan (every replica placed once, every bundle inside its pool, no two roles on one
    bundle in one phase, only roles that allow it on shared bundles). Refusals of the mode are
    shown together with the core's own.
    """

    name: ClassVar[str]
    api_version: ClassVar[int]

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        """Return the layout, or every reason why there is none (a non-empty tuple)."""
        ...
