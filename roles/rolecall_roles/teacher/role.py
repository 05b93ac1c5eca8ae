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
from .urls import OPERATION, UrlsEndpoint


class TeacherRole:
    """Scores by prefill; several teachers are told apart by route key. One that follows the policy (a moving
    average of its weights) is a versioned model; none of its own is needed where others run all teachers."""

    name: ClassVar[str] = "teacher"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[TeacherOptions]] = TeacherOptions
    weight_sources: ClassVar[tuple[WeightSource, ...]] = (
        WeightSource.STATIC,
        WeightSource.ACTOR,
        WeightSource.DCS,
    )
    deferrable: ClassVar[bool] = True
    models_optional: bool = False

    def __init__(self, options: TeacherOptions) -> None:
        self._options = options
        self.models_optional = bool(options.external)

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        check_native_payload(payload)
        return UpstreamCall(path="/generate", payload=payload)

    def endpoints(self) -> Sequence[Endpoint]:
        return [
            Endpoint(
                method="GET", path="/urls", handler=UrlsEndpoint(self._options.external), operation=OPERATION
            )
        ]

    def generation(self) -> Generate | None:
        return None

    def scoring_stages(self, request: StageRequest) -> Sequence[Stage]:
        return [teacher_stage(self.name, self._options, request)]
