"""The teacher role as the core sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rolecall.api import (
    ROLECALL_API,
    Endpoint,
    Generate,
    Stage,
    StageRequest,
    UpstreamCall,
    WeightSource,
    check_native_payload,
)

from .options import TeacherOptions
from .stage import teacher_stage


class TeacherRole:
    """Scores by prefill; several teachers are told apart by route key."""

    name: ClassVar[str] = "teacher"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[TeacherOptions]] = TeacherOptions
    weight_sources: ClassVar[tuple[WeightSource, ...]] = (WeightSource.STATIC,)
    deferrable: ClassVar[bool] = True

    def __init__(self, options: TeacherOptions) -> None:
        self._options = options

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        check_native_payload(payload)
        return UpstreamCall(path="/generate", payload=payload)

    def endpoints(self) -> Sequence[Endpoint]:
        return ()

    def generation(self) -> Generate | None:
        return None

    def scoring_stages(self, request: StageRequest) -> Sequence[Stage]:
        return [teacher_stage(self.name, self._options, request.route_keys)]
