"""The rollout role as the core sees it."""

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
    reward_stage,
    scale_endpoints,
)

from .generation import Generation
from .legacy_engines import OPERATION, legacy_engines
from .options import RolloutOptions

STAGE = "policy"


class RolloutRole:
    """Generates; its weights follow the trainer. Payloads are the engine's own."""

    name: ClassVar[str] = "rollout"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[RolloutOptions]] = RolloutOptions
    weight_sources: ClassVar[tuple[WeightSource, ...]] = (
        WeightSource.ACTOR,
        WeightSource.DCS,
        WeightSource.STATIC,
    )
    deferrable: ClassVar[bool] = True

    def __init__(self, options: RolloutOptions) -> None:
        self._options = options

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        check_native_payload(payload)
        return UpstreamCall(path="/generate", payload=payload)

    def endpoints(self) -> Sequence[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/engines",
                handler=legacy_engines,
                query={"schema": "1"},
                operation=OPERATION,
            ),
            *scale_endpoints(),
        ]

    def generation(self) -> Generate | None:
        return Generation(self._options)

    def scoring_stages(self, request: StageRequest) -> Sequence[Stage]:
        """One stage with all rewards that ask the policy; none without rewards."""
        if not request.rewards:
            return ()
        return [reward_stage(name=STAGE, role=self.name, rewards=request.rewards)]
