"""Placement modes decide which bundles each role gets and which roles may overlap when."""

from __future__ import annotations

from typing import ClassVar, Protocol

from rolecall.errors import Refusal
from rolecall.placement.plan import PlacementJob, PlacementPlan


class PlacementMode(Protocol):
    """Constructed without arguments; ``plan`` is pure: same job, same plan.

    The core checks shapes and budgets before it asks a mode, and checks the returned plan
    (every bundle inside its pool, no two roles on one bundle in one phase) after it.
    """

    name: ClassVar[str]
    api_version: ClassVar[int]

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        """Return the layout, or every reason why there is none (a non-empty tuple)."""
        ...
