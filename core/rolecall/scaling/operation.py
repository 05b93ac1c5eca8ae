"""One scaling operation: what it is to do, how far each replica is, and its one door between states."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field

from rolecall.events.event import Emit
from rolecall.ids import EngineId, ModelId, RoleName
from rolecall.scaling.request import ScaleIn, ScaleOut, ScaleRequest
from rolecall.scaling.scale_state import TRANSITIONS, ScaleState, is_final
from rolecall.transitions import require_transition

logger = logging.getLogger(__name__)


@define(kw_only=True)
class Step:
    """One replica's share.

    url: of an engine that somebody else runs. done: it came, or went, as planned. undone: it did, and was
    taken back. detail: what was last known of it.
    """

    engine: EngineId
    url: str | None = None
    done: bool = False
    undone: bool = False
    detail: str = "planned"

    def to_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "url": self.url,
            "done": self.done,
            "undone": self.undone,
            "detail": self.detail,
        }


@define(kw_only=True, eq=False)
class ScaleOperation:
    """Owned by the role's scaler; everybody else reads :meth:`to_json`.

    id: None for a dry run. before: replicas at its beginning. left: what is left to clean, by replica.
    """

    id: str | None
    role: RoleName
    model: ModelId
    request: ScaleRequest
    before: int
    steps: Sequence[Step]
    emit: Emit
    clock: Callable[[], float]
    state: ScaleState = field(init=False)
    reason: str = field(default="", init=False)
    left: dict[EngineId, str] = field(factory=dict, init=False)
    began_s: float = field(init=False)
    ended_s: float | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.began_s = self.clock()
        self.state = ScaleState.PLANNED if self.request.dry_run else ScaleState.RUNNING
        self._tell(None, "dry run" if self.request.dry_run else "begun")

    @property
    def action(self) -> str:
        return "scale_out" if isinstance(self.request, ScaleOut) else "scale_in"

    @property
    def cancelling(self) -> bool:
        return self.state is ScaleState.CANCELLING

    @property
    def final(self) -> bool:
        return is_final(self.state)

    def enter_state(self, wanted: ScaleState, reason: str) -> None:
        """Change the state, log it and emit ``scale.state``.

        Raises:
            TransitionError: the change is not in the table.
        """
        require_transition(f"{self.action} {self.id}", TRANSITIONS, self.state, wanted)
        before, self.state = self.state, wanted
        if self.final:
            self.ended_s = self.clock()
        self._tell(before, reason)

    def to_json(self) -> dict[str, Any]:
        """The operation as JSON values; times are seconds since it began."""
        end_s = self.clock() if self.ended_s is None else self.ended_s
        request = self.request
        sign = 1 if isinstance(request, ScaleOut) else -1
        reached = sum(step.done and not step.undone for step in self.steps)
        return {
            "id": self.id,
            "action": self.action,
            "role": self.role,
            "model": self.model,
            "state": self.state.value,
            "final": self.final,
            "reason": self.reason,
            "before": self.before,
            "wanted": self.before + sign * len(self.steps),
            "reached": self.before + sign * reached,
            "on_partial": request.on_partial.value,
            "force": isinstance(request, ScaleIn) and request.force,
            "replicas": [step.to_json() for step in self.steps],
            "left": dict(self.left),
            "seconds": round(0.0 if self.id is None else end_s - self.began_s, 3),
        }

    def _tell(self, before: ScaleState | None, reason: str) -> None:
        self.reason = reason
        if self.id is None:
            return
        logger.info(
            "%s %s of %s %s: %s → %s (%s)",
            self.action,
            self.id,
            self.role,
            self.model,
            before or "new",
            self.state,
            reason,
        )
        self.emit(
            "scale.state",
            role=self.role,
            model=self.model,
            action=self.action,
            operation=self.id,
            reason=reason,
            engines=[step.engine for step in self.steps],
            left=list(self.left),
            **{"from": before and before.value, "to": self.state.value},
        )
